"""Step 4, order: the queue of those who wait, under the setting `queue`."""

from collections.abc import Callable, Iterable
from operator import attrgetter

from scheduler.model.reservations import Reservation
from scheduler.policy.draft import Draft, Queue

Rank = Callable[[Reservation], tuple[float, ...]]


_fifo: Rank = attrgetter("created_at", "sequence")


def _priority(reservation: Reservation) -> tuple[float, ...]:
    return (-reservation.priority, reservation.created_at, reservation.sequence)


def _size(reservation: Reservation) -> tuple[float, ...]:
    return (reservation.request.size, reservation.created_at, reservation.sequence)


RANKS: dict[str, Rank] = {"fifo": _fifo, "priority": _priority, "size": _size}
"""What sorts the queue; ties go to the older one, then to the order of submission."""


def order(draft: Draft) -> Queue:
    """The pending reservations, first one first; those who return to the queue keep their old place."""
    return sort_queue(draft, draft.pending.values())


def sort_queue(draft: Draft, reservations: Iterable[Reservation]) -> Queue:
    """These reservations, first one first, each with what it needs."""
    return draft.add_demands(sorted(reservations, key=_find_rank(draft)))


def _find_rank(draft: Draft) -> Rank:
    """What sorts those who wait. Systems with settings of their own have a queue each, behind the common one: they
    share no slot with it, and of what is left within `max_slots` over all pools the common one takes first.
    """
    rules = draft.rules
    if not rules.scheduler.system:
        return RANKS[rules.scheduler.queue]
    places = {name: float(place) for place, name in enumerate(("", *rules.scheduler.system))}

    def rank(reservation: Reservation) -> tuple[float, ...]:
        request = reservation.request
        queue = draft.settings_of(reservation).queue
        return (places[rules.queue_of(request.pool, request.system)], *RANKS[queue](reservation))

    return rank
