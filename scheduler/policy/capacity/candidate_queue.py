"""Candidate queues: slots in the order in which searches prefer them, and the classes that make slots alike.

Slots with the same pool and labels have the same `SlotClass`. Slots with the same amounts left and the same number of
leases share one `RemainingCapacity`.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, Final

from scheduler.model.labels import Labels
from scheduler.model.resources import Resources, subtract
from scheduler.policy.capacity.fits import find_obstacle
from scheduler.policy.capacity.requests import Amounts

if TYPE_CHECKING:
    from scheduler.policy.capacity.slot_info import Mark, SlotInfo

Rank = int
"""The position of a slot in a queue, less is better: first by leases, then by slot order (which is less than LEASE)."""
LEASE: Final[Rank] = 1 << 48
"""The part of a rank that one lease adds or removes: more than the order of any slot."""
NO_RANK: Final[Rank] = 1 << 96
"""Worse than the rank of any slot."""


@dataclass(slots=True, eq=False)
class RemainingCapacity:
    """What a slot can still take. Slots with equal values share one object, so that each answer is worked out once."""

    free: Resources | None
    load: int
    uses_left: float
    most: float
    leases: Rank = field(init=False)
    """The part of a rank that comes from `load`."""
    after: "_After" = field(init=False)
    """By amounts: what is left after one lease of these; None if the lease does not fit."""
    runs: dict[Amounts, tuple[int, "RemainingCapacity"]] = field(default_factory=dict)
    """By amounts: the number of such leases that fit, and what is left after them; filled by `take_often`."""

    def __post_init__(self) -> None:
        self.leases = self.load * LEASE

    def can_give(self, step: Amounts) -> bool:
        """Return whether one more lease of these amounts fits."""
        return find_obstacle(step.amounts, self.free, self.most - self.load, self.uses_left) is None

    def take_often(self, step: Amounts, most: int) -> tuple[int, "RemainingCapacity"]:
        """Return how many leases of these amounts fit, up to `most`, and what is left after them."""
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
    """A table that asks the rule of capacity once for each key."""

    __slots__ = ("capacities", "remaining")
    remaining: RemainingCapacity
    capacities: "RemainingCapacities"

    def __missing__(self, step: Amounts) -> RemainingCapacity | None:
        before = self.remaining
        after = self[step] = self.capacities.find_after(before, step.amounts) if before.can_give(step) else None
        return after


class RemainingCapacities:
    """The shared objects of one slot index."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], RemainingCapacity] = {}

    def find(self, mark: "Mark", free: Resources | None) -> RemainingCapacity:
        """Return the object for all slots with this mark and these free amounts."""
        return self._known.get(mark) or self._add(mark, free)

    def find_after(self, before: RemainingCapacity, amounts: Resources) -> RemainingCapacity:
        """Return the object for what is left after one more lease of these amounts."""
        free = None if before.free is None else subtract(before.free, amounts)
        amount = None if free is None else tuple(free.items())
        mark = (amount, before.load + 1, before.uses_left - 1, before.most)
        return self._known.get(mark) or self._add(mark, free)

    def _add(self, mark: tuple[Any, ...], free: Resources | None) -> RemainingCapacity:
        _, load, uses_left, most = mark
        remaining = self._known[mark] = RemainingCapacity(free, load, uses_left, most)
        remaining.after = _After()
        remaining.after.remaining, remaining.after.capacities = remaining, self
        return remaining

    def close(self) -> None:
        """Drop the references between the objects, so that they are freed without the garbage collector."""
        for remaining in self._known.values():
            remaining.after.clear()
            remaining.runs.clear()


@dataclass(slots=True, eq=False)
class SlotClass:
    """The slots of one pool with the same labels, and the queues that they are candidates in."""

    number: int
    pool: str
    labels: Labels
    slot_infos: list["SlotInfo"] = field(default_factory=list)
    """All slots that were added; some may have been removed."""
    candidate_queues: list["CandidateQueue"] = field(default_factory=list)
    has_removed: bool = False
    """Whether a slot was removed since `drop_removed` ran."""
    changed: list["SlotInfo"] = field(default_factory=list)
    """The slots whose remaining capacity changed otherwise than by one lease, once for each change. Queues read it
    before a search, so that the cost of a change does not grow with the number of different requests.
    """

    def drop_removed(self) -> None:
        """Drop removed slots from `slot_infos`."""
        if self.has_removed:
            self.slot_infos, self.has_removed = (
                [slot_info for slot_info in self.slot_infos if slot_info.slot_class is self],
                False,
            )


