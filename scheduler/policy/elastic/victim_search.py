"""The search for victims: the elastic instances that have to be lifted off a slot so that one more instance of a
request fits there.

A search takes the elastic instances in the order of lifts: instances of the last group in rank come first (see
`_find_turn`). It adds the capacity of each instance to its slot, until the request fits on a slot. Only the instances
of that slot are lifted. Requests of one `RequestClass` fit on the same slots. So each class has one sorted list of the
slots on which a lift helps. A search examines only slots that changed and instances that no earlier search has reached.

Under load most pending reservations would not fit even without all elastic instances that may be reclaimed. The sums of
the relaxed capacity, which ready slots would have left then, show this without a search. (The names with `headroom` in
this module mean the relaxed capacity of single slots, and not slots that end for withheld launches.)
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import Final

from scheduler.model.resources import Resources, subtract
from scheduler.policy.capacity.fits import find_obstacle
from scheduler.policy.capacity.requests import Demand, InstanceRequest, RequestClass
from scheduler.policy.capacity.slot_index import RemainingCapacity, SlotClass, SlotIndex
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.elastic.assignment import Assignment, RatedSlots
from scheduler.policy.elastic.instances import (
    ElasticGroup,
    ElasticInstance,
    Rank,
)

ROUNDING: Final = 1e-6
"""A tolerance, as a fraction of one instance: capacity for at least 1 - ROUNDING instances counts as capacity for one.
Sums of fractions are not exact, and a demand that fits must not be refused.
"""
_Headroom = tuple[float, tuple[tuple[str, float], ...] | None]
"""The relaxed capacity of one slot: (number of further leases, amounts by resource). Amounts None: the slot counts
leases only.

