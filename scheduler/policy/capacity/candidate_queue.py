"""Candidate queues: the slots on which one kind of request fits, best slot first. The capacity that a slot has left
decides whether the request fits, and the number of its leases decides its rank.

Slots with the same pool and labels have the same `SlotClass`, and stand in the queues of that class. Slots with the
same amounts left and the same number of leases share one `RemainingCapacity`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import inf
from operator import itemgetter
from typing import Any, Final

from scheduler.model.resources import Labels, Resources, subtract
from scheduler.policy.capacity.fits import find_obstacle
from scheduler.policy.capacity.requests import Amounts
from scheduler.policy.capacity.slot_info import Mark, SlotInfo

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

    def can_give(self, step: Amounts) -> bool:
        """Return whether one more lease of these amounts fits into this remaining capacity of a slot."""
        return find_obstacle(step.amounts, self.free, self.most - self.load, self.uses_left) is None

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
        after = self[step] = self.capacities.find_after(before, step.amounts) if before.can_give(step) else None
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
    if opened is None or slot_info.given or slot_info.lifted or slot_info.labels is not opened.slot_info.labels:
        return _make_class_mark(slot_info), make_capacity_mark(slot_info)
    if slot_info.leases is not opened.slot_info.leases or slot_info.free is not opened.slot_info.free:
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
