"""Rooms: the places that may take instances, so kept that finding one does not look at all of them.

Alike places form a group: same pool, labels, free resources, number of leases. Each group stands in lines, where the
best place is first; a line is shared by all needs that ask for as much of the same pools and labels. Giving a lease
moves one place from one group to another and is told to the lines of that group. So the cost of a tick grows with the
number of different places and needs, and with the leases that are given, not with slots × reservations.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace
from itertools import groupby

from scheduler.model.labels import Labels
from scheduler.model.resources import Resources, fits, subtract
from scheduler.policy.needs import Demand, Need, Step
from scheduler.policy.places import Place

Key = tuple[object, ...]
Entry = tuple[float, int, int, int]
"""In a line: how good a place is, its order, the number of its group, and which of those that the group was made with
it is, or -1.
"""

MOST_LINES = 8
"""So many lines are looked at for one need; more kinds that are as good share one."""


@dataclass(slots=True, eq=False)
class Kind:
    """The groups of one pool with the same labels, and the lines in which those stand that have enough."""

    number: int
    pool: str
    labels: Labels
    groups: list["Group"] = field(default_factory=list)
    lines: list[tuple["Line", Step]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Group:
    """Places that are alike in all that a search looks at; they are known by their order."""

    number: int
    kind: Kind
    free: Resources | None
    load: int
    uses_left: float
    most: float
    group_at: dict[int, int]
    """By order of a place: the number of its group."""
    first_members: list[int] = field(default_factory=list)
    """Those that it was made with, in their order; some may have left. Each line goes through them by itself."""
    later_members: list[int] = field(default_factory=list)
    """Those that came from other groups; some may have left."""
    after: dict[Step, "Group"] = field(default_factory=dict)
    """Where a place of this group goes when so much is taken of it."""
    lines: list[tuple[list[Entry], float]] = field(default_factory=list)
    """The heaps of the lines that it stands in, and how good it is there."""

    @property
    def has_place(self) -> bool:
        """Whether its places may take one more lease, resources aside."""
        return self.load < self.most and self.uses_left > 0

    def can_give(self, step: Step) -> bool:
        """Whether its places may take one more lease, of so much."""
        return self.has_place and (self.free is None or fits(step.amounts, self.free))

    def open(self, order: int) -> None:
        """One of the places that there were from the beginning, or one more."""
        self.group_at[order] = self.number
        if self.lines:
            self.add(order)
        else:
            self.first_members.append(order)

    def add(self, order: int) -> None:
        """A place comes from another group: all its lines are told."""
        number = self.group_at[order] = self.number
        self.later_members.append(order)
        for heap, rank in self.lines:
            heappush(heap, (rank, order, number, -1))

    def enter(self, line: "Line", step: Step) -> None:
        """Stand in that line from now on, if its places may take one more lease of so much."""
        if not self.can_give(step):
            return
        if not self.lines:
            self.first_members.sort()
        rank, heap = line.rank(self), line.heap
        self.lines.append((heap, rank))
        if self.first_members:
            heappush(heap, (rank, self.first_members[0], self.number, 0))
        for order in self.later_members:
            if self.group_at.get(order) == self.number:
                heappush(heap, (rank, order, self.number, -1))


@dataclass(slots=True, eq=False)
class Line:
    """Places that could hold one need and are as good by their labels: those with most leases first (with fewest if
    it `spreads`), then in slot order.
    """

    groups: list[Group]
    """Every group, by number."""
    group_at: dict[int, int]
    spreads: bool
    heap: list[Entry] = field(default_factory=list)
    """Some of these may have left their group by now."""

    def rank(self, group: Group) -> float:
        """How good a group is: less is better."""
        return group.load if self.spreads else -group.load

    def first(self) -> Entry | None:
        """The best place's entry."""
        heap, group_at = self.heap, self.group_at
        while heap:
            entry = heap[0]
            if group_at.get(entry[1]) == entry[2]:
                return entry
            self._drop(heap)
        return None

    def first_but(self, declined: Collection[int]) -> Entry | None:
        """That of the best place that was not declined."""
        heap = list(self.heap)
        while heap:
            entry = heap[0]
            if self.group_at.get(entry[1]) == entry[2] and entry[1] not in declined:
                return entry
            self._drop(heap)
        return None

    def _drop(self, heap: list[Entry]) -> None:
        """Drop the first entry; where it is one of those that its group was made with, the next of them follows."""
        rank, _, number, index = heap[0]
        members = self.groups[number].first_members
        if 0 <= index < len(members) - 1:
            heapreplace(heap, (rank, members[index + 1], number, index + 1))
        else:
            heappop(heap)


