"""Step 4, order: the queue of those who wait, under the setting `queue`."""

from collections.abc import Callable, Iterable
from math import nextafter

from scheduler.model.reservations import Reservation, Shape
from scheduler.policy.draft import Draft, Queue
from scheduler.policy.levels import rank_by_level, sort_by_level
from scheduler.policy.needs import given_to

Rank = Callable[[Reservation], float]
LEAST_SIZE = nextafter(0.0, 1.0)
"""Of one that has not come to 0 yet, whatever rounding makes of it."""


def _alike(_: Reservation) -> float:
    return 0.0


def _priority(reservation: Reservation) -> float:
    return -reservation.priority


def _size(reservation: Reservation) -> float:
    return reservation.request.size


RANKS: dict[str, Rank] = {"fifo": _alike, "priority": _priority, "size": _size, "quota": _alike}
"""What sorts the queue, less first; ties go to the older one, then to the order of submission."""


def _find_ranks(draft: Draft) -> dict[str, Rank]:
    """The same with those that time, or the balances of accounts, change."""
    return {**RANKS, "dynsize": _rank_by_present_size(draft), "quota": rank_by_level(draft)}


def _rank_by_present_size(draft: Draft) -> Rank:
    """max(0, S0 − `dynsize_decay` × seconds since `created_at`): it falls to 0 and never grows again, so that nobody
    waits behind smaller newcomers for ever. Source: Zoe, whose sizes jump back to their start.

    All sizes of a queue fall alike, so two change places only when one of them comes to 0: then a tick is asked for.
    """
    shapes = draft.view.shapes
    known: dict[Shape, tuple[float, float]] = {}

    def rank(reservation: Reservation) -> float:
        shape = shapes[reservation.id]
        if shape not in known:
            known[shape] = (_find_first_size(draft, shape), draft.settings_of(reservation).dynsize_decay)
        size, decay = known[shape]
        begun = reservation.created_at
        if decay and draft.is_due(begun + size / decay):
            return 0.0
        return max(LEAST_SIZE, size - decay * (draft.now - begun))

    return rank


def _find_first_size(draft: Draft, shape: Shape) -> float:
    """S0: (sum of `cpus`) × (sum of `memory_mib`) over all instances; one that none of them asks for counts as 1.

    What a component leaves out is given by the defaults of the first pool that serves it.
    """
    pools = draft.rules.serving_pools(shape.pool, shape.system)
    first = draft.rules.pools[pools[0]] if pools else None
    wanted = [(each.count, given_to(each, first) if first else each.resources) for each in shape.components]

    def sum_of(name: str) -> float:
        asked = [count * amounts[name] for count, amounts in wanted if name in amounts]
        return sum(asked) if asked else 1.0

    return sum_of("cpus") * sum_of("memory_mib")


def order(draft: Draft) -> Queue:
    """The pending reservations, first one first; those who return to the queue keep their old place."""
    waiters = draft.list_waiters()
    if draft.rules.scheduler.queue == "quota" and not draft.rules.scheduler.system:
        return sort_by_level(draft, waiters)
    return _rank(draft, waiters)


def sort_queue(draft: Draft, reservations: Iterable[Reservation]) -> Queue:
    """These reservations, first one first, each with what it needs."""
    return _rank(draft, draft.sort_queue(reservations))


def _rank(draft: Draft, queue: Queue) -> Queue:
    """The queue, which has the oldest first, under the setting; equal ones stay as they are."""
    if draft.rules.scheduler.system:
        return queue.sort(_find_rank_by_system(draft))
    if draft.rules.scheduler.queue != "fifo":
        return queue.sort(_find_ranks(draft)[draft.rules.scheduler.queue])
    return queue


def _find_rank_by_system(draft: Draft) -> Callable[[Reservation], tuple[float, float]]:
    """Systems with settings of their own have a queue each, behind the common one: they share no slot with it, and
    of what is left within `max_slots` over all pools the common one takes first.
    """
    rules, ranks = draft.rules, _find_ranks(draft)
    places = {name: float(place) for place, name in enumerate(("", *rules.scheduler.system))}

    def rank(reservation: Reservation) -> tuple[float, float]:
        request = reservation.request
        queue = draft.settings_of(reservation).queue
        return (places[rules.queue_of(request.pool, request.system)], ranks[queue](reservation))

    return rank
