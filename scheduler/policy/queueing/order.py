"""Step 4, order: list the pending reservations with their demands, and sort them by the setting `queue`."""

from collections.abc import Callable, Iterable
from math import inf, nextafter
from operator import attrgetter
from typing import Any, Final

from scheduler.model.pending_queue import Groups
from scheduler.model.reservations import Reservation, Shape
from scheduler.model.resources import shape_of
from scheduler.model.rules import Rules
from scheduler.policy.capacity.fits import given_to
from scheduler.policy.cycle.queue import Queue
from scheduler.policy.cycle.state import CycleState

_age = attrgetter("created_at", "sequence")
_MOST_LABELS: Final = 1 << 20
"""A number greater than the number of labels of any reservation. A rank is level × this number - number of labels, so
the level always decides first.
"""


def count_required(shape: Shape) -> int:
    """Return the number of different labels that a request of this shape requires, including the labels of its
    components.
    """
    required = set(shape_of(shape.labels))
    for component in shape.components:
        required.update(shape_of(component.labels))
    return len(required)


def rank_by_level(cycle: CycleState) -> Callable[[Reservation], float]:
    """Return a function that returns the rank of a reservation (smallest first): the better quota level first, then the
    larger number of required labels.

    Of two reservations with equal ranks the older one is first. Source: qscheduler.
    """
    level_of, shapes = cycle.balances.level_of, cycle.view.shapes
    counts: dict[Shape, int] = {}
    known: dict[tuple[str | None, Shape], float] = {}
    """(account name, shape) -> rank. Used only if account name and shape determine the level."""
    is_by_name = cycle.balances.are_by_name

    def rank(reservation: Reservation) -> float:
        shape = shapes[reservation.id]
        key = (reservation.request.account, shape)
        if is_by_name and key in known:
            return known[key]
        count = counts.get(shape)
        if count is None:
            count = counts[shape] = count_required(shape)
        found = known[key] = level_of(reservation) * _MOST_LABELS - count
        return found

    return rank


Rank = Callable[[Reservation], float]
LEAST_SIZE = nextafter(0.0, 1.0)
"""The rank of a reservation whose size is above 0 and would be rounded to 0. So it stays behind reservations of
size 0.
"""


def _equal(_: Reservation) -> float:
    return 0.0


RANKS: dict[str, Rank] = {
    "fifo": _equal,
    "priority": lambda reservation: -reservation.priority,
    "size": lambda reservation: reservation.request.size,
    "quota": _equal,
}
"""Queue type -> rank function of its reservations. The smallest rank is first. If ranks are equal, the earlier
`created_at` is first; if these times are equal too, the smaller sequence number is first.
"""


def _find_ranks(cycle: CycleState) -> dict[str, Rank]:
    """Return a table (queue type -> rank function), with the functions of `RANKS` and those that depend on the time or
    on account balances.
    """
    return {**RANKS, "dynsize": _rank_by_present_size(cycle), "quota": rank_by_level(cycle)}


def _rank_by_present_size(cycle: CycleState) -> Rank:
    """Return the rank function of the queue type `dynsize`. The rank of a reservation is its present size:
    max(0, S0 − `dynsize_decay` × seconds since `created_at`), where S0 is its size at the submission.

    A size falls to 0 and never grows, so that no reservation waits behind smaller newcomers forever. All sizes of a
    queue fall equally fast, so the order changes only when a size reaches 0; a cycle is scheduled for that time.
    Source: the project Zoe. There, unlike here, a size that has fallen jumps back to its first value.
    """
    shapes = cycle.view.shapes
    known: dict[Shape, tuple[float, float]] = {}

    def rank(reservation: Reservation) -> float:
        shape = shapes[reservation.id]
        if shape not in known:
            known[shape] = (find_first_size(cycle.rules, shape), cycle.settings_of(reservation).dynsize_decay)
        size, decay = known[shape]
        begun = reservation.created_at
        if decay and not cycle.timers.rests_until(begun + size / decay):
            return 0.0
        return max(LEAST_SIZE, size - decay * (cycle.now - begun))

    return rank


def find_first_size(rules: Rules, shape: Shape) -> float:
    """Return the size of a reservation at its submission: (sum of `cpus`) × (sum of `memory_mib`) over all instances.

    A sum of 0 counts as 1, also if no instance has the resource: an amount of 0 must not make the other resource count
    for nothing. For resources that a component does not request, the defaults of the first pool that serves the
    reservation count.
    """
    pools = rules.serving_pools(shape.pool, shape.system, needs_agent=shape.needs_agent)
    first = rules.pools[pools[0]] if pools else None
    wanted = [(each.count, given_to(each, first) if first else each.resources) for each in shape.components]

    def sum_of(name: str) -> float:
        return sum(count * amounts.get(name, 0.0) for count, amounts in wanted) or 1.0

    return sum_of("cpus") * sum_of("memory_mib")


