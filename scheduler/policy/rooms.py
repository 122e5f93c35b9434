"""Rooms: the places that may take instances, so kept that finding one does not look at all of them.

Places stand in lines, where the best one is first; a line is shared by all needs that ask for as much of the same pools
and labels. Giving a lease gives one place another stock, of which the lines are told that it still has enough for. So
the cost of a tick grows with the number of different places and needs, and with the leases that are given, not with
slots × reservations.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from operator import attrgetter
from typing import TypeVar

from scheduler.policy.lines import LEASE, Kind, Line, Stock, Stocks, find_best_but
from scheduler.policy.needs import Need, Step
from scheduler.policy.places import Place

Key = tuple[object, ...]
Given = TypeVar("Given")
_RANK = attrgetter("rank")

PLACES_A_STEP = 100
"""So many places are added up in the time that taking one takes."""
CHANGES_A_STEP = 3
"""So many changes are read in the same time."""
MOST_LINES = 8
"""So many lines are looked at for one need; more kinds that are as good share one."""


class Rooms:
    """The places that may take instances in this tick; `find` chooses one, `take` spends its room."""

    def __init__(self, places: Iterable[Place] = ()) -> None:
        self._places: dict[int, Place] = {}
        """By order."""
        self._kinds: dict[Key, Kind] = {}
        self._kinds_of_pool: dict[str, list[Kind]] = {}
        self._stocks = Stocks()
        self._lines: dict[Key, Line] = {}
        self._tiers: dict[Need, list[list[Line]]] = {}
        """Where each need looks: lines of kinds with its labels, those with most preferred and then fewest surplus
        labels first, equally good ones together.
        """
        self.changes = 0
        """How many changes of stocks lines have to read before they are searched."""
        self.steps = 0
        """Work that searches for several instances at once have taken (`policy/turns.py`)."""
        for place in places:
            self._stand(place)

    def add(self, place: Place, need: Need | None = None) -> None:
        """Let searches find this place, where there is a need: what it leaves of it, as if it was taken at once."""
        self._stand(place)
        if need is not None:
            after = place.stock.after[need.steps[place.kind.pool]]
            assert after is not None, "what is added for a need has room for it"  # noqa: S101
            place.given += 1
            place.free, place.stock = after.free, after
        self._note(place.kind, place)

    def _note(self, kind: Kind, place: Place) -> None:
        """Lines read of this change before their next search."""
        kind.changed.append(place)
        self.changes += 1
        self.steps += 1

    def _stand(self, place: Place) -> None:
        """It is there, before any line is told of it."""
        self._places[place.order] = place
        kind_mark, stock_mark = place.find_marks()
        kind = place.kind = self._kinds.get(kind_mark) or self._open_kind(kind_mark, place)
        kind.places.append(place)
        stock = place.stock = self._stocks.find(stock_mark, place.free)
        place.free = stock.free

    def remove(self, place: Place) -> None:
        """Let no search find this place any more."""
        del self._places[place.order]
        kind, place.kind, place.stock = place.kind, None, None
        kind.some_left = True
        self._note(kind, place)

    def __len__(self) -> int:
        return len(self._places)

    def has(self, place: Place) -> bool:
        """Whether searches may find this place."""
        return place.order in self._places

    def regroup(self, place: Place) -> None:
        """What is free there changed otherwise than by `take`: let searches find it as it now is. The next search of
        each line hears of it, so that a place may change often among many different needs.
        """
        stock = self._stocks.find(place.make_stock_mark(), place.free)
        if stock is place.stock:
            return
        self._put(place, stock)

    def list_places(self) -> Iterator[Place]:
        """Every place, in no particular order."""
        return iter(self._places.values())

    def find(self, need: Need, declined: Collection[str] = ()) -> Place | None:
        """The place for one instance; None when nothing has room."""
        tiers = self._tiers.get(need)
        if tiers is None:
            tiers = self._rank(need)
        if declined:
            return next((found for lines in tiers if (found := find_best_but(lines, declined)) is not None), None)
        for lines in tiers:
            if (best := self._find_best(lines).first) is not None:
                return best
        return None

    def _find_best(self, lines: list[Line]) -> Line:
        """The one of these, which rank alike, with the best first place; one without any where none has."""
        if self.changes:
            self._catch_up(lines)
        return lines[0] if len(lines) == 1 else min(lines, key=_RANK)

    def _catch_up(self, lines: list[Line]) -> None:
        for line in lines:
            if line.read_at != self.changes:
                self.steps += line.catch_up() // CHANGES_A_STEP
                line.read_at = self.changes

    def take(self, place: Place, need: Need) -> None:
        """Spend the room of one instance there."""
        after = place.stock.after[need.steps[place.kind.pool]]
        assert after is not None, "only what a search has found is taken"  # noqa: S101
        self._spend(place, after)

    def take_often(self, place: Place, need: Need, most: int) -> int:
        """Spend the room of up to so many instances there, at least one; how many it took."""
        if most == 1:
            self.take(place, need)
            return 1
        before: Stock = place.stock
        count, stock = before.take_often(need.steps[place.kind.pool], most)
        place.given += count
        self._put(place, stock)
        return count

    def take_each(self, need: Need, give: Callable[[Place], Given]) -> Iterator[Given]:
        """What each lease gets of the places that one `find` and `take` after the other would find, as long as there is
        room; only where in between others take room and nobody gives any back: what has none is not looked at again.
        """
        known, given = None, None
        for lines in self._tiers.get(need) or self._rank(need):
            [best, *others] = lines
            while True:
                if self.changes:
                    self._catch_up(lines)
                line = best  # what `_find_best` does, spelt out: a call of it for each lease costs a tenth
                for other in others:
                    if other.rank < line.rank:
                        line = other
                place = line.first
                if place is None:
                    break
                self._spend(place, place.stock.after[line.step])
                if place is not known:
                    known, given = place, give(place)
                yield given  # type: ignore[misc]  # it was given at the first place

    def _spend(self, place: Place, after: Stock) -> None:
        """One more instance is there, which leaves this."""
        place.given += 1
        place.free, place.stock, left = after.free, after, after.after
        for line in place.kind.lines:
            if line.first is place:
                if left[line.step] is None:
                    line.pass_over_first()
                elif line.spreads:
                    line.tell(place)
                else:
                    line.rank -= LEASE
            elif left[line.step] is not None:
                line.enter(place)

    def take_run(self, need: Need, most: int) -> list[tuple[Place, int]]:
        """What so many times `find` and `take` would find, for a need that does not spread: how often each place.

        Who has taken a place finds it again until it is full: none has more leases. Fewer where room ends.
        """
        runs: list[tuple[Place, int]] = []
        while most > 0 and (place := self.find(need)) is not None:
            given = self.take_often(place, need, most)
            runs.append((place, given))
            most -= given
            place.wanted = True
        return runs

    def count_room(self, need: Need, most: int) -> int:
        """How many instances of this need all places have room for, each place by itself; up to `most`."""
        left = most
        known: dict[Stock, int] = {}
        for pool, step in need.steps.items():
            for kind in self._kinds_of_pool.get(pool, ()):
                if need.rank_labels(kind.labels) is None:
                    continue
                self.steps += 1 + len(kind.places) // PLACES_A_STEP
                for place in kind.places:
                    if place.kind is kind:
                        stock: Stock = place.stock
                        if stock not in known:
                            known[stock], _ = stock.take_often(step, most)
                        left -= known[stock]
                        if left <= 0:
                            return most
        return most - left

    def put_back(self, place: Place, stock: Stock, count: int) -> None:
        """Undo what was taken there last, so often."""
        place.given -= count
        self._put(place, stock)

    def close(self) -> None:
        """Nothing is looked for any more: what knows each other forgets it, and leaves no work to the collector."""
        self._stocks.close()
        for kind in self._kinds.values():
            kind.places.clear()
            kind.changed.clear()
            kind.lines.clear()

    def _put(self, place: Place, stock: Stock) -> None:
        """From now on that place has this stock: the lines that it stands in read of it before their next search."""
        place.free, place.stock = stock.free, stock
        self._note(place.kind, place)

    def _open_kind(self, mark: Key, place: Place) -> Kind:
        kind = self._kinds[mark] = Kind(len(self._kinds), place.slot.pool, place.labels)
        self._kinds_of_pool.setdefault(kind.pool, []).append(kind)
        self._tiers.clear()
        return kind

    def _rank(self, need: Need) -> list[list[Line]]:
        """Where that need looks, from now on until there is one more kind."""
        kinds = [kind for pool in need.steps for kind in self._kinds_of_pool.get(pool, ())]
        tiers = self._tiers[need] = []
        for alike in _rank_kinds(need, kinds):
            shared = _group_by_step(need, alike) if len(alike) > MOST_LINES else [[kind] for kind in alike]
            tiers.append([self._open_line(need, each) for each in shared])
        return tiers

    def _open_line(self, need: Need, kinds: list[Kind]) -> Line:
        """One for all that ask for as much of these kinds."""
        step = need.steps[kinds[0].pool]
        key = (need.spreads, step, *[kind.number for kind in kinds])
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = Line(step, need.spreads, frozenset(kinds), self._places)
            for kind in kinds:
                kind.lines.append(line)
            line.open()
            line.read_at = self.changes
        return line


def _group_by_step(need: Need, kinds: Iterable[Kind]) -> Iterable[list[Kind]]:
    found: dict[Step, list[Kind]] = {}
    for kind in kinds:
        found.setdefault(need.steps[kind.pool], []).append(kind)
    return found.values()


def _rank_kinds(need: Need, kinds: Iterable[Kind]) -> Iterable[list[Kind]]:
    """The kinds that have its labels, equally good ones together: most preferred first, then fewest surplus ones."""
    found: dict[tuple[int, int], list[Kind]] = {}
    for kind in kinds:
        rank = need.rank_labels(kind.labels)
        if rank is not None:
            found.setdefault(rank, []).append(kind)
    return [found[rank] for rank in sorted(found)]