The numbers may be too high; a search applies the exact rule, `find_obstacle`, afterwards.
"""


def _count_fits(headroom: _Headroom, amounts: Resources, most: int) -> int:
    """Return how many instances with these amounts would fit into the relaxed capacity of a slot, at most `most`."""
    leases, free = headroom
    fit = min(leases, most)
    if free is not None:
        left = dict(free)
        for name, amount in amounts.items():
            if amount > 0:
                fit = min(fit, left.get(name, 0) / amount + ROUNDING)
    return int(fit)


@dataclass(slots=True, eq=False)
class _ClassHeadroom:
    """The relaxed capacity of the slots of one pool with equal labels: what each would have left without its elastic
    instances that may be reclaimed. `counts`: relaxed capacity -> the number of slots that have it.
    """

    slot_class: SlotClass
    counts: Counter[_Headroom] = field(default_factory=Counter)

    def move(self, before: _Headroom | None, after: _Headroom | None) -> None:
        """Record that the relaxed capacity of one slot (what it would have left after all possible reclaims) changed
        from `before` to `after`. `before` None: the slot is new. `after` None: the slot is not counted any more.
        """
        if before is not None and before[0] > 0:
            self.counts[before] -= 1
            if not self.counts[before]:
                del self.counts[before]
        if after is not None and after[0] > 0:
            self.counts[after] += 1

    def could_serve(self, need: InstanceRequest) -> bool:
        """Return whether the pool and the labels of these slots meet a request. Amounts are not tested."""
        pool = self.slot_class.pool
        return pool in need.given and need.could_hold(pool, None, self.slot_class.labels)

    def count_fits(self, need: InstanceRequest, most: int) -> int:
        """Return how many instances of a request would fit on these slots, up to `most`."""
        if not self.could_serve(need):
            return 0
        found = 0
        for headroom, count in self.counts.items():
            found += count * _count_fits(headroom, need.given[self.slot_class.pool], most)
            if found >= most:
                return most
        return found


class RelaxedCapacity:
    """The relaxed capacity of all slots of some indexes: what each slot would have left if all its elastic instances
    that may be reclaimed were gone. Instances that are placed are subtracted; no capacity is ever added.

    Slots that are alike in pool, labels and relaxed capacity are counted together, so that a search examines few
    entries.
    """

    def __init__(self, slot_indexes: Collection[SlotIndex], elastic_instances: Iterable[ElasticInstance]) -> None:
        self._slot_indexes, self.size = slot_indexes, sum(map(len, slot_indexes))
        self._refused: list[tuple[InstanceRequest, int]] = []
        """Requests that are known not to fit, as (request, number of instances of it)."""
        self._classes: dict[SlotClass, _ClassHeadroom] = {}
        self._of: dict[int, tuple[SlotInfo, _ClassHeadroom, _Headroom]] = {}
        """Position in slot order -> (slot, the object that counts the slots of its pool and labels, its relaxed
        capacity). Relaxed capacity: what the slot would have left after all possible reclaims.
        """
        standing: dict[int, list[ElasticInstance]] = {}
        for each in elastic_instances:
            if each.slot_info is not None:
                standing.setdefault(each.slot_info.order, []).append(each)
        alike: dict[RemainingCapacity, _Headroom] = {}
        for slot_info in chain.from_iterable(each.list_slot_infos() for each in slot_indexes):
            slot_class: SlotClass = slot_info.slot_class
            known = self._classes.get(slot_class) or self._classes.setdefault(slot_class, _ClassHeadroom(slot_class))
            if (elastic := standing.get(slot_info.order)) is not None:
                headroom = _find_headroom(slot_info, elastic)
            elif slot_info.remaining in alike:
                headroom = alike[slot_info.remaining]
            else:
                headroom = alike[slot_info.remaining] = _find_headroom(slot_info, ())
            known.move(None, headroom)
            self._of[slot_info.order] = slot_info, known, headroom

    def could_hold(self, demand: Demand) -> bool:
        """Return whether the instances of each component would fit if no other component were placed. If they would
        not, no reclaim helps.
        """
        return all(self._could_hold(need, count, demand.declined) for need, count in Counter(demand.needs).items())

    def _could_hold(self, need: InstanceRequest, count: int, declined: Sequence[str]) -> bool:
        if any(count >= refused and need.asks_as_much_as(other) for other, refused in self._refused):
            return False
        found = self.count_fits(need, count, declined)
        if found < count and not declined:
            self._refused.append((need, count))
        return found >= count

    def could_hold_with(self, other: "RelaxedCapacity", demand: Demand) -> bool:
        """Return whether the instances of each component would fit on the slots of this object and of `other` together,
        if no other component were placed.
        """
        return all(
            self.count_fits(need, count, demand.declined) + other.count_fits(need, count, demand.declined) >= count
            for need, count in Counter(demand.needs).items()
        )

    def count_fits(self, need: InstanceRequest, most: int, declined: Sequence[str]) -> int:
        """Return how many instances of a request, up to `most`, would fit on the slots whose ids are not in
        `declined`.
        """
        self._forget_removed()
        found = 0
        if not declined:
            for each in self._classes.values():
                found += each.count_fits(need, most - found)
                if found >= most:
                    break
            return found
        for slot_info, known, headroom in self._of.values():
            if headroom[0] > 0 and slot_info.slot.id not in declined and known.could_serve(need):
                found += _count_fits(headroom, need.given[slot_info.slot.pool], most - found)
                if found >= most:
                    break
        return found

    def _forget_removed(self) -> None:
        """Remove the slots that left the indexes, because the starvation guard keeps them for reservations."""
        if self.size == sum(map(len, self._slot_indexes)):
            return
        self.size = sum(map(len, self._slot_indexes))
        for order, (slot_info, known, headroom) in list(self._of.items()):
            if not any(each.has(slot_info) for each in self._slot_indexes):
                known.move(headroom, None)
                del self._of[order]

    def take(self, needs: Sequence[InstanceRequest], slot_infos: Sequence[SlotInfo]) -> None:
        """Subtract requests from the relaxed capacity of slots (what they would have left after all possible reclaims).
        The request `needs[i]` was placed on the slot `slot_infos[i]`, or capacity is kept for it there.
        """
        for need, slot_info in zip(needs, slot_infos, strict=True):
            if (present := self._of.get(slot_info.order)) is None:
                continue
            _, known, before = present
            leases, free = before
            left = None if free is None else tuple(subtract(dict(free), need.given[slot_info.slot.pool]).items())
            after = (leases - 1, left)
            known.move(before, after)
            self._of[slot_info.order] = slot_info, known, after


def _find_headroom(slot_info: SlotInfo, standing: Sequence[ElasticInstance]) -> _Headroom:
    """Return the relaxed capacity of a slot: what it would have left without the elastic instances `standing`, which
    are on it.
    """
    leases = min(slot_info.pool.lease_limit - slot_info.load, slot_info.uses_left) + len(standing)
    if slot_info.free is None:
        return leases, None
    free: Mapping[str, float] = slot_info.free
    for each in standing:
        amounts = each.amounts_on(slot_info)
        free = {name: amount + amounts.get(name, 0) for name, amount in free.items()}
    return leases, tuple(free.items())


_rank = attrgetter("rank")
_Turn = tuple[int, int, int, int]
"""The position of an elastic instance in the order of lifts. The instance with the smallest position is lifted
first.
"""
_START: Final[_Turn] = (-(1 << 62), 0, 0, 0)
"""A position in the order of lifts before the positions of all elastic instances."""


def _find_turn(elastic_instance: ElasticInstance) -> _Turn:
    """Return the position of an instance in the order of lifts. Instances of the group that is last in rank come first;
    within a group, instances that were granted in this cycle come first, then the highest index.
    """
    position, component = elastic_instance.group.rank
    return -position, -component, -elastic_instance.is_granted, -elastic_instance.index


class _Candidates:
    """The slots on which one more instance of a request fits after some elastic instances there were lifted. They are
    in the order of lifts (see `_find_turn`). All requests of one `RequestClass` use the same object.
    """

    def __init__(self, need: InstanceRequest, groups: Sequence[ElasticGroup], assignment: Assignment) -> None:
        """Start without slots. `groups`: all groups in rank order; the list may change between searches."""
        self._need, self._groups, self._assignment = need, groups, assignment
        self._serves: dict[int, bool] = {}
        """Position in slot order -> whether the request fits on the slot if it is empty."""
        self._slots = RatedSlots(self._find_key, assignment.history)
        self._reached = _START
        """How far searches have walked through the elastic instances in the order of lifts. Each slot with an instance
        before this position was examined, or is in `Assignment.history` and is examined before the next search.
        """

    def find(self, bound: Rank, declined: Collection[str]) -> Sequence[ElasticInstance]:
        """Return the instances to lift, all on one slot, so that one more instance of the request fits there; () if no
        lift helps. They belong to groups from the rank `bound` on, and the id of their slot is not in `declined`.
        """
        if declined:
            self._walk(bound, to_the_end=True)
        while True:
            found = self._slots.find_first(declined)
            if (found is not None and found[0] < self._reached) or not self._walk(bound):
                break
        return () if found is None or (-found[0][0], -found[0][1]) < bound else self._list_victims(found[1])

    def _walk(self, bound: Rank, *, to_the_end: bool = False) -> bool:
        """Go on from `_reached` in the order of lifts, and examine the slots of the instances. Stop with True if a slot
        may have been found. Stop with False if no group from the rank `bound` on is left.

        `to_the_end`: do not stop at a slot, and examine the slots of all these groups. The result is then always False.
        """
        position, component, *_ = self._reached
        at = bisect_left(self._groups, (-position, -component), key=_rank)
        while at and (group := self._groups[at - 1]).rank >= bound:
            at -= 1
            self._reached = (-group.rank[0], -group.rank[1], 1, 0)
            if group.need.given.keys() & self._need.given.keys():
                for elastic_instance in group.elastic_instances:
                    if elastic_instance.slot_info is not None:
                        self._slots.add(elastic_instance.slot_info)
            if not to_the_end and self._slots.starts_before(self._reached):
                return True
        return False

    def _find_key(self, slot_info: SlotInfo) -> _Turn | None:
        victims = self._list_victims(slot_info)
        return _find_turn(victims[-1]) if victims else None

    def _list_victims(self, slot_info: SlotInfo) -> Sequence[ElasticInstance]:
        """Return the elastic instances of a slot that have to be lifted so that the request fits, in the order of
        lifts. Return () if the request does not fit even after all of them were lifted.
        """
        standing = self._assignment.standing.get(slot_info.order)
        if not standing or not self._could_serve(slot_info):
            return ()
        amounts, free, victims = self._need.given[slot_info.slot.pool], slot_info.free, []
        leases, uses = slot_info.pool.lease_limit - slot_info.load, slot_info.uses_left
        for each in sorted(standing, key=_find_turn):
            victims.append(each)
            leases += 1
            uses += each.is_granted
            if free is not None:
                given = each.amounts_on(slot_info)
                free = {name: amount + given.get(name, 0) for name, amount in free.items()}
            if find_obstacle(amounts, free, leases, uses) is None:
                return victims
        return ()

    def _could_serve(self, slot_info: SlotInfo) -> bool:
        """Return whether the request would fit on the slot if the slot were empty, and the starvation guard does not
        keep the slot.
        """
        known = self._serves.get(slot_info.order)
        if known is None or not self._assignment.has(slot_info):
            known = self._serves[slot_info.order] = self._assignment.could_serve(self._need, slot_info)
        return known


class VictimSearch:
    """Searches for the elastic instances to lift, for requests of all classes."""

    def __init__(self, groups: Sequence[ElasticGroup], assignment: Assignment) -> None:
        """Start before the first search. `groups`: all groups of elastic instances in rank order. Between two calls of
        `find`, the caller may add groups to this list and remove groups.
        """
        self._groups, self._assignment = groups, assignment
        self._candidates: dict[RequestClass, _Candidates] = {}

    def find(self, need: InstanceRequest, bound: Rank, declined: Collection[str] = ()) -> Sequence[ElasticInstance]:
        """Return the elastic instances to lift, all on one slot and in the order of lifts, so that one more instance of
        the request fits there.

        They belong to groups from the rank `bound` on. Return () if no lift helps. `declined`: ids of slots to ignore.
        """
        candidates = self._candidates.get(need.likeness)
        if candidates is None:
            candidates = self._candidates[need.likeness] = _Candidates(need, self._groups, self._assignment)
        return candidates.find(bound, declined)