def order(cycle: CycleState) -> Queue:
    """Return the pending reservations in queue order. The age of a requeued reservation is the time since its
    submission.
    """
    rows, ids, shapes = cycle.view.waiters.list()
    if cycle.over:
        rows = [each for each in rows if each.id not in cycle.over] + [*cycle.requeued.values()]
    waiters = _sort_by_age(cycle, rows) if cycle.over else _make_queue(cycle, rows, ids, shapes)
    if cycle.rules.scheduler.queue == "quota" and not cycle.rules.scheduler.system:
        rank, groups = rank_by_level(cycle), group_waiters(cycle)
        if groups is None:
            return waiters.sort(rank)
        members, numbers = groups
        return waiters.sort_groups(numbers, [rank(group[0]) for group in members])
    return _rank(cycle, waiters)


def group_waiters(cycle: CycleState) -> Groups | None:
    """Return the pending reservations grouped by account and shape, and for each reservation the number of its group.

    Return None if these groups, which the view keeps, cannot be used: this cycle changed the queue, or account and
    shape alone do not determine how each reservation is placed.
    """
    is_plain = not (cycle.over or cycle.view.special) and cycle.balances.are_by_name
    return cycle.view.waiters.group() if is_plain else None


def _sort_by_age(cycle: CycleState, reservations: Iterable[Reservation]) -> Queue:
    """Return these reservations as a queue, oldest first, each with its demand."""
    found = sorted(reservations, key=_age)
    ids = [each.id for each in found]
    return _make_queue(cycle, found, ids, [cycle.view.shapes[each] for each in ids])


def _make_queue(cycle: CycleState, reservations: list[Reservation], ids: list[str], shapes: list[Shape]) -> Queue:
    demands = list(map(cycle.demands.__getitem__, shapes))
    if cycle.rules.limited_accounts:
        demands = list(map(cycle.demand_of, reservations))
    elif special := cycle.view.special:
        demands = [
            cycle.demand_of(special[name]) if name in special else demand
            for name, demand in zip(ids, demands, strict=True)
        ]
    return Queue(reservations, ids, demands, reservations[0].created_at if reservations else inf)


def sort_queue(cycle: CycleState, reservations: Iterable[Reservation]) -> Queue:
    """Return these reservations in queue order, each with its demand."""
    return _rank(cycle, _sort_by_age(cycle, reservations))


def insert(cycle: CycleState, queue: Queue, reservations: Iterable[Reservation]) -> Queue:
    """Return `queue` with these reservations added, each at its position in queue order.

    Cost: it grows with the number of added reservations, not with the length of the queue.
    """
    added, rank = sort_queue(cycle, reservations), _find_rank(cycle) or _equal
    return queue.merge(added, lambda each: (rank(each), each.created_at, each.sequence))


def _rank(cycle: CycleState, queue: Queue) -> Queue:
    """Return a queue sorted by the setting `queue` (`priority`, `size`, …). The given queue is sorted by age, which
    decides between equal ranks.
    """
    rank = _find_rank(cycle)
    return queue if rank is None else queue.sort(rank)


def _find_rank(cycle: CycleState) -> Callable[[Reservation], Any] | None:
    """Return the rank function of the pending reservations; None if only their age decides."""
    if cycle.rules.scheduler.system:
        return _find_rank_by_system(cycle)
    return _find_ranks(cycle)[cycle.rules.scheduler.queue] if cycle.rules.scheduler.queue != "fifo" else None


def find_lasting_rank(cycle: CycleState) -> Callable[[Reservation], float | tuple[float, float]] | None:
    """Return the rank function of the pending reservations, if the rank of each stays the same. Return None if ranks
    change with the time or with account balances.
    """
    rules = cycle.rules
    for settings in (rules.scheduler, *rules.scheduler.system.values()):
        if settings.queue == "quota" or (settings.queue == "dynsize" and settings.dynsize_decay):
            return None
    return _find_rank_by_system(cycle) if rules.scheduler.system else _find_ranks(cycle)[rules.scheduler.queue]


def _find_rank_by_system(cycle: CycleState) -> Callable[[Reservation], tuple[float, float]]:
    """Return a rank function that puts the common queue first, and then the queues of systems with settings of their
    own. The common queue has the reservations of all other systems.

    Each slot serves only one of these queues. `max_slots` limits the slots of all pools together, so the order of the
    queues decides for which queue machines are launched first.
    """
    rules, ranks = cycle.rules, _find_ranks(cycle)
    positions = {name: float(position) for position, name in enumerate(("", *rules.scheduler.system))}

    def rank(reservation: Reservation) -> tuple[float, float]:
        request = reservation.request
        queue = cycle.settings_of(reservation).queue
        return (positions[rules.queue_of(request.pool, request.system)], ranks[queue](reservation))

    return rank
