"""Step 4, order: the queue of those who wait, under the setting `queue`."""

from collections.abc import Callable, Iterable
from math import inf
from operator import attrgetter

from scheduler.model.reservations import Reservation
from scheduler.policy.draft import Draft, Queue

Rank = Callable[[Reservation], float]

_created_at, _sequence = attrgetter("created_at"), attrgetter("sequence")


def _alike(_: Reservation) -> float:
    return 0.0


def _priority(reservation: Reservation) -> float:
    return -reservation.priority


def _size(reservation: Reservation) -> float:
    return reservation.request.size


RANKS: dict[str, Rank] = {"fifo": _alike, "priority": _priority, "size": _size}
"""What sorts the queue, less first; ties go to the older one, then to the order of submission."""


def order(draft: Draft) -> Queue:
    """The pending reservations, first one first; those who return to the queue keep their old place."""
    return sort_queue(draft, draft.pending.values())


def sort_queue(draft: Draft, reservations: Iterable[Reservation]) -> Queue:
    """These reservations, first one first, each with what it needs.

    Sorted by the last tie-breaker first: equal ones stay as they are, and plain numbers sort fastest.
    """
    found = sorted(reservations, key=_sequence)
    found.sort(key=_created_at)
    oldest = found[0].created_at if found else inf
    if draft.rules.scheduler.system:
        found.sort(key=_find_rank_by_system(draft))
    elif draft.rules.scheduler.queue != "fifo":
        found.sort(key=RANKS[draft.rules.scheduler.queue])
    return draft.add_demands(found, oldest)


def _find_rank_by_system(draft: Draft) -> Callable[[Reservation], tuple[float, float]]:
    """Systems with settings of their own have a queue each, behind the common one: they share no slot with it, and
    of what is left within `max_slots` over all pools the common one takes first.
    """
    rules = draft.rules
    places = {name: float(place) for place, name in enumerate(("", *rules.scheduler.system))}

    def rank(reservation: Reservation) -> tuple[float, float]:
        request = reservation.request
        queue = draft.settings_of(reservation).queue
        return (places[rules.queue_of(request.pool, request.system)], RANKS[queue](reservation))

    return rank
