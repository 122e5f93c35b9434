"""Step 4, order, under the queue `quota`: by level, then by required labels, then by age. Source: qscheduler."""

from collections.abc import Callable
from typing import Final

from scheduler.model.labels import shape_of
from scheduler.model.reservations import Reservation, Shape
from scheduler.policy.cycle.queue import Queue
from scheduler.policy.cycle.state import CycleState

_MOST_LABELS: Final = 1 << 20
"""More than any reservation requires, so that the level always decides first."""


def count_required(shape: Shape) -> int:
    """Count the different labels that the reservation and its components require."""
    required = set(shape_of(shape.labels))
    for component in shape.components:
        required.update(shape_of(component.labels))
    return len(required)


def rank_by_level(cycle: CycleState) -> Callable[[Reservation], float]:
    """Return a rank by level, then by required labels, most first. Ties go to the older reservation."""
    level_of, shapes = cycle.balances.level_of, cycle.view.shapes
    counts: dict[Shape, int] = {}

    def rank(reservation: Reservation) -> float:
        shape = shapes[reservation.id]
        count = counts.get(shape)
        if count is None:
            count = counts[shape] = count_required(shape)
        return level_of(reservation) * _MOST_LABELS - count

    return rank


def sort_by_level(cycle: CycleState, queue: Queue) -> Queue:
    """Sort the pending reservations, which are in order of age, by that rank."""
    rank, groups = rank_by_level(cycle), cycle.group_waiters()
    if groups is None:
        return queue.sort(rank)
    members, numbers = groups
    return queue.sort_groups(numbers, [rank(group[0]) for group in members])
