"""Pending groups: the pending reservations of one account with equal requests. An index finds the first group for a
slot.

One answer holds for all reservations of a group and for all slots that are alike, so the cost does not grow with slots
× reservations.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from itertools import chain
from operator import attrgetter
from typing import Final, Generic, TypeVar

from scheduler.model.accounts import Account
from scheduler.model.reservations import Reservation
from scheduler.model.resources import Labels, Resources, shape_of
from scheduler.policy.capacity.fits import find_obstacle
from scheduler.policy.capacity.requests import Amounts, Demand
from scheduler.policy.capacity.slot_info import SlotInfo

_Item = tuple[str, str]


@dataclass(slots=True, eq=False)
class Requirements:
    """What a slot must have for an instance: labels, and free amounts by pool. (`require`, what an instance type must
    have to be an offering, is something else.)

    Compared by identity: equal requirements share one object.
    """

    number: int
    labels: Labels
    steps: Mapping[str, Amounts]

    def is_met(self, pool: str, labels: Labels, free: Resources | None) -> bool:
        """Return whether a slot of the pool `pool` with these labels and free amounts meets the requirements. `free`
        None: the slot counts leases only, and has no amounts. The number of leases on the slot is not tested.
        """
        step = self.steps.get(pool)
        if step is None or not self.labels.items() <= labels.items():
            return False
        return find_obstacle(step.amounts, free) is None


MOST_KINDS: Final = 100_000
"""The greatest number of kinds of slots for which `RequirementsIndex` remembers which requirements they meet."""


class RequirementsIndex:
    """All `Requirements` objects (what a slot must have) under the same rules, one for each combination of labels and
    amounts. `list_met` finds the ones that a slot meets.
    """

    def __init__(self) -> None:
        self._known: dict[object, Requirements] = {}
        self._by_label: dict[_Item | None, list[Requirements]] = {None: []}
        """Label -> the requirements that are listed under this label. None -> the requirements without labels.

        Each `Requirements` object is listed once, under one of its labels. It is the label that the fewest of the
        objects added earlier had.
        """
        self._uses: Counter[_Item] = Counter()
        self._met: dict[object, tuple[Requirements, ...]] = {}

    def find(self, labels: Labels, steps: Mapping[str, Amounts]) -> Requirements:
        """Return the one `Requirements` object for these labels and amounts, which equal requests share."""
        key = (shape_of(labels), tuple((pool, tuple(step.amounts.items())) for pool, step in steps.items()))
        requirements = self._known.get(key)
        if requirements is None:
            requirements = self._known[key] = Requirements(len(self._known), labels, steps)
            rarest = min(labels.items(), key=lambda item: (self._uses[item], item), default=None)
            self._by_label.setdefault(rarest, []).append(requirements)
            self._uses.update(labels.items())
            self._met.clear()
        return requirements

    def list_met(self, slot_info: SlotInfo, free: Resources | None) -> tuple[Requirements, ...]:
        """Return all requirements that a slot meets if its free amounts are `free`, in a fixed order."""
        key = (slot_info.slot.pool, tuple(slot_info.labels.items()), None if free is None else tuple(free.items()))
        found = self._met.get(key)
        if found is None:
            if len(self._met) > MOST_KINDS:
                self._met.clear()
            filed = chain.from_iterable(self._by_label.get(item, ()) for item in (None, *slot_info.labels.items()))
            met = (each for each in filed if each.is_met(slot_info.slot.pool, slot_info.labels, free))
            found = self._met[key] = tuple(sorted(met, key=attrgetter("number")))
        return found


Rank = tuple[int, float, int]
"""The sort key of pending groups; the group with the smallest key is served first. It is (minus the number of required
labels, time of creation, sequence number), the last two of the group's first unplaced reservation.
"""
Found = TypeVar("Found")


@dataclass(slots=True, eq=False)
class PendingGroup:
    """Pending reservations of one account that are alike in all fields that decide when and where they are placed."""

    number: int
    account: Account | None
    demand: Demand
    level: int
    """The best level that the account can pay. The group may be placed at the free level too."""
    likeness: object
    """A key that is equal for groups whose leases count together for one fan-out limit (`max_fanout`); None: no such
    limit.
    """
    labels: int
    """The number of labels that each reservation of the group requires."""
    required: Requirements
    """What a slot must have for the first instance of each reservation."""
    preferred: Requirements | None
    """What a slot must have for the first instance, with all preferred labels added. None: no slot can have both the
    preferred and the required labels.
    """
    reservations: Sequence[Reservation]
    """The reservations of the group in queue order."""
    served: int = 0
    """The number of reservations of the group that are placed: the first ones in `reservations`."""

    @property
    def is_served(self) -> bool:
        """Whether all reservations of the group are placed."""
        return self.served >= len(self.reservations)

    @property
    def first(self) -> Reservation:
        """The first reservation of the group that is not placed yet."""
        return self.reservations[self.served]

    @property
    def rank(self) -> Rank:
        """The sort key of the group, see `Rank`. It changes when a reservation of the group is placed."""
        first = self.reservations[self.served]
        return (-self.labels, first.created_at, first.sequence)


class PendingIndex(Generic[Found]):
    """Finds the first pending group (reservations of one account with equal requests) that a slot can serve. Slots that
    meet the same `Requirements` (labels and amounts that a slot must have) share one heap of groups.

    `list_groups` returns the groups whose requests have the given requirements. It is called once for each
    `Requirements` object, at the first call of `find` for a slot that meets it.
    """

    def __init__(
        self,
        list_groups: Callable[[Requirements], Sequence[PendingGroup]],
        is_out: Callable[[PendingGroup], bool],
    ) -> None:
        self._list_groups, self._groups = list_groups, dict[Requirements, Sequence[PendingGroup]]()
        self._heaps: dict[tuple[Requirements, ...], list[tuple[Rank, int, PendingGroup]]] = {}
        """The requirements that a slot meets -> a heap of the groups that could be placed on such a slot."""
        self._is_out = is_out
        """A function that returns whether this step must not place a group any more. Such a group is removed from its
        heap.
        """

    def _has_groups(self, requirements: Requirements) -> bool:
        if requirements not in self._groups:
            self._groups[requirements] = self._list_groups(requirements)
        return bool(self._groups[requirements])

    def find(
        self, met: tuple[Requirements, ...], accept: Callable[[PendingGroup], Found | None]
    ) -> tuple[PendingGroup, Found] | None:
        """Return the first group in order that a slot can serve and for which `accept` returns a result, together with
        this result. Return None if there is no such group. `met`: the requirements that the slot meets.
        """
        heap = self._heaps.get(met)
        if heap is None:
            own = tuple(filter(self._has_groups, met))
            if own not in self._heaps:
                groups = chain.from_iterable(self._groups[requirements] for requirements in own)
                self._heaps[own] = [(group.rank, group.number, group) for group in groups if not group.is_served]
                heapify(self._heaps[own])
            heap = self._heaps[met] = self._heaps[own]
        aside, answer = [], None
        while heap and answer is None:
            rank, number, group = heap[0]
            if group.served >= len(group.reservations) or self._is_out(group):
                heappop(heap)
            elif rank[-1] != group.reservations[group.served].sequence:  # another reservation is the first one now
                heapreplace(heap, (group.rank, number, group))
            elif (found := accept(group)) is not None:
                answer = (group, found)
            else:
                aside.append(heappop(heap))
        for entry in aside:
            heappush(heap, entry)
        return answer
