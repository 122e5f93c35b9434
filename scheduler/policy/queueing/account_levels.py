"""Step 4, order, under the queue `quota`: the level of each pending reservation, and its place within that level.

Source: qscheduler: the level goes first, then who demands most, then who has waited longest.
"""

from collections.abc import Callable
from typing import Final

from scheduler.model.labels import shape_of
from scheduler.model.reservations import Reservation, Shape
from scheduler.policy.cycle.queue import Queue
from scheduler.policy.cycle.state import CycleState

_MOST_LABELS: Final = 1 << 20
"""More than any reservation requires: no number of labels outweighs a level."""


def count_required(shape: Shape) -> int:
    """How many labels it requires of its slots, in all: the reservation's and its components', each once."""
    required = set(shape_of(shape.labels))
    for component in shape.components:
        required.update(shape_of(component.labels))
    return len(required)


def rank_by_level(cycle: CycleState) -> Callable[[Reservation], float]:
    """A number that sorts by level, then by required labels, most first; ties go to the older one, as everywhere."""
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
    """The waiters of the tick, the oldest first, sorted so."""
    rank, groups = rank_by_level(cycle), cycle.group_waiters()
    if groups is None:
        return queue.sort(rank)
    alike, numbers = groups
    return queue.sort_groups(numbers, [rank(group[0]) for group in alike])