@dataclass(slots=True, eq=False)
class CandidateQueue:
    """Slots on which one kind of request fits and whose labels are equally good: those with most leases first (with
    fewest if it `spreads`), then in slot order.

    The request fits on `first`. An entry in `others` is stale once its slot has another number of leases. `first` has
    no entry: while it is filled further it stays first, so that it is not pushed again.
    """

    step: Amounts
    """The amounts of one instance."""
    spreads: bool
    slot_classes: Collection[SlotClass]
    """The classes of its slots."""
    slot_infos: Mapping[int, "SlotInfo"]
    """All slots of the index, by order."""
    first: "SlotInfo | None" = None
    """None if the request fits on no slot."""
    rank: Rank = NO_RANK
    """The rank of `first`."""
    others: list[Rank] = field(default_factory=list)
    """A heap of the ranks of the other slots."""
    read: dict[SlotClass, int] = field(default_factory=dict)
    """By class: how many of its changes were read."""
    read_at: int = 0
    """The number of changes in the index when they were last read."""

    def catch_up(self) -> int:
        """Read the changes since the last search; return the number of slots examined."""
        if any(
            len(slot_class.changed) - self.read[slot_class] > len(slot_class.slot_infos)
            for slot_class in self.slot_classes
        ):
            self.open()
            return sum(len(slot_class.slot_infos) for slot_class in self.slot_classes)
        count = 0
        for slot_class in self.slot_classes:
            for slot_info in dict.fromkeys(slot_class.changed[self.read[slot_class] :]):
                count += 1
                if self._has(slot_info):
                    self.update(slot_info)
            self.read[slot_class] = len(slot_class.changed)
        if self.first is not None and not self._has(self.first):
            self.advance()
        return count

    def _has(self, slot_info: "SlotInfo") -> bool:
        return self.slot_infos.get(slot_info.order) is slot_info and slot_info.slot_class in self.slot_classes

    def open(self) -> None:
        """Fill the queue with all slots on which the request fits."""
        self.read = {slot_class: len(slot_class.changed) for slot_class in self.slot_classes}
        for slot_class in self.slot_classes:
            slot_class.drop_removed()
        slot_infos = [slot_info for slot_class in self.slot_classes for slot_info in slot_class.slot_infos]
        capacities: set[RemainingCapacity] = {slot_info.remaining for slot_info in slot_infos}
        able = {
            remaining: remaining.leases if self.spreads else -remaining.leases
            for remaining in capacities
            if remaining.after[self.step]
        }
        self.others = [
            slot_info.order + able[slot_info.remaining] for slot_info in slot_infos if slot_info.remaining in able
        ]
        heapify(self.others)
        self.advance()

    def update(self, slot_info: "SlotInfo") -> None:
        """Note that a slot of these classes was added, or that its remaining capacity changed."""
        has_enough = slot_info.remaining.after[self.step] is not None
        if self.first is slot_info:
            if has_enough:
                heappush(self.others, self._rank(slot_info))
            self.advance()
        elif has_enough:
            self.enter(slot_info)

    def enter(self, slot_info: "SlotInfo") -> None:
        """Note that a slot that is not `first` has room for the request and was added or changed."""
        rank = self._rank(slot_info)
        if rank < self.rank:
            if self.first is not None:
                heappush(self.others, self.rank)
            self.first, self.rank = slot_info, rank
        else:
            heappush(self.others, rank)

    def advance(self) -> None:
        """Replace `first` by the best of the others, because it was removed, is full or was pushed again."""
        others, slot_infos, slot_classes, step, spreads = (
            self.others,
            self.slot_infos,
            self.slot_classes,
            self.step,
            self.spreads,
        )
        while others:
            rank = heappop(others)
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

    def find_except(self, declined: Collection[str]) -> tuple[Rank, "SlotInfo"] | None:
        """Return the best slot that was not declined, with its rank."""
        self.catch_up()
        there = (
            slot_info
            for slot_class in self.slot_classes
            for slot_info in slot_class.slot_infos
            if slot_info.slot_class is slot_class
        )
        able = (
            slot_info
            for slot_info in there
            if slot_info.slot.id not in declined and slot_info.remaining.after[self.step] is not None
        )
        return min(((self._rank(slot_info), slot_info) for slot_info in able), default=None, key=lambda each: each[0])

    def _rank(self, slot_info: "SlotInfo") -> Rank:
        leases: int = slot_info.remaining.leases
        return slot_info.order + (leases if self.spreads else -leases)


def find_best_except(candidate_queues: Iterable[CandidateQueue], declined: Collection[str]) -> "SlotInfo | None":
    """Return the best slot in any of these queues, whose labels are equally good, that was not declined."""
    found = [best for candidates in candidate_queues if (best := candidates.find_except(declined)) is not None]
    return min(found, key=lambda each: each[0])[1] if found else None
