"""An index of the slots that can take instances, so that a search does not examine every slot.

Slots with the same pool and labels have the same `SlotClass`. Slots stand in candidate queues with the best slot first.
All requests for the same amounts in the same pools with the same labels share a queue. A new lease changes the
remaining capacity of one slot; the queues in which the slot still fits are updated. So the cost of a cycle grows with
the number of different slots and requests and with the number of new leases, not with slots × reservations.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import inf
from operator import attrgetter, itemgetter
from typing import Any, Final, TypeVar

from scheduler.model.resources import Labels, Resources, subtract
from scheduler.policy.capacity.fits import find_obstacle
from scheduler.policy.capacity.requests import Amounts, InstanceRequest
from scheduler.policy.capacity.slot_info import Mark, SlotInfo

# Candidate queues: the slots on which one kind of request fits, best slot first. The capacity that a slot has left
# decides whether the request fits, and the number of its leases decides its rank.
#
# Slots with the same pool and labels have the same `SlotClass`, and stand in the queues of that class. Slots with the
# same amounts left and the same number of leases share one `RemainingCapacity`.


Rank = int
"""The position of a slot among candidates: the slot with the smallest rank is chosen. It is LEASE × (the number of the
slot's leases, negative if most leases come first) + the position of the slot in slot order.
"""
LEASE: Final[Rank] = 1 << 48
"""The amount by which one lease changes the rank of a slot. It is greater than any position in slot order, so the
number of leases decides before the position.
"""
NO_RANK: Final[Rank] = 1 << 96
"""A rank that is greater than the ranks of all slots; it stands for "no slot"."""
HEAPIFIED_SHARE: Final = 8
"""If more than 1 / HEAPIFIED_SHARE of the entries of a heap are new, the heap is built again, because pushing each new
entry would take longer.
"""


@dataclass(slots=True, eq=False)
class RemainingCapacity:
    """What a slot can still take. `free`: the amounts of resources that no lease uses (None: the slot counts leases
    only). `uses_left`: how many leases its machine may still take (`max_uses`). `load`: the number of its leases.
    `most`: the greatest number of leases that it may have at once. Slots for which these four values are equal share
    one object, so that what fits on them is computed once.
    """

    free: Resources | None
    load: int
    uses_left: float
    most: float
    leases: Rank = field(init=False)
    """LEASE × `load` (the number of the slot's leases): what these leases add to the slot's rank, or subtract from it
    (see Rank).
    """
    after: "_After" = field(init=False)
    """A table (amounts of one lease -> the slot's remaining capacity after that lease; None: the lease does not fit).
    """
    runs: dict[Amounts, tuple[int, "RemainingCapacity"]] = field(default_factory=dict)
    """A table (amounts of one lease -> how many such leases fit, and the remaining capacity after them). `take_often`
    fills it.
    """

    def __post_init__(self) -> None:
        self.leases = self.load * LEASE

    def take_often(self, step: Amounts, most: int) -> tuple[int, "RemainingCapacity"]:
        """Return two things: (1) how many leases of these amounts, up to `most`, fit into this remaining capacity of a
        slot; (2) the remaining capacity after them.
        """
        known = self.runs.get(step)
        if known is not None and known[0] <= most:
            return known
        given, remaining = 0, self
        while given < most and (after := remaining.after[step]) is not None:
            given, remaining = given + 1, after
        if given < most:
            self.runs[step] = given, remaining
        return given, remaining


class _After(dict[Amounts, RemainingCapacity | None]):
    """A table (amounts of one lease -> what a slot has left after that lease; None: the lease does not fit). An entry
    is computed when it is looked up for the first time.
    """

    __slots__ = ("capacities", "remaining")
    remaining: RemainingCapacity
    capacities: "RemainingCapacities"

    def __missing__(self, step: Amounts) -> RemainingCapacity | None:
        before = self.remaining
        fits = find_obstacle(step.amounts, before.free, before.most - before.load, before.uses_left) is None
        after = self[step] = self.capacities.find_after(before, step.amounts) if fits else None
        return after


class RemainingCapacities(dict[Mark, RemainingCapacity]):
    """A table (key of `make_capacity_mark` -> `RemainingCapacity` object) for one slot index. Slots with equal
    remaining capacity share one object.
    """

    def find(self, mark: Mark, free: Resources | None) -> RemainingCapacity:
        """Return the object for the slots with the key `mark` (see `make_capacity_mark`) and the free amounts `free`.
        It is made at the first call.
        """
        return self.get(mark) or self._add(mark, free)

    def find_after(self, before: RemainingCapacity, amounts: Resources) -> RemainingCapacity:
        """Return the remaining capacity of a slot after one more lease of these amounts. `before`: the remaining
        capacity of the slot before this lease.
        """
        free = None if before.free is None else subtract(before.free, amounts)
        amount = None if free is None else tuple(free.items())
        mark = (amount, before.load + 1, before.uses_left - 1, before.most)
        return self.get(mark) or self._add(mark, free)

    def _add(self, mark: tuple[Any, ...], free: Resources | None) -> RemainingCapacity:
        _, load, uses_left, most = mark
        remaining = self[mark] = RemainingCapacity(free, load, uses_left, most)
        remaining.after = _After()
        remaining.after.remaining, remaining.after.capacities = remaining, self
        return remaining


def find_marks(slot_info: SlotInfo) -> tuple[Mark, Mark]:
    """Return two keys of a slot. Slots with equal first keys have the same pool and labels; slots with equal second
    keys have the same remaining capacity.
    """
    opened = slot_info.opened
    if (
        opened is None
        or slot_info.given
        or slot_info.lifted
        or slot_info.labels is not (first := opened.slot_info).labels
        or slot_info.leases is not first.leases
        or slot_info.free is not first.free
    ):
        return _make_class_mark(slot_info), make_capacity_mark(slot_info)
    if opened.marks is None:
        opened.marks = _make_class_mark(slot_info), make_capacity_mark(slot_info)
    return opened.marks


def _make_class_mark(slot_info: SlotInfo) -> Mark:
    return (slot_info.slot.pool, tuple(slot_info.labels.items()))


def make_capacity_mark(slot_info: SlotInfo) -> Mark:
    """Return the key of a slot in `RemainingCapacities`: (free amounts, number of leases, uses left, limit of leases).
    Uses left: how many leases its machine may still take (`max_uses`). Slots with equal keys have the same remaining
    capacity.
    """
    free, pool = slot_info.free, slot_info.pool
    load = len(slot_info.leases) - slot_info.overlap - slot_info.lifted + slot_info.given
    uses_left = slot_info.uses_left if pool.max_uses else inf
    return (None if free is None else tuple(free.items()), load, uses_left, pool.lease_limit)


@dataclass(slots=True, eq=False)
class SlotClass:
    """The slots of one pool with equal labels, and the candidate queues in which they stand."""

    pool: str
    labels: Labels
    slot_infos: list[SlotInfo] = field(default_factory=list)
    """All slots that were added to the class. Some of them may have been removed from the index since then."""
    candidate_queues: list["CandidateQueue"] = field(default_factory=list)
    has_removed: bool = False
    """Whether `slot_infos` still contains a slot that was removed from the index."""
    changed: list[SlotInfo] = field(default_factory=list)
    """The slots whose capacity changed otherwise than by one new lease, with one entry for each change. Each candidate
    queue reads the entries that are new to it before a search.
    """


@dataclass(slots=True, eq=False)
class CandidateQueue:
    """The slots on which one kind of request fits and whose labels are equally good. The best slot is the one with the
    most leases (with the fewest if the queue `spreads`); of equal slots, the first one in slot order.

    `first` is the best slot. Each other slot has its rank as an entry: in `others` since the queue was filled, or in
    `entered` if it came later. If the number of leases of a slot changes, its rank changes, and its old entry is
    outdated; `advance` skips such entries. `first` has no entry: it stays the best slot while instances are placed on
    it, so no entry has to be pushed for each of them.
    """

    step: Amounts
    """The amounts of one instance of the requests that use this queue."""
    spreads: bool
    slot_classes: Collection[SlotClass]
    """The classes whose slots are candidates in this queue."""
    slot_infos: Mapping[int, SlotInfo]
    """Position in slot order -> slot, for all slots of the index."""
    first: SlotInfo | None = None
    """The best slot of the queue; None if the request fits on no slot of the queue."""
    rank: Rank = NO_RANK
    """The rank of the best slot, `first`."""
    others: list[Rank] = field(default_factory=list)
    """The ranks of the slots that were not the best one when the queue was filled, greatest rank first."""
    entered: list[Rank] = field(default_factory=list)
    """A heap of the ranks of slots that entered the queue after it was filled, except the best slot.

    Speed: these ranks are kept apart from the sorted list `others`, because taking the last entry of a list costs a
    tenth of taking one out of a heap with thousands of slots.
    """
    read: dict[SlotClass, int] = field(default_factory=dict)
    """Slot class -> how many entries of the list `SlotClass.changed` this queue has read, from the beginning of the
    list.
    """
    read_at: int = 0
    """The index's number of changes (`SlotIndex.changes`) when this queue last read the changes."""

    def catch_up(self) -> int:
        """Read the changes of slots since the queue's last search, and update the queue. Return the number of slots
        examined.
        """
        if any(len(each.changed) - self.read[each] > len(each.slot_infos) for each in self.slot_classes):
            self.open()
            return sum(len(each.slot_infos) for each in self.slot_classes)
        count, step, spreads, has_changed = 0, self.step, self.spreads, False
        ranks: list[Rank] = []
        for slot_class in self.slot_classes:
            changed = dict.fromkeys(slot_class.changed[self.read[slot_class] :])
            count += len(changed)
            has_changed = has_changed or self.first in changed
            # A slot that was removed, or has other labels now, is of another class or of none.
            ranks += [
                each.order + (remaining.leases if spreads else -remaining.leases)
                for each in changed
                if each.slot_class is slot_class and (remaining := each.remaining).after[step] is not None
            ]
            self.read[slot_class] = len(slot_class.changed)
        self._enter_all(ranks)
        if has_changed or (self.first is not None and self.first.slot_class not in self.slot_classes):
            self.advance()
        elif self.entered and self.entered[0] < self.rank:
            if self.first is not None:
                heappush(self.entered, self.rank)
            self.advance()
        return count

    def _enter_all(self, ranks: list[Rank]) -> None:
        if len(ranks) * HEAPIFIED_SHARE > len(self.entered):
            self.entered += ranks
            heapify(self.entered)
        else:
            for rank in ranks:
                heappush(self.entered, rank)

    def open(self) -> None:
        """Fill the candidate queue with all slots on which the request fits."""
        self.read = {slot_class: len(slot_class.changed) for slot_class in self.slot_classes}
        for slot_class in self.slot_classes:
            if slot_class.has_removed:
                slot_class.has_removed = False
                listed = dict.fromkeys(slot_class.slot_infos)  # a slot that was added again is listed twice
                slot_class.slot_infos = [each for each in listed if each.slot_class is slot_class]
        slot_infos = [slot_info for slot_class in self.slot_classes for slot_info in slot_class.slot_infos]
        # Speed: slots with the same capacity left share one object, so that few are looked up.
        capacities: set[RemainingCapacity] = {each.remaining for each in slot_infos}
        able = {each: each.leases if self.spreads else -each.leases for each in capacities if each.after[self.step]}
        self.others = [each.order + able[each.remaining] for each in slot_infos if each.remaining in able]
        self.others.sort(reverse=True)
        self.entered = []
        self.advance()

    def update(self, first: SlotInfo) -> None:
        """Update the queue after the remaining capacity of `first`, the best slot, has changed; another slot may now be
        the best.
        """
        if first.remaining.after[self.step] is not None:
            heappush(self.entered, self._rank(first))
        self.advance()

    def fill_first(self, first: SlotInfo) -> None:
        """Update the queue after more instances were placed on `first`, the best slot. It stays the best slot until it
        is full. Only for a queue that does not spread.
        """
        if first.remaining.after[self.step] is None:
            self.advance()
        else:
            self.rank = self._rank(first)  # a slot with more leases stays the best one

    def enter(self, slot_info: SlotInfo) -> None:
        """Add a slot whose capacity has changed, so that the request fits on it now. The slot is not `first`. If its
        rank is smaller than the rank of `first`, it becomes the new `first`.
        """
        rank = self._rank(slot_info)
        if rank < self.rank:
            if self.first is not None:
                heappush(self.entered, self.rank)
            self.first, self.rank = slot_info, rank
        else:
            heappush(self.entered, rank)

    def advance(self) -> None:
        """Make the best of the other slots the new `first`. The former one is full, was removed from the index, or has
        an entry in the queue again.
        """
        others, entered, slot_infos, slot_classes = self.others, self.entered, self.slot_infos, self.slot_classes
        step, spreads = self.step, self.spreads
        while others or entered:
            rank = heappop(entered) if entered and not (others and others[-1] < entered[0]) else others.pop()
            slot_info = slot_infos.get(rank % LEASE)
            if slot_info is None or slot_info.slot_class not in slot_classes:
                continue
            # Speed: this is `_rank` without the call. Most entries are examined only here.
            remaining: RemainingCapacity = slot_info.remaining
            present = slot_info.order + (remaining.leases if spreads else -remaining.leases)
            if present == rank and remaining.after[step] is not None:
                self.first, self.rank = slot_info, rank
                return
        self.first, self.rank = None, NO_RANK

    def find_except(self, declined: Collection[str]) -> tuple[Rank, SlotInfo] | None:
        """Return (rank, slot) of the best slot of the queue whose id is not in `declined`; None if the queue has no
        such slot.
        """
        self.catch_up()
        able = (
            each
            for slot_class in self.slot_classes
            for each in slot_class.slot_infos
            if each.slot_class is slot_class  # it was not removed
            and each.slot.id not in declined
            and each.remaining.after[self.step] is not None
        )
        return min(((self._rank(slot_info), slot_info) for slot_info in able), default=None, key=itemgetter(0))

    def _rank(self, slot_info: SlotInfo) -> Rank:
        leases: int = slot_info.remaining.leases
        return slot_info.order + (leases if self.spreads else -leases)


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
        # Speed: most slots are unchanged since the cycle began, and share their keys (`find_marks`) with other slots.
        # Shared keys are looked up by identity, because hashing them takes as long as all other work here.
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
