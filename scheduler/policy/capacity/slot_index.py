"""An index of the slots that can take instances, so that a search does not examine every slot.

Slots with the same pool and labels have the same `SlotClass`. Slots stand in candidate queues with the best slot first.
All requests for the same amounts in the same pools with the same labels share a queue. A new lease changes the
remaining capacity of one slot; the queues in which the slot still fits are updated. So the cost of a cycle grows with
the number of different slots and requests and with the number of new leases, not with slots × reservations.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from operator import attrgetter, itemgetter
from typing import TypeVar

from scheduler.model.resources import Labels, Resources
from scheduler.policy.capacity.candidate_queue import (
    LEASE,
    CandidateQueue,
    RemainingCapacities,
    RemainingCapacity,
    SlotClass,
    find_marks,
    make_capacity_mark,
)
from scheduler.policy.capacity.requests import InstanceRequest
from scheduler.policy.capacity.slot_info import Mark, SlotInfo

_Alike = tuple[tuple[Mark, Mark], SlotClass, RemainingCapacity]
"""Slots that are alike: their two keys (see `find_marks`), their common class and their common remaining capacity."""
Given = TypeVar("Given")
_RANK = attrgetter("rank")

SLOTS_A_STEP = 100
"""The number of slots that a search may add up for one step of work, the unit of the work budget."""
CHANGES_A_STEP = 3
"""The number of changes of slots that a search may read for one step of work, the unit of the work budget."""
MOST_QUEUES = 8
"""If a request has more classes of slots with equally good labels than this, the classes in which it gets equal amounts
share one candidate queue. Else each class has a queue of its own, and a search compares all these queues.
"""


class SlotIndex:
    """The slots that can take instances. `find` chooses a slot; `take` subtracts the capacity of an instance from a
    slot.
    """

    def __init__(self, slot_infos: Iterable[SlotInfo] = ()) -> None:
        self._slot_infos: dict[int, SlotInfo] = {}
        """Position in slot order -> slot, for the slots of the index."""
        self._classes: dict[Mark, SlotClass] = {}
        self._alike: dict[tuple[Mark, Mark], _Alike] = {}
        self._unused: dict[tuple[str, int, int], tuple[_Alike, Resources | None, Labels]] = {}
        """(pool, identity of the free amounts, identity of the labels) -> (what such slots have in common, these
        amounts, these labels), for slots without leases that were added. The table keeps the two objects, so that no
        other object gets their identities.
        """
        self._classes_of_pool: dict[str, list[SlotClass]] = {}
        self._capacities = RemainingCapacities()
        self._queues: dict[Mark, CandidateQueue] = {}
        self._tiers: dict[InstanceRequest, list[list[CandidateQueue]]] = {}
        """Request -> the candidate queues of the slot classes that have the required labels. Queues with equally good
        labels are in one list, and the list with the best labels is first.
        """
        self.changes = 0
        """The number of changes of slots so far. A candidate queue compares it with the number at its last search
        (`read_at`), and reads the changes in between.
        """
        self.steps = 0
        """The steps of work that searches for several instances have taken so far. The work budgets of payers are
        charged with them (`policy/cycle/work_budget.py`).
        """
        self._equal: dict[SlotClass, list[tuple[Resources | None, int]]] | None = None
        """Class of slots -> its slots by resources, as (resources, number of slots). None: not counted yet."""
        self._insert_all(slot_infos)

    def _insert_all(self, slot_infos: Iterable[SlotInfo]) -> None:
        """Put slots into the index.

        Speed: most slots are unchanged since the cycle began, and share their keys (`find_marks`) with other slots.
        Shared keys are looked up by identity, because hashing them takes as long as all other work here.
        """
        by_order, known, kept = self._slot_infos, dict[int, _Alike](), list[object]()
        for slot_info in slot_infos:
            opened = slot_info.opened
            if (
                opened is None
                or slot_info.leases is not (first := opened.slot_info).leases
                or slot_info.free is not first.free
                or slot_info.labels is not first.labels
                or slot_info.given
                or slot_info.lifted
            ):
                self._insert(slot_info)
                continue
            found = known.get(id(opened.marks))
            if found is None:
                marks = find_marks(slot_info)
                kept.append(marks)  # so that no other object gets its identity
                found = known[id(marks)] = self._alike.get(marks) or self._add_marks(marks, slot_info)
                opened.marks = found[0]  # the equal keys of most slots are freed
            _, slot_class, remaining = found
            by_order[slot_info.order] = slot_info
            slot_class.slot_infos.append(slot_info)
            slot_info.slot_class, slot_info.remaining, slot_info.free = slot_class, remaining, remaining.free

    def add(self, slot_info: SlotInfo, need: InstanceRequest | None = None) -> None:
        """Add a slot to the index, so that searches find it. If `need` is given, one instance of this request is placed
        on the slot first.

        Speed: slots that are launched with the same offering refer to the same amounts and labels. Their class and
        remaining capacity are looked up by the identity of both, because it takes longer to build the keys of a slot.
        """
        amounts, labels = slot_info.free, slot_info.labels
        identity = (slot_info.slot.pool, id(amounts), id(labels))
        is_unused = not (slot_info.leases or slot_info.load or slot_info.pool.max_uses)
        if is_unused and identity in self._unused:
            self._insert(slot_info, self._unused[identity][0])
        elif is_unused:
            self._unused[identity] = self._insert(slot_info), amounts, labels
        else:
            self._insert(slot_info)
        if need is not None:
            after = slot_info.remaining.after[need.steps[slot_info.slot_class.pool]]
            assert after is not None, "a slot that is added for a request can take it"  # noqa: S101
            slot_info.given += 1
            slot_info.free, slot_info.remaining = after.free, after
        self.steps += 1
        for candidates in slot_info.slot_class.candidate_queues:
            # Speed: a change to read would make the queue examine the slot only in its next search.
            if slot_info.remaining.after[candidates.step] is not None:
                candidates.enter(slot_info)

    def _note(self, slot_class: SlotClass, slot_info: SlotInfo) -> None:
        """Record that this slot changed. The candidate queues read the change before their next search."""
        slot_class.changed.append(slot_info)
        self.changes += 1
        self.steps += 1

    def _insert(self, slot_info: SlotInfo, alike: _Alike | None = None) -> _Alike:
        """Put a slot into the class of slots with its pool and labels. No candidate queue is updated. Return what the
        slot has in common with slots that are alike. `alike`: this result, if the caller knows it.
        """
        self._slot_infos[slot_info.order] = slot_info
        self._equal = None
        if alike is None:
            marks, opened = find_marks(slot_info), slot_info.opened
            alike = self._alike.get(marks) or self._add_marks(marks, slot_info)
            if opened is not None and opened.marks is marks:
                opened.marks = alike[0]  # the equal keys of most slots are freed
        _, slot_class, remaining = alike
        slot_class.slot_infos.append(slot_info)
        slot_info.slot_class, slot_info.remaining, slot_info.free = slot_class, remaining, remaining.free
        return alike

    def _add_marks(self, marks: tuple[Mark, Mark], slot_info: SlotInfo) -> _Alike:
        class_mark, capacity_mark = marks
        slot_class = self._classes.get(class_mark)
        if slot_class is None:
            slot_class = SlotClass(slot_info.slot.pool, slot_info.labels)
            self._classes[class_mark] = slot_class
            self._classes_of_pool.setdefault(slot_class.pool, []).append(slot_class)
            self._tiers.clear()
        found = self._alike[marks] = marks, slot_class, self._capacities.find(capacity_mark, slot_info.free)
        return found

    def remove(self, slot_info: SlotInfo) -> None:
        """Remove a slot from the index: no search finds it any more."""
        del self._slot_infos[slot_info.order]
        self._equal = None
        slot_class, slot_info.slot_class, slot_info.remaining = slot_info.slot_class, None, None
        slot_class.has_removed = True
        self._note(slot_class, slot_info)

    def __len__(self) -> int:
        return len(self._slot_infos)

    def has(self, slot_info: SlotInfo) -> bool:
        """Return whether the slot is in the index, so that searches may find it."""
        return slot_info.order in self._slot_infos

    def regroup(self, slot_info: SlotInfo) -> None:
        """Record that a slot's free capacity changed otherwise than by `take`. Candidate queues read the change before
        a search.
        """
        remaining = self._capacities.find(make_capacity_mark(slot_info), slot_info.free)
        if remaining is not slot_info.remaining:
            self._put(slot_info, remaining)

    def list_slot_infos(self) -> Iterator[SlotInfo]:
        """Return every slot of the index, in no particular order."""
        return iter(self._slot_infos.values())

    def find(self, need: InstanceRequest, declined: Collection[str] = ()) -> SlotInfo | None:
        """Return the best slot for one instance; None if the instance fits on no slot. `declined`: ids of slots to
        ignore.
        """
        tiers = self._tiers.get(need)
        if tiers is None:
            tiers = self._rank(need)
        for candidate_queues in tiers:  # of one tier, all queues have equally good labels
            if declined:
                found = [best for candidates in candidate_queues if (best := candidates.find_except(declined))]
                if found:
                    return min(found, key=itemgetter(0))[1]
                continue
            if self.changes:
                self._catch_up(candidate_queues)
            candidates = candidate_queues[0] if len(candidate_queues) == 1 else min(candidate_queues, key=_RANK)
            if candidates.first is not None:
                return candidates.first
        return None

    def _catch_up(self, candidate_queues: list[CandidateQueue]) -> None:
        for candidates in candidate_queues:
            if candidates.read_at != self.changes:
                self.steps += candidates.catch_up() // CHANGES_A_STEP
                candidates.read_at = self.changes

    def take(self, slot_info: SlotInfo, need: InstanceRequest) -> None:
        """Subtract the amounts of one instance from the free capacity of a slot that a search found."""
        after = slot_info.remaining.after[need.steps[slot_info.slot_class.pool]]
        assert after is not None, "a slot is taken only after a search found it"  # noqa: S101
        self._spend(slot_info, after)

    def take_often(self, slot_info: SlotInfo, need: InstanceRequest, most: int) -> int:
        """Subtract the amounts of as many instances as fit, at least one and at most `most`, from the slot's free
        capacity. Return their number.
        """
        if most == 1:
            self.take(slot_info, need)
            return 1
        before: RemainingCapacity = slot_info.remaining
        count, remaining = before.take_often(need.steps[slot_info.slot_class.pool], most)
        slot_info.given += count
        queues = slot_info.slot_class.candidate_queues
        if len(queues) == 1 and queues[0].first is slot_info and queues[0].read_at == self.changes:
            # Speed: the only queue reads the change here. It would examine one slot in its next search.
            slot_info.free, slot_info.remaining = remaining.free, remaining
            self.steps += 1
            queues[0].fill_first(slot_info)
        else:
            self._put(slot_info, remaining)
        return count

    def take_each(self, need: InstanceRequest, give: Callable[[SlotInfo], Given]) -> Iterator[Given]:
        """Yield `give(slot)` for each instance of the request that is placed, one after the other, until the request
        fits on no slot. `slot` is the slot that `find` returns; `take` has subtracted the instance.

        Between two results other requests may take capacity, but no capacity may be given back: full slots are not
        examined again.
        """
        known, given = None, None
        for candidate_queues in self._tiers.get(need) or self._rank(need):
            [best, *others] = candidate_queues
            read_at = 0
            while True:
                if self.changes != read_at:
                    self._catch_up(candidate_queues)
                    read_at = self.changes
                candidates = best  # speed: `min` without the calls, which cost a tenth for each lease
                for other in others:
                    if other.rank < candidates.rank:
                        candidates = other
                slot_info = candidates.first
                if slot_info is None:
                    break
                self._spend(slot_info, slot_info.remaining.after[candidates.step])
                if slot_info is not known:
                    known, given = slot_info, give(slot_info)
                yield given  # type: ignore[misc]  # it is set at the first slot

    def _spend(self, slot_info: SlotInfo, after: RemainingCapacity) -> None:
        """Record that one more instance was placed on a slot. `after`: the slot's remaining capacity after that."""
        slot_info.given += 1
        slot_info.free, slot_info.remaining, left = after.free, after, after.after
        for candidates in slot_info.slot_class.candidate_queues:
            if candidates.first is slot_info:
                if left[candidates.step] is None:
                    candidates.advance()
                elif candidates.spreads:
                    candidates.update(slot_info)
                else:
                    candidates.rank -= LEASE
            elif left[candidates.step] is not None:
                candidates.enter(slot_info)

    def take_run(self, need: InstanceRequest, most: int) -> list[tuple[SlotInfo, int]]:
        """Take capacity for up to `most` equal instances, one after the other. Return their slots as (slot, number of
        instances).

        Only for requests that do not spread: a search for such a request finds the same slot until the slot is full,
        because this slot has the most leases.
        """
        runs: list[tuple[SlotInfo, int]] = []
        while most > 0 and (slot_info := self.find(need)) is not None:
            given = self.take_often(slot_info, need, most)
            runs.append((slot_info, given))
            most -= given
            slot_info.wanted = True
        return runs

    def count_fits(self, need: InstanceRequest, most: int) -> int:
        """Return how many instances of this request, up to `most`, fit on all slots of the index together."""
        left = most
        known: dict[RemainingCapacity, int] = {}
        for pool, step in need.steps.items():
            for slot_class in self._classes_of_pool.get(pool, ()):
                if need.rank_labels(slot_class.labels) is None:
                    continue
                self.steps += 1 + len(slot_class.slot_infos) // SLOTS_A_STEP
                listed = dict.fromkeys(slot_class.slot_infos) if slot_class.has_removed else slot_class.slot_infos
                for slot_info in listed:
                    if slot_info.slot_class is slot_class:
                        remaining: RemainingCapacity = slot_info.remaining
                        if remaining not in known:
                            known[remaining], _ = remaining.take_often(step, most)
                        left -= known[remaining]
                        if left <= 0:
                            return most
        return most - left

    def list_shareable(
        self, need: InstanceRequest, declined: Collection[str] = ()
    ) -> Iterator[tuple[str, Resources | None, int]]:
        """Yield the slots of the index that could hold an instance if they were empty, equal ones together, as (pool,
        resources, number of slots). `declined`: ids of slots to ignore.
        """
        equal = self._count_equal(declined) if declined else self._equal
        if equal is None:
            equal = self._equal = self._count_equal(())
        for slot_class in self._list_serving(need):
            for capacity, count in equal.get(slot_class, ()):
                if need.could_hold(slot_class.pool, capacity, slot_class.labels):
                    yield slot_class.pool, capacity, count

    def list_slots_for(self, needs: Iterable[InstanceRequest]) -> Iterator[SlotInfo]:
        """Yield the slots of the index that serve one of these requests by their pool and labels."""
        for slot_class in dict.fromkeys(each for need in needs for each in self._list_serving(need)):
            # A slot that was removed and added again is listed twice.
            listed = dict.fromkeys(slot_class.slot_infos) if slot_class.has_removed else slot_class.slot_infos
            yield from (slot_info for slot_info in listed if slot_info.slot_class is slot_class)

    def _list_serving(self, need: InstanceRequest) -> Iterator[SlotClass]:
        """Yield the classes of slots that serve a request by their pool and labels."""
        for candidate_queues in self._tiers.get(need) or self._rank(need):
            for candidates in candidate_queues:
                yield from candidates.slot_classes

    def _count_equal(self, declined: Collection[str]) -> dict[SlotClass, list[tuple[Resources | None, int]]]:
        found = dict[SlotClass, dict[object, tuple[Resources | None, int]]]()
        for slot_info in self._slot_infos.values():
            if slot_info.slot.id not in declined:
                capacity, equal = slot_info.capacity, found.setdefault(slot_info.slot_class, {})
                key = None if capacity is None else tuple(capacity.items())
                equal[key] = capacity, equal[key][1] + 1 if key in equal else 1
        return {slot_class: list(equal.values()) for slot_class, equal in found.items()}

    def put_back(self, slot_info: SlotInfo, remaining: RemainingCapacity, count: int) -> None:
        """Give back the capacity of the last `count` instances that were placed on a slot. `remaining`: the slot's
        remaining capacity before these instances.
        """
        slot_info.given -= count
        self._put(slot_info, remaining)

    def close(self) -> None:
        """End the use of the index: drop references between objects, so that they are freed without the garbage
        collector.
        """
        for remaining in self._capacities.values():
            remaining.after.clear()
            remaining.runs.clear()
        for slot_class in self._classes.values():
            slot_class.slot_infos.clear()
            slot_class.changed.clear()
            slot_class.candidate_queues.clear()

    def _put(self, slot_info: SlotInfo, remaining: RemainingCapacity) -> None:
        """Set the remaining capacity of a slot. The candidate queues read the change before their next search."""
        slot_info.free, slot_info.remaining = remaining.free, remaining
        self._note(slot_info.slot_class, slot_info)

    def _rank(self, need: InstanceRequest) -> list[list[CandidateQueue]]:
        """Return the candidate queues of a request, in lists of equally good labels, best labels first. The result is
        valid until a slot class is added.
        """
        alike: dict[tuple[int, int], list[SlotClass]] = {}
        for pool in need.steps:
            for slot_class in self._classes_of_pool.get(pool, ()):
                rank = need.rank_labels(slot_class.labels)
                if rank is not None:
                    alike.setdefault(rank, []).append(slot_class)
        tiers = self._tiers[need] = []
        for rank in sorted(alike):
            shares = len(alike[rank]) > MOST_QUEUES
            queues: dict[object, list[SlotClass]] = {}
            for slot_class in alike[rank]:
                queues.setdefault(need.steps[slot_class.pool] if shares else slot_class, []).append(slot_class)
            tiers.append([self._open_queue(need, each) for each in queues.values()])
        return tiers

    def _open_queue(self, need: InstanceRequest, slot_classes: list[SlotClass]) -> CandidateQueue:
        """Return the candidate queue for the amounts of a request on these slot classes. Requests with equal amounts
        share it.
        """
        step = need.steps[slot_classes[0].pool]
        key = (need.spreads, step, *slot_classes)
        candidates = self._queues.get(key)
        if candidates is None:
            candidates = CandidateQueue(step, need.spreads, frozenset(slot_classes), self._slot_infos)
            self._queues[key] = candidates
            for slot_class in slot_classes:
                slot_class.candidate_queues.append(candidates)
            candidates.open()
            candidates.read_at = self.changes
        return candidates
