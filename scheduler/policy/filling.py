"""Filling: a place for each instance of a reservation in rooms, all of them or none."""

from collections.abc import Callable, Collection, Sequence
from typing import Final

from scheduler.policy.lines import Stock
from scheduler.policy.needs import Demand, Likeness, Need
from scheduler.policy.places import Place
from scheduler.policy.rooms import Rooms

MANY: Final = 100
"""From so many instances on it is worth while to add up room before places are taken."""
Extend = Callable[[Need], Place | None]
_Find = Callable[[Sequence[Rooms], Need, Collection[str]], tuple[Rooms, Place | None]]
_Taken = list[tuple[Rooms, Place, Stock, int]]
"""In which rooms a place was taken, what it had before, and how often."""


class Shortage:
    """How many instances had room at most, where nobody gives any back: more of their like never find any.

    So most gangs that do not fit are known without being tried.
    """

    def __init__(self) -> None:
        self._most: dict[Likeness, int] = {}

    def clear(self) -> None:
        """Somebody gave room back."""
        self._most.clear()

    def holds_for(self, demand: Demand) -> bool:
        """Whether it is known that not all its instances have room."""
        most = self._most
        return any(likeness in most and count > most[likeness] for likeness, count in demand.alike)

    def note(self, demand: Demand, found: int) -> None:
        """So many of its instances, from the first one on, had room, and the next one had none."""
        likeness, _ = demand.alike[0]
        if not demand.declined and (len(demand.alike) == 1 or demand.needs[found] is demand.needs[0]):
            self._most[likeness] = min(found, self._most.get(likeness, found))


def fill(
    demand: Demand, rooms: Sequence[Rooms], extend: Extend | None = None, shortage: Shortage | None = None
) -> list[Place] | None:
    """A place for each of its instances, its room spent; or None, and nothing is spent: all of them or none.

    Rooms are tried in the order given; where none has room, `extend` may add a place to the last of them, and more
    until all its instances will find room once everything is ready. `shortage`: what is known of exactly these rooms.
    """
    if len(demand.needs) == 1:
        return _fill_one(demand, rooms, extend)
    taken = _take(demand, rooms, extend, shortage)
    if taken is None:
        return None
    for _, place, _, _ in taken:
        place.wanted = True
    return [place for _, place, _, count in taken for _ in range(count)]


def _fill_one(demand: Demand, rooms: Sequence[Rooms], extend: Extend | None) -> list[Place] | None:
    """The same for a single instance, as almost all are: there is nothing to undo."""
    need, declined = demand.needs[0], demand.declined
    for holder in rooms:
        place = holder.find(need, declined)
        if place is not None:
            break
    else:
        place = extend(need) if extend is not None else None
        if place is None:
            return None
    holder.take(place, need)
    place.wanted = True
    return [place]


def has_room(
    demand: Demand, rooms: Sequence[Rooms], shortage: Shortage | None = None, extend: Extend | None = None
) -> bool:
    """Whether `fill` would find a place for each of its instances; nothing is spent, but what `extend` adds stays."""
    taken = _take(demand, rooms, extend, shortage)
    if taken is None:
        return False
    _undo(taken)
    return True


def has_room_for_some(demand: Demand, rooms: Sequence[Rooms]) -> bool:
    """Whether one of its instances, if it were alone, would find a place."""
    return any(_find_in(rooms, need, demand.declined)[1] is not None for need in dict.fromkeys(demand.needs))


def _take(demand: Demand, rooms: Sequence[Rooms], extend: Extend | None, shortage: Shortage | None) -> _Taken | None:
    before = len(rooms[-1])
    taken = _take_all(demand, rooms, extend, shortage)
    if taken is not None and len(rooms[-1]) > before and len(demand.alike) > 1:
        taken = _take_together(demand, rooms, extend, taken)
    return taken


def _take_together(demand: Demand, rooms: Sequence[Rooms], extend: Extend | None, taken: _Taken) -> _Taken | None:
    """These places, or others with more that `extend` adds, where all its instances find room when the rooms are one,
    as soon as everything in them is ready: each takes the best place then, and may take it from another. None, with
    nothing spent, where that cannot be.
    """
    for _ in demand.needs:
        spent = [place.stock for _, place, _, _ in taken]
        _undo(taken)
        together = _take_all(demand, rooms, None, None, _find_best_in)
        if together is not None:
            _undo(together)
            for (holder, place, _, count), stock in zip(taken, spent, strict=True):
                holder.put_back(place, stock, -count)
            return taken
        more = _take_all(demand, rooms, extend, None, _find_best_in)
        if more is None:
            return None
        taken = more
    _undo(taken)
    return None


def _take_all(
    demand: Demand, rooms: Sequence[Rooms], extend: Extend | None, shortage: Shortage | None, find: _Find | None = None
) -> _Taken | None:
    if shortage is not None and shortage.holds_for(demand):
        return None
    taken: _Taken = []
    if extend is None and len(demand.needs) >= MANY and not _could_hold(demand, rooms, shortage):
        return None
    for need, left in demand.runs:
        while left:
            holder, place = (find or _find_in)(rooms, need, demand.declined)
            if place is None and extend is not None:
                place = extend(need)
            if place is None:
                _undo(taken)
                if shortage is not None:
                    shortage.note(demand, sum(count for *_, count in taken))
                return None
            # Who has taken a place finds it again until it is full, unless they spread.
            stock = place.stock
            count = holder.take_often(place, need, 1 if need.spreads else left)
            taken.append((holder, place, stock, count))
            left -= count  # noqa: PLW2901  it counts down what is left of this run
    return taken


def _could_hold(demand: Demand, rooms: Sequence[Rooms], shortage: Shortage | None) -> bool:
    """Whether the instances of each run would have room if they were alone: a sum over the places, with nothing taken.
    Most large gangs that do not fit are known by it.
    """
    for need, count in demand.runs:
        most = sum(each.count_room(need, count) for each in rooms)
        if most < count:
            if shortage is not None and len(demand.runs) == 1:
                shortage.note(demand, most)
            return False
    return True


def _undo(taken: _Taken) -> None:
    for holder, place, stock, count in reversed(taken):
        holder.put_back(place, stock, count)


def _find_in(rooms: Sequence[Rooms], need: Need, declined: Collection[str]) -> tuple[Rooms, Place | None]:
    for each in rooms:
        place = each.find(need, declined)
        if place is not None:
            return each, place
    return rooms[-1], None


def _find_best_in(rooms: Sequence[Rooms], need: Need, declined: Collection[str]) -> tuple[Rooms, Place | None]:
    """The best of all of them, whichever comes first."""
    found = [(each, place) for each in rooms if (place := each.find(need, declined)) is not None]
    return min(found, key=lambda each: _rank_place(need, each[1]), default=(rooms[-1], None))


def _rank_place(need: Need, place: Place) -> tuple[object, int, int]:
    """How good it is for that need: less is better."""
    return need.rank_labels(place.labels), place.load if need.spreads else -place.load, place.order