@dataclass(slots=True)
class _Ranking:
    """Where one need looks: the kinds with its labels, most preferred labels and then fewest surplus ones first."""

    tiers: list[list[Line]]
    """The lines of kinds that are as good by their labels."""
    kinds: int
    """How many kinds there were when it was made."""

    def first(self) -> Entry | None:
        """The best place's entry."""
        for lines in self.tiers:
            best: Entry | None = None
            for line in lines:
                if line.heap and (entry := line.first()) is not None and (best is None or entry < best):
                    best = entry
            if best is not None:
                return best
        return None

    def first_but(self, declined: Collection[int]) -> Entry | None:
        """That of the best place whose order was not declined."""
        for lines in self.tiers:
            found = [entry for line in lines if (entry := line.first_but(declined)) is not None]
            if found:
                return min(found)
        return None


class Rooms:
    """The places that may take instances in this tick; `find` chooses one, `take` spends its room."""

    def __init__(self, places: Iterable[Place]) -> None:
        self._kinds: dict[Key, Kind] = {}
        self._group_by_key: dict[Key, Group] = {}
        self._groups: list[Group] = []
        self._group_at: dict[int, int] = {}
        self._places: dict[int, Place] = {}
        """By order, as the groups know them."""
        self._lines: dict[Key, Line] = {}
        self._rankings: dict[Need, _Ranking] = {}
        for place in places:
            self.add(place)

    def add(self, place: Place) -> None:
        """Let searches find this place."""
        self._places[place.order] = place
        self._open_group(self._open_kind(place), place.free, place).open(place.order)

    def remove(self, place: Place) -> None:
        """Let no search find this place any more."""
        del self._places[place.order], self._group_at[place.order]

    def find(self, need: Need, declined: Collection[str] = ()) -> Place | None:
        """The place for one instance; None when nothing has room."""
        if not self._places:
            return None
        ranking = self._rankings.get(need)
        if ranking is None or ranking.kinds != len(self._kinds):
            ranking = self._rankings[need] = self._rank(need)
        entry = ranking.first() if not declined else ranking.first_but(self._orders_of(declined))
        return None if entry is None else self._places[entry[1]]

    def _orders_of(self, names: Collection[str]) -> set[int]:
        return {order for order, place in self._places.items() if place.slot.id in names}

    def take(self, place: Place, need: Need) -> Group:
        """Spend the room of one instance there; gives back where it was, for `put_back`."""
        before = self._groups[self._group_at[place.order]]
        step = need.steps[before.kind.pool]
        place.given += 1
        group = before.after.get(step) or self._open_after(before, step, place)
        place.free = group.free
        group.add(place.order)
        return before

    def take_run(self, need: Need, most: int) -> list[Place]:
        """What so many times `find` and `take` would find, for a need that does not spread; fewer where room ends.

        Who has taken a place finds it again until it is full: none has more leases.
        """
        places: list[Place] = []
        while len(places) < most and (place := self.find(need)) is not None:
            group = self._groups[self._group_at[place.order]]
            step = need.steps[group.kind.pool]
            while len(places) < most and group.can_give(step):
                places.append(place)
                place.given += 1
                group = group.after.get(step) or self._open_after(group, step, place)
            place.free, place.wanted = group.free, True
            group.add(place.order)
        return places

    def put_back(self, place: Place, group: Group) -> None:
        """Undo the last `take` of this place."""
        place.given -= 1
        place.free = group.free
        group.add(place.order)

    def list_places(self) -> Iterator[Place]:
        """Every place, in no particular order."""
        return iter(self._places.values())

    def _open_kind(self, place: Place) -> Kind:
        key = (place.slot.pool, tuple(place.labels.items()))
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = Kind(len(self._kinds), place.slot.pool, place.labels)
        return kind

    def _open_after(self, before: Group, step: Step, place: Place) -> Group:
        free = None if before.free is None else subtract(before.free, step.amounts)
        group = before.after[step] = self._open_group(before.kind, free, place)
        return group

    def _open_group(self, kind: Kind, free: Resources | None, place: Place) -> Group:
        load, uses_left = place.load, place.uses_left
        key = (kind.number, None if free is None else tuple(free.items()), load, uses_left)
        group = self._group_by_key.get(key)
        if group is None:
            group = self._group_by_key[key] = Group(
                len(self._groups), kind, free, load, uses_left, place.most, self._group_at
            )
            self._groups.append(group)
            kind.groups.append(group)
            for line, step in kind.lines:
                group.enter(line, step)
        return group

    def _rank(self, need: Need) -> _Ranking:
        tiers = []
        for kinds in _rank_kinds(need, self._kinds.values()):
            shared = [kinds] if len(kinds) > MOST_LINES else [[kind] for kind in kinds]
            tiers.append([self._open_line(need, each) for each in shared])
        return _Ranking(tiers, len(self._kinds))

    def _open_line(self, need: Need, kinds: list[Kind]) -> Line:
        """One for all that ask for as much of these kinds."""
        steps = [need.steps[kind.pool] for kind in kinds]
        key = (need.spreads, *((kind.number, step) for kind, step in zip(kinds, steps, strict=True)))
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = Line(self._groups, self._group_at, need.spreads)
            for kind, step in zip(kinds, steps, strict=True):
                kind.lines.append((line, step))
                for group in kind.groups:
                    group.enter(line, step)
        return line


