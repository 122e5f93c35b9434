"""Lines: in which places stand by how good they are, and what makes places alike.

Places with the same pool and labels are of one kind, those with as much left and as many leases have the same stock.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, Final

from scheduler.model.labels import Labels
from scheduler.model.resources import Resources, fits, subtract
from scheduler.policy.needs import Step

if TYPE_CHECKING:
    from scheduler.policy.places import Mark, Place

Rank = int
"""How good a place is in a line: less is better. Leases come first, then the order, which is less than LEASE."""
LEASE: Final[Rank] = 1 << 48
"""What one lease more or less counts: more than the order of any place."""
NOBODY: Final[Rank] = 1 << 96
"""Worse than any place."""


@dataclass(slots=True, eq=False)
class Stock:
    """What a place still has to give; one object for all that are alike in it."""

    free: Resources | None
    load: int
    uses_left: float
    most: float
    leases: Rank = field(init=False)
    """What its load adds to a rank, or takes from it."""
    after: "_After" = field(init=False)
    """What is left when so much is taken; None where it has not got so much."""
    runs: dict[Step, tuple[int, "Stock"]] = field(default_factory=dict)
    """How often so much may be taken, and what is left then, where that was asked for."""

    def __post_init__(self) -> None:
        self.leases = self.load * LEASE

    def can_give(self, step: Step) -> bool:
        """Whether one more lease, of so much, may be taken."""
        has_place = self.load < self.most and self.uses_left > 0
        return has_place and (self.free is None or fits(step.amounts, self.free))

    def take_often(self, step: Step, most: int) -> tuple[int, "Stock"]:
        """How many such leases may be taken one after the other, up to so many, and what is left then."""
        known = self.runs.get(step)
        if known is not None and known[0] <= most:
            return known
        given, stock = 0, self
        while given < most and (after := stock.after[step]) is not None:
            given, stock = given + 1, after
        if given < most:
            self.runs[step] = given, stock
        return given, stock


class _After(dict[Step, Stock | None]):
    """Worked out when it is asked for the first time."""

    __slots__ = ("stock", "stocks")
    stock: Stock
    stocks: "Stocks"

    def __missing__(self, step: Step) -> Stock | None:
        before = self.stock
        after = self[step] = self.stocks.find_after(before, step.amounts) if before.can_give(step) else None
        return after


class Stocks:
    """All that places have had to give so far."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Stock] = {}

    def find(self, mark: "Mark", free: Resources | None) -> Stock:
        """The one for all places with this mark, that have this left."""
        return self._known.get(mark) or self._add(mark, free)

    def find_after(self, before: Stock, amounts: Resources) -> Stock:
        """The one that is left when one lease of so much is taken."""
        free = None if before.free is None else subtract(before.free, amounts)
        amount = None if free is None else tuple(free.items())
        mark = (amount, before.load + 1, before.uses_left - 1, before.most)
        return self._known.get(mark) or self._add(mark, free)

    def _add(self, mark: tuple[Any, ...], free: Resources | None) -> Stock:
        _, load, uses_left, most = mark
        stock = self._known[mark] = Stock(free, load, uses_left, most)
        stock.after = _After()
        stock.after.stock, stock.after.stocks = stock, self
        return stock

    def close(self) -> None:
        """They know each other no longer: nothing is left for the garbage collector to find."""
        for stock in self._known.values():
            stock.after.clear()
            stock.runs.clear()


@dataclass(slots=True, eq=False)
class Kind:
    """The places of one pool with the same labels, and the lines in which those stand that have enough."""

    number: int
    pool: str
    labels: Labels
    places: list["Place"] = field(default_factory=list)
    """All that ever came; some may have left."""
    lines: list["Line"] = field(default_factory=list)
    some_left: bool = False
    """Whether any has since they were last gone through."""
    changed: list["Place"] = field(default_factory=list)
    """Each place whose stock changed otherwise than by one lease, once for each change: lines read it when they are
    asked, so that a change costs the same however many different needs there are.
    """

    def forget_those_who_left(self) -> None:
        """Before a line opens."""
        if self.some_left:
            self.places, self.some_left = [place for place in self.places if place.kind is self], False


