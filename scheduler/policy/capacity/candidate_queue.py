"""Lines: in which places stand by how good they are, and what makes places alike.

Places with the same pool and labels are of one kind, those with as much left and as many leases have the same stock.
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
"""How good a place is in a line: less is better. Leases come first, then the order, which is less than LEASE."""
LEASE: Final[Rank] = 1 << 48
"""What one lease more or less counts: more than the order of any place."""
NOBODY: Final[Rank] = 1 << 96
"""Worse than any place."""


@dataclass(slots=True, eq=False)
class RemainingCapacity:
    """What a place still has to give; one object for all that are alike in it."""

    free: Resources | None
    load: int
    uses_left: float
    most: float
    leases: Rank = field(init=False)
    """What its load adds to a rank, or takes from it."""
    after: "_After" = field(init=False)
    """What is left when so much is taken; None where it has not got so much."""
    runs: dict[Amounts, tuple[int, "RemainingCapacity"]] = field(default_factory=dict)
    """How often so much may be taken, and what is left then, where that was asked for."""

    def __post_init__(self) -> None:
        self.leases = self.load * LEASE

    def can_give(self, step: Amounts) -> bool:
        """Whether one more lease, of so much, may be taken."""
        return find_obstacle(step.amounts, self.free, self.most - self.load, self.uses_left) is None

    def take_often(self, step: Amounts, most: int) -> tuple[int, "RemainingCapacity"]:
        """How many such leases may be taken one after the other, up to so many, and what is left then."""
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
    """Worked out when it is asked for the first time."""

    __slots__ = ("capacities", "remaining")
    remaining: RemainingCapacity
    capacities: "RemainingCapacities"

    def __missing__(self, step: Amounts) -> RemainingCapacity | None:
        before = self.remaining
        after = self[step] = self.capacities.find_after(before, step.amounts) if before.can_give(step) else None
        return after


class RemainingCapacities:
    """All that places have had to give so far."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], RemainingCapacity] = {}

    def find(self, mark: "Mark", free: Resources | None) -> RemainingCapacity:
        """The one for all places with this mark, that have this left."""
        return self._known.get(mark) or self._add(mark, free)

    def find_after(self, before: RemainingCapacity, amounts: Resources) -> RemainingCapacity:
        """The one that is left when one lease of so much is taken."""
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
        """They know each other no longer: nothing is left for the garbage collector to find."""
        for remaining in self._known.values():
            remaining.after.clear()
            remaining.runs.clear()


@dataclass(slots=True, eq=False)
class SlotClass:
    """The places of one pool with the same labels, and the lines in which those stand that have enough."""

    number: int
    pool: str
    labels: Labels
    slot_infos: list["SlotInfo"] = field(default_factory=list)
    """All that ever came; some may have left."""
    candidate_queues: list["CandidateQueue"] = field(default_factory=list)
    some_left: bool = False
    """Whether any has since they were last gone through."""
    changed: list["SlotInfo"] = field(default_factory=list)
    """Each place whose stock changed otherwise than by one lease, once for each change: lines read it when they are
    asked, so that a change costs the same however many different needs there are.
    """

    def forget_those_who_left(self) -> None:
        """Before a line opens."""
        if self.some_left:
            self.slot_infos, self.some_left = (
                [slot_info for slot_info in self.slot_infos if slot_info.slot_class is self],
                False,
            )


@dataclass(slots=True, eq=False)
class CandidateQueue:
    """Places that could hold one need and are as good by their labels: those with most leases first (with fewest if
    it `spreads`), then in slot order.

    The first one always has enough. An entry of another counts for nothing once its place has other leases. The first
    one has none: where it is filled further it stays the first, so that it is not entered again.
    """

    step: Amounts
    """How much is asked."""
    spreads: bool
    slot_classes: Collection[SlotClass]
    """Of the places that stand in it."""
    slot_infos: Mapping[int, "SlotInfo"]
    """All that searches may find, those of other lines too, by order."""
    first: "SlotInfo | None" = None
    """None where nobody has enough."""
    rank: Rank = NOBODY
    """Of the first one."""
    others: list[Rank] = field(default_factory=list)
    """Those of all others, as a heap."""
    read: dict[SlotClass, int] = field(default_factory=dict)
    """How many of the changes of each kind it has read."""
    read_at: int = 0
    """The number of changes in all rooms when it read them last."""

    def catch_up(self) -> int:
        """Read the changes since the last time; before each search. How many places were looked at."""
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
                    self.tell(slot_info)
            self.read[slot_class] = len(slot_class.changed)
        if self.first is not None and not self._has(self.first):
            self.pass_over_first()
        return count

    def _has(self, slot_info: "SlotInfo") -> bool:
        return self.slot_infos.get(slot_info.order) is slot_info and slot_info.slot_class in self.slot_classes

    def open(self) -> None:
        """Let all stand in it that have enough."""
        self.read = {slot_class: len(slot_class.changed) for slot_class in self.slot_classes}
        for slot_class in self.slot_classes:
            slot_class.forget_those_who_left()
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
        self.pass_over_first()

    def tell(self, slot_info: "SlotInfo") -> None:
        """A place of these kinds has come, or has another stock now."""
        has_enough = slot_info.remaining.after[self.step] is not None
        if self.first is slot_info:
            if has_enough:
                heappush(self.others, self._rank(slot_info))
            self.pass_over_first()
        elif has_enough:
            self.enter(slot_info)

    def enter(self, slot_info: "SlotInfo") -> None:
        """One that is not the first one has enough, and has come or has another stock now."""
        rank = self._rank(slot_info)
        if rank < self.rank:
            if self.first is not None:
                heappush(self.others, self.rank)
            self.first, self.rank = slot_info, rank
        else:
            heappush(self.others, rank)

    def pass_over_first(self) -> None:
        """The first one has left, or has not enough, or was entered again: the best one is it."""
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
            remaining: RemainingCapacity = (
                slot_info.remaining
            )  # and `_rank`, spelt out: most of what is popped is looked at only here
            present = slot_info.order + (remaining.leases if spreads else -remaining.leases)
            if present == rank and remaining.after[step] is not None:
                self.first, self.rank = slot_info, rank
                return
        self.first, self.rank = None, NOBODY

    def find_but(self, declined: Collection[str]) -> tuple[Rank, "SlotInfo"] | None:
        """The best place that was not declined, and its rank."""
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


def find_best_but(candidate_queues: Iterable[CandidateQueue], declined: Collection[str]) -> "SlotInfo | None":
    """The best place in any of these lines, which all rank alike, that was not declined."""
    found = [best for candidates in candidate_queues if (best := candidates.find_but(declined)) is not None]
    return min(found, key=lambda each: each[0])[1] if found else None