def _rank_kinds(need: Need, kinds: Iterable[Kind]) -> list[list[Kind]]:
    """The kinds that have its labels, equally good ones together: most preferred first, then fewest surplus ones."""
    ranks = ((need.rank_labels(kind.labels), kind) for kind in kinds if kind.pool in need.steps)
    ranked = [(rank, kind.number, kind) for rank, kind in ranks if rank is not None]
    return [[kind for *_, kind in alike] for _, alike in groupby(sorted(ranked), key=lambda each: each[0])]


Extend = Callable[[Need], Place | None]
_Taken = list[tuple[Rooms, Place, Group]]


def fill(demand: Demand, rooms: Sequence[Rooms], extend: Extend | None = None) -> list[Place] | None:
    """A place for each of its instances, its room spent; or None, and nothing is spent: all of them or none.

    Rooms are tried in the order given; where none has room, `extend` may add a place to the last of them.
    """
    if len(demand.needs) == 1:
        return _fill_one(demand, rooms, extend)
    taken = _take_all(demand, rooms, extend)
    if taken is None:
        return None
    places = [place for _, place, _ in taken]
    for place in places:
        place.wanted = True
    return places


def _fill_one(demand: Demand, rooms: Sequence[Rooms], extend: Extend | None) -> list[Place] | None:
    """The same for a single instance, as almost all are: there is nothing to undo."""
    need = demand.needs[0]
    for holder in rooms:
        place = holder.find(need, demand.declined)
        if place is not None:
            break
    else:
        place = extend(need) if extend is not None else None
    if place is None:
        return None
    holder.take(place, need)
    place.wanted = True
    return [place]


def has_room(demand: Demand, rooms: Sequence[Rooms]) -> bool:
    """Whether `fill` would find a place for each of its instances; nothing is spent."""
    taken = _take_all(demand, rooms, None)
    if taken is None:
        return False
    _undo(taken)
    return True


def has_room_for_some(demand: Demand, rooms: Sequence[Rooms]) -> bool:
    """Whether one of its instances, if it were alone, would find a place."""
    return any(_find_in(rooms, need, demand.declined)[1] is not None for need in demand.needs)


def _take_all(demand: Demand, rooms: Sequence[Rooms], extend: Extend | None) -> _Taken | None:
    taken: _Taken = []
    for need in demand.needs:
        holder, place = _find_in(rooms, need, demand.declined)
        if place is None and extend is not None:
            place = extend(need)
        if place is None:
            _undo(taken)
            return None
        taken.append((holder, place, holder.take(place, need)))
    return taken


def _undo(taken: _Taken) -> None:
    for holder, place, group in reversed(taken):
        holder.put_back(place, group)


def _find_in(rooms: Sequence[Rooms], need: Need, declined: Collection[str]) -> tuple[Rooms, Place | None]:
    for each in rooms:
        place = each.find(need, declined)
        if place is not None:
            return each, place
    return rooms[-1], None