@dataclass(slots=True, eq=False)
class Line:
    """Places that could hold one need and are as good by their labels: those with most leases first (with fewest if
    it `spreads`), then in slot order.

    The first one always has enough. An entry of another counts for nothing once its place has other leases. The first
    one has none: where it is filled further it stays the first, so that it is not entered again.
    """

    step: Step
    """How much is asked."""
    spreads: bool
    kinds: Collection[Kind]
    """Of the places that stand in it."""
    places: Mapping[int, "Place"]
    """All that searches may find, those of other lines too, by order."""
    first: "Place | None" = None
    """None where nobody has enough."""
    rank: Rank = NOBODY
    """Of the first one."""
    others: list[Rank] = field(default_factory=list)
    """Those of all others, as a heap."""
    read: dict[Kind, int] = field(default_factory=dict)
    """How many of the changes of each kind it has read."""
    read_at: int = 0
    """The number of changes in all rooms when it read them last."""

    def catch_up(self) -> int:
        """Read the changes since the last time; before each search. How many places were looked at."""
        if any(len(kind.changed) - self.read[kind] > len(kind.places) for kind in self.kinds):
            self.open()
            return sum(len(kind.places) for kind in self.kinds)
        count = 0
        for kind in self.kinds:
            for place in dict.fromkeys(kind.changed[self.read[kind] :]):
                count += 1
                if self._has(place):
                    self.tell(place)
            self.read[kind] = len(kind.changed)
        if self.first is not None and not self._has(self.first):
            self.pass_over_first()
        return count

    def _has(self, place: "Place") -> bool:
        return self.places.get(place.order) is place and place.kind in self.kinds

    def open(self) -> None:
        """Let all stand in it that have enough."""
        self.read = {kind: len(kind.changed) for kind in self.kinds}
        for kind in self.kinds:
            kind.forget_those_who_left()
        places = [place for kind in self.kinds for place in kind.places]
        stocks: set[Stock] = {place.stock for place in places}
        able = {stock: stock.leases if self.spreads else -stock.leases for stock in stocks if stock.after[self.step]}
        self.others = [place.order + able[place.stock] for place in places if place.stock in able]
        heapify(self.others)
        self.pass_over_first()

    def tell(self, place: "Place") -> None:
        """A place of these kinds has come, or has another stock now."""
        has_enough = place.stock.after[self.step] is not None
        if self.first is place:
            if has_enough:
                heappush(self.others, self._rank(place))
            self.pass_over_first()
        elif has_enough:
            self.enter(place)

    def enter(self, place: "Place") -> None:
        """One that is not the first one has enough, and has come or has another stock now."""
        rank = self._rank(place)
        if rank < self.rank:
            if self.first is not None:
                heappush(self.others, self.rank)
            self.first, self.rank = place, rank
        else:
            heappush(self.others, rank)

    def pass_over_first(self) -> None:
        """The first one has left, or has not enough, or was entered again: the best one is it."""
        others, places, kinds, step, spreads = self.others, self.places, self.kinds, self.step, self.spreads
        while others:
            rank = heappop(others)
            place = places.get(rank % LEASE)
            if place is None or place.kind not in kinds:
                continue
            stock: Stock = place.stock  # and `_rank`, spelt out: most of what is popped is looked at only here
            present = place.order + (stock.leases if spreads else -stock.leases)
            if present == rank and stock.after[step] is not None:
                self.first, self.rank = place, rank
                return
        self.first, self.rank = None, NOBODY

    def find_but(self, declined: Collection[str]) -> tuple[Rank, "Place"] | None:
        """The best place that was not declined, and its rank."""
        self.catch_up()
        there = (place for kind in self.kinds for place in kind.places if place.kind is kind)
        able = (place for place in there if place.slot.id not in declined and place.stock.after[self.step] is not None)
        return min(((self._rank(place), place) for place in able), default=None, key=lambda each: each[0])

    def _rank(self, place: "Place") -> Rank:
        leases: int = place.stock.leases
        return place.order + (leases if self.spreads else -leases)


def find_best_but(lines: Iterable[Line], declined: Collection[str]) -> "Place | None":
    """The best place in any of these lines, which all rank alike, that was not declined."""
    found = [best for line in lines if (best := line.find_but(declined)) is not None]
    return min(found, key=lambda each: each[0])[1] if found else None
