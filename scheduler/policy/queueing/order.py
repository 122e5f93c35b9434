"""Step 4, order: the queue of those who wait, under the setting `queue`."""

from collections.abc import Callable, Iterable
from math import nextafter

from scheduler.model.reservations import Reservation, Shape
from scheduler.policy.capacity.requests import given_to
from scheduler.policy.cycle.queue import Queue
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.cycle.step_values import Charged
from scheduler.policy.queueing.account_levels import rank_by_level, sort_by_level

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


def _find_ranks(cycle: CycleState) -> dict[str, Rank]:
    """The same with those that time, or the balances of accounts, change."""
    return {**RANKS, "dynsize": _rank_by_present_size(cycle), "quota": rank_by_level(cycle)}


def _rank_by_present_size(cycle: CycleState) -> Rank:
    """max(0, S0 − `dynsize_decay` × seconds since `created_at`): it falls to 0 and never grows again, so that nobody
    waits behind smaller newcomers for ever. Source: Zoe, whose sizes jump back to their start.

    All sizes of a queue fall alike, so two change places only when one of them comes to 0: then a tick is asked for.
    """
    shapes = cycle.view.shapes
    known: dict[Shape, tuple[float, float]] = {}

    def rank(reservation: Reservation) -> float:
        shape = shapes[reservation.id]
        if shape not in known:
            known[shape] = (_find_first_size(cycle, shape), cycle.settings_of(reservation).dynsize_decay)
        size, decay = known[shape]
        begun = reservation.created_at
        if decay:
            if cycle.is_due(begun + size / decay):
                return 0.0
            cycle.timers.add(begun + size / decay)
        return max(LEAST_SIZE, size - decay * (cycle.now - begun))

    return rank


def _find_first_size(cycle: CycleState, shape: Shape) -> float:
    """S0: (sum of `cpus`) × (sum of `memory_mib`) over all instances; one that none of them asks for counts as 1.

    What a component leaves out is given by the defaults of the first pool that serves it.
    """
    pools = cycle.rules.serving_pools(shape.pool, shape.system)
    first = cycle.rules.pools[pools[0]] if pools else None
    wanted = [(each.count, given_to(each, first) if first else each.resources) for each in shape.components]

    def sum_of(name: str) -> float:
        asked = [count * amounts[name] for count, amounts in wanted if name in amounts]
        return sum(asked) if asked else 1.0

    return sum_of("cpus") * sum_of("memory_mib")


def order(cycle: Charged) -> Queue:
    """The pending reservations, first one first; those who return to the queue keep their old place."""
    waiters = cycle.list_waiters()
    if cycle.rules.scheduler.queue == "quota" and not cycle.rules.scheduler.system:
        return sort_by_level(cycle, waiters)
    return _rank(cycle, waiters)


def sort_queue(cycle: CycleState, reservations: Iterable[Reservation]) -> Queue:
    """These reservations, first one first, each with what it needs."""
    return _rank(cycle, cycle.sort_queue(reservations))


def _rank(cycle: CycleState, queue: Queue) -> Queue:
    """The queue, which has the oldest first, under the setting; equal ones stay as they are."""
    if cycle.rules.scheduler.system:
        return queue.sort(_find_rank_by_system(cycle))
    if cycle.rules.scheduler.queue != "fifo":
        return queue.sort(_find_ranks(cycle)[cycle.rules.scheduler.queue])
    return queue


def _find_rank_by_system(cycle: CycleState) -> Callable[[Reservation], tuple[float, float]]:
    """Systems with settings of their own have a queue each, behind the common one: they share no slot with it, and
    of what is left within `max_slots` over all pools the common one takes first.
    """
    rules, ranks = cycle.rules, _find_ranks(cycle)
    slot_infos = {name: float(slot_info) for slot_info, name in enumerate(("", *rules.scheduler.system))}

    def rank(reservation: Reservation) -> tuple[float, float]:
        request = reservation.request
        queue = cycle.settings_of(reservation).queue
        return (slot_infos[rules.queue_of(request.pool, request.system)], ranks[queue](reservation))

    return rank
