"""Candidate queues: the slots on which one kind of request fits, with the best slot first.

Slots with the same pool and labels have the same `SlotClass`, and stand in the queues of that class.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from operator import itemgetter
from typing import Final

from scheduler.model.resources import Labels
from scheduler.policy.capacity.fits import LEASE, Amounts, Rank, RemainingCapacity
from scheduler.policy.capacity.slot_info import SlotInfo

NO_RANK: Final[Rank] = 1 << 96
"""A rank behind the ranks of all slots."""


@dataclass(slots=True, eq=False)
class SlotClass:
    """The slots of one pool with equal labels, and the queues of requests for which they are candidates."""

    pool: str
    labels: Labels
    slot_infos: list[SlotInfo] = field(default_factory=list)
    """All slots that were added to the class; some may have been removed from the index since."""
    candidate_queues: list["CandidateQueue"] = field(default_factory=list)
    has_removed: bool = False
    """Whether `slot_infos` still contains a slot that was removed from the index."""
    changed: list[SlotInfo] = field(default_factory=list)
    """Slots whose capacity changed other than by one new lease, one entry for each change. Queues read it before a
    search.
    """


@dataclass(slots=True, eq=False)
class CandidateQueue:
    """Slots on which one kind of request fits and whose labels are equally good: those with most leases first (with
    fewest if it `spreads`), then in slot order.

    The request fits on `first`. An entry in `others` or `entered` is outdated once its slot has another number of
    leases. `first` has no entry: it stays first while it is filled, so that it is not pushed again.
    """

    step: Amounts
    """The amounts of one instance of the requests that use this queue."""
    spreads: bool
    slot_classes: Collection[SlotClass]
    """The slot classes whose slots stand in the queue."""
    slot_infos: Mapping[int, SlotInfo]
    """All slots of the index, by slot order."""
    first: SlotInfo | None = None
    """The best slot of the queue; None if the request fits on no slot."""
    rank: Rank = NO_RANK
    """The rank of the best slot, `first`."""
    others: list[Rank] = field(default_factory=list)
    """The ranks of the slots behind the best one when the queue was filled, greatest first."""
    entered: list[Rank] = field(default_factory=list)
    """A heap of the ranks of slots that came behind the best one since.

    Speed: to take the last entry of a list costs a tenth of taking one out of a heap with thousands of slots.
    """
    read: dict[SlotClass, int] = field(default_factory=dict)
    """By slot class: how many of the class's changes the queue has read."""
    read_at: int = 0
    """The number of changes of slots that the index had counted when the queue last read them."""

    def catch_up(self) -> int:
        """Read the changes of slots since the last search of this queue. Return the number of slots examined."""
        if any(len(each.changed) - self.read[each] > len(each.slot_infos) for each in self.slot_classes):
            self.open()
            return sum(len(each.slot_infos) for each in self.slot_classes)
        count = 0
        for slot_class in self.slot_classes:
            for slot_info in dict.fromkeys(slot_class.changed[self.read[slot_class] :]):
                count += 1
                if slot_info.slot_class is not slot_class:
                    continue  # it was removed, or has other labels now
                if slot_info is self.first:
                    self.update(slot_info)
                elif slot_info.remaining.after[self.step] is not None:  # speed: `update` without the call
                    self.enter(slot_info)
            self.read[slot_class] = len(slot_class.changed)
        if self.first is not None and self.first.slot_class not in self.slot_classes:
            self.advance()
        return count

    def open(self) -> None:
        """Fill the candidate queue with all slots on which the request fits."""
        self.read = {slot_class: len(slot_class.changed) for slot_class in self.slot_classes}
        for slot_class in self.slot_classes:
            if slot_class.has_removed:
                slot_class.has_removed = False
                slot_class.slot_infos = [each for each in slot_class.slot_infos if each.slot_class is slot_class]
        slot_infos = [slot_info for slot_class in self.slot_classes for slot_info in slot_class.slot_infos]
        # Speed: slots with the same capacity left share one object, so that few are looked up.
        capacities: set[RemainingCapacity] = {each.remaining for each in slot_infos}
        able = {each: each.leases if self.spreads else -each.leases for each in capacities if each.after[self.step]}
        self.others = [each.order + able[each.remaining] for each in slot_infos if each.remaining in able]
        self.others.sort(reverse=True)
        self.entered = []
        self.advance()

    def update(self, first: SlotInfo) -> None:
        """Note that the remaining capacity of `first`, the best slot of the queue, has changed."""
        if first.remaining.after[self.step] is not None:
            heappush(self.entered, self._rank(first))
        self.advance()

    def enter(self, slot_info: SlotInfo) -> None:
        """Add a slot other than `first` that changed and can take the request."""
        rank = self._rank(slot_info)
        if rank < self.rank:
            if self.first is not None:
                heappush(self.entered, self.rank)
            self.first, self.rank = slot_info, rank
        else:
            heappush(self.entered, rank)

    def advance(self) -> None:
        """Replace `first` by the best other slot, because `first` is full, was removed or was pushed again."""
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
        """Return the best slot of the queue that was not declined, with its rank."""
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
