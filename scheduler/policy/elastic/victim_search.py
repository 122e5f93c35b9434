"""The search for victims: the elastic instances that have to be lifted off a slot so that one more instance of a
request fits there.

A search takes the elastic instances in the order of lifts: instances of the last group in rank come first (see
`_find_turn`). It adds the capacity of each instance to its slot, until the request fits on a slot. Only the instances
of that slot are lifted. Requests of one `RequestClass` fit on the same slots. So each class has one sorted list of the
slots on which a lift helps. A search examines only slots that changed and instances that no earlier search has reached.
"""

from bisect import bisect_left
from collections.abc import Collection, Sequence
from operator import attrgetter
from typing import Final

from scheduler.policy.capacity.fits import find_obstacle
from scheduler.policy.capacity.requests import InstanceRequest, RequestClass
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.elastic.assignment import Assignment, RatedSlots
from scheduler.policy.elastic.instances import ElasticGroup, ElasticInstance, Rank

_Turn = tuple[int, int, int, int]
"""The position of an elastic instance in the order of lifts. The instance with the smallest position is lifted
first.
"""
_FIRST: Final[_Turn] = (-(1 << 62), 0, 0, 0)
"""A position in the order of lifts before the positions of all elastic instances."""
_rank = attrgetter("rank")


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
        self._reached = _FIRST
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
            if found is not None and found[0] < self._reached:
                break
            if not self._walk(bound):
                break
        if found is None or (-found[0][0], -found[0][1]) < bound:
            return ()
        return self._list_victims(found[1])

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
