"""Lines: in which places stand by how good they are, and what makes places alike.

Places with the same pool and labels are of one kind, those with as much left and as many leases have the same stock.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from scheduler.model.labels import Labels
from scheduler.model.resources import Resources, fits, subtract
from scheduler.policy.needs import Step

if TYPE_CHECKING:
    from scheduler.policy.places import Place

Entry = tuple[float, int, int, "Stock", "Place"]
"""In a line: how good a place is, its order, the number of the stock that it had then, that stock and the place."""


@dataclass(slots=True, eq=False)
class Stock:
    """What a place still has to give; one object for all that are alike in it."""

    number: int
    free: Resources | None
    load: int
    uses_left: float
    most: float
    after: "_After" = field(init=False)
    """What is left when so much is taken; None where it has not got so much."""
    runs: dict[Step, tuple[int, "Stock"]] = field(default_factory=dict)
    """How often so much may be taken, and what is left then, where that was asked for."""

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
        after = None
        if before.can_give(step):
            free = None if before.free is None else subtract(before.free, step.amounts)
            after = self.stocks.find(free, before.load + 1, before.uses_left - 1, before.most)
        self[step] = after
        return after


class Stocks:
    """All that places have had to give so far."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Stock] = {}

    def find(self, free: Resources | None, load: int, uses_left: float, most: float) -> Stock:
        """The one for all that are alike in this."""
        key = (None if free is None else tuple(free.items()), load, uses_left, most)
        stock = self._known.get(key)
        if stock is None:
            stock = self._known[key] = Stock(len(self._known), free, load, uses_left, most)
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


@dataclass(slots=True, eq=False)
class Line:
    """Places that could hold one need and are as good by their labels: those with most leases first (with fewest if
    it `spreads`), then in slot order.

    An entry counts for nothing once its place has another stock. The first place has none: where it is filled further
    it stays the first one, so that those who fill it need not tell the line.
    """

    step: Step
    """How much is asked."""
    spreads: bool
    first: "Place | None" = None
    """No worse than all others; where it has no longer enough it is passed over. None where nobody has."""
    changed: list[Entry] = field(default_factory=list)
    """Others that came since the line was opened, as a heap."""
    untouched: list[Entry] = field(default_factory=list)
    """Others that were there when it was opened, the best one last."""
    untold: dict["Place", None] = field(default_factory=dict)
    """Those that have another stock of which it was not told yet: many change often and are not looked for again."""

    def catch_up(self) -> None:
        """Hear of those; before each search."""
        for place in self.untold:
            if place.stock is None:
                continue
            left = place.stock.after
            if self.first is place:
                self.tell_of_first(left)
            elif left[self.step] is not None:
                self.tell(place)
        self.untold.clear()

    def open(self, entries: list[Entry]) -> None:
        """Let these stand in it, before all others; each of them has enough."""
        self.untouched = sorted(entries, reverse=True)
        self.first = self._next()

    def rank(self, stock: Stock) -> float:
        """How good a stock is: less is better."""
        return stock.load if self.spreads else -stock.load

    def tell(self, place: "Place") -> None:
        """A place that has enough and is not the first one has come, or has another stock now."""
        first = self.first
        if first is None:
            self.first = place
        elif self.is_before(place, first):
            self.first = place
            heappush(self.changed, self._enter(first))
        else:
            heappush(self.changed, self._enter(place))

    def tell_of_first(self, left: "_After") -> None:
        """The first one has less good a stock now, of which this is left."""
        if self.first is not None and left[self.step] is not None:
            heappush(self.changed, self._enter(self.first))
        self.first = self._next()

    def is_before(self, place: "Place", other: "Place") -> bool:
        """Whether that place is better than the other one."""
        load, other_load = place.stock.load, other.stock.load
        if load == other_load:
            return place.order < other.order
        return (load < other_load) is self.spreads

    def pass_over_first(self) -> "Place | None":
        """The first one has left, or has no longer enough: the next one is it."""
        self.first = self._next()
        return self.first

    def find_but(self, declined: Collection[str]) -> "Place | None":
        """The best place that was not declined."""
        places = [place for *_, stock, place in (*self.changed, *self.untouched) if place.stock is stock]
        if self.first is not None:
            places.append(self.first)
        able = [place for place in places if place.slot.id not in declined and place.stock.after[self.step] is not None]
        return min(able, key=self._enter, default=None)

    def _enter(self, place: "Place") -> Entry:
        stock = place.stock
        return (self.rank(stock), place.order, stock.number, stock, place)

    def _next(self) -> "Place | None":
        changed, untouched = self.changed, self.untouched
        while changed or untouched:
            is_changed = changed and (not untouched or changed[0] < untouched[-1])
            entry = heappop(changed) if is_changed else untouched.pop()
            if entry[4].stock is entry[3]:
                return entry[4]
        return None
