"""Rooms: the places that may take instances, so kept that finding one does not look at all of them.

Alike places form a group: same pool, labels, free resources, number of leases. Each need has a ranking of the groups
that could hold it; it is kept up with what changed since the need was last looked for. So the cost of a tick grows
with the number of different places and needs, and with the leases that are given, not with slots × reservations.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace

from scheduler.model.labels import Labels
from scheduler.model.resources import Resources, fits, subtract
from scheduler.policy.needs import Demand, Need, Step
from scheduler.policy.places import Order, Place

Key = tuple[object, ...]
Rank = tuple[int, int, int]


@dataclass(slots=True, eq=False)
class Group:
    """Places that are alike in all that a search looks at, the first in slot order first."""

    pool: str
    labels: Labels
    free: Resources | None
    load: int
    uses_left: float
    most: float
    members: dict[str, Place] = field(default_factory=dict)
    after: dict[Step, "Group"] = field(default_factory=dict)
    """Where a place of this group goes when so much is taken of it."""
    _heap: list[tuple[Order, str]] = field(default_factory=list)
    """Some of these may have left."""
    _enough: dict[Step, bool] = field(default_factory=dict)

    @property
    def has_place(self) -> bool:
        """Whether its places may take one more lease, resources aside."""
        return self.load < self.most and self.uses_left > 0

    def can_give(self, step: Step) -> bool:
        """Whether so much is free."""
        if self.free is None:
            return True
        if step not in self._enough:
            self._enough[step] = fits(dict(step), self.free)
        return self._enough[step]

    def add(self, place: Place) -> bool:
        """Take it in; whether it is the first in slot order now."""
        first = self.first()
        entry = (place.order, place.slot.id)
        self.members[place.slot.id] = place
        heappush(self._heap, entry)
        return first is None or entry < first

    def first(self) -> tuple[Order, str] | None:
        """Order and id of the first in slot order; None without places."""
        heap, members = self._heap, self.members
        while heap and heap[0][1] not in members:
            heappop(heap)
        return heap[0] if heap else None

    def first_but(self, declined: Collection[str]) -> Place | None:
        """The first in slot order that was not declined."""
        allowed = (place for name, place in self.members.items() if name not in declined)
        return min(allowed, key=lambda place: place.order, default=None)


@dataclass(slots=True, eq=False)
class _Ranking:
    """The groups that could hold one need, the best first: most preferred labels, fewest surplus ones, most leases
    (fewest if it `spreads`), then slot order.
    """

    need: Need
    ranks: dict[Group, Rank | None] = field(default_factory=dict)
    """Of each group that was looked at; None = it cannot hold the need."""
    seen: dict[str, int] = field(default_factory=dict)
    """By pool: how many of the changes it knows."""
    _labels: dict[int, tuple[int, int] | None] = field(default_factory=dict)
    """By the identity of a group's labels: what of a rank they decide."""
    _heap: list[tuple[Rank, Order, int, Group]] = field(default_factory=list)
    """Some of these may be empty by now, or begin with a later place."""
    _pushed: int = 0

    def learn(self, changed: Iterable[Group]) -> None:
        """Take in groups that have a new first place."""
        ranks, heap = self.ranks, self._heap
        for group in changed:
            if not group.members:
                continue
            if group not in ranks:
                ranks[group] = self._rank(group)
            rank = ranks[group]
            if rank is not None and (first := group.first()):
                self._pushed += 1
                heappush(heap, (rank, first[0], self._pushed, group))

    def _rank(self, group: Group) -> Rank | None:
        need, labels = self.need, group.labels
        if id(labels) not in self._labels:
            self._labels[id(labels)] = need.rank_labels(labels)
        rank = self._labels[id(labels)]
        if rank is None or not group.has_place or not group.can_give(need.steps[group.pool]):
            return None
        return (*rank, group.load if need.spreads else -group.load)

    def find(self) -> Place | None:
        """The best place."""
        heap = self._heap
        while heap:
            rank, order, _, group = heap[0]
            first = group.first()
            if first is None:
                heappop(heap)
            elif first[0] == order:
                return group.members[first[1]]
            else:
                self._pushed += 1
                heapreplace(heap, (rank, first[0], self._pushed, group))
        return None

    def find_but(self, declined: Collection[str]) -> Place | None:
        """The best place that was not declined."""
        found = ((rank, group.first_but(declined)) for group, rank in self.ranks.items() if rank is not None)
        allowed = [(rank, place) for rank, place in found if place is not None]
        return min(allowed, key=lambda each: (each[0], each[1].order))[1] if allowed else None


class Rooms:
    """The places that may take instances in this tick; `find` chooses one, `take` spends its room."""

    def __init__(self, places: Iterable[Place]) -> None:
        self._groups: dict[Key, Group] = {}
        self._labels: dict[Key, Labels] = {}
        """One object for all that are alike."""
        self._group_of: dict[str, Group] = {}
        self._changes: dict[str, list[Group]] = {}
        """By pool: groups that got a new first place, each time again."""
        self._rankings: dict[Need, _Ranking] = {}
        for place in places:
            self.add(place)

    def add(self, place: Place) -> None:
        """Let searches find this place."""
        labels = self._labels.setdefault(tuple(place.labels.items()), place.labels)
        self._put(place, self._open_group(place.slot.pool, labels, place.free, place))

    def remove(self, place: Place) -> None:
        """Let no search find this place any more."""
        del self._group_of.pop(place.slot.id).members[place.slot.id]

    def find(self, need: Need, declined: Collection[str] = ()) -> Place | None:
        """The place for one instance; None when nothing has room."""
        ranking = self._rankings.get(need)
        if ranking is None:
            ranking = self._rankings[need] = _Ranking(need)
        for name in need.given:
            changes, seen = self._changes.get(name, ()), ranking.seen.get(name, 0)
            if len(changes) > seen:
                ranking.learn(changes[seen:])
                ranking.seen[name] = len(changes)
        place = ranking.find()
        return place if place is None or place.slot.id not in declined else ranking.find_but(declined)

    def take(self, place: Place, need: Need) -> Group:
        """Spend the room of one instance there; gives back where it was, for `put_back`."""
        before = self._group_of[place.slot.id]
        step = need.steps[before.pool]
        group = before.after.get(step)
        place.given += 1
        if group is None:
            free = None if before.free is None else subtract(before.free, need.given[before.pool])
            group = before.after[step] = self._open_group(before.pool, before.labels, free, place)
        self._move(place, group)
        return before

    def put_back(self, place: Place, group: Group) -> None:
        """Undo the last `take` of this place."""
        place.given -= 1
        self._move(place, group)

    def list_places(self) -> Iterator[Place]:
        """Every place, in no particular order."""
        return (group.members[name] for name, group in self._group_of.items())

    def _move(self, place: Place, group: Group) -> None:
        place.free = group.free
        del self._group_of[place.slot.id].members[place.slot.id]
        self._put(place, group)

    def _put(self, place: Place, group: Group) -> None:
        self._group_of[place.slot.id] = group
        if group.add(place):
            self._changes.setdefault(group.pool, []).append(group)

    def _open_group(self, pool: str, labels: Labels, free: Resources | None, place: Place) -> Group:
        load, uses_left = place.load, place.uses_left
        key = (pool, id(labels), None if free is None else tuple(free.items()), load, uses_left)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(pool, labels, free, load, uses_left, place.most)
        return group


Extend = Callable[[Need], Place | None]
_Taken = list[tuple[Rooms, Place, Group]]


def fill(demand: Demand, rooms: Sequence[Rooms], extend: Extend | None = None) -> list[Place] | None:
    """A place for each of its instances, its room spent; or None, and nothing is spent: all of them or none.

    Rooms are tried in the order given; where none has room, `extend` may add a place to the last of them.
    """
    taken = _take_all(demand, rooms, extend)
    if taken is None:
        return None
    places = [place for _, place, _ in taken]
    for place in places:
        place.wanted = True
    return places


def has_room(demand: Demand, rooms: Sequence[Rooms]) -> bool:
    """Whether `fill` would find a place for each of its instances; nothing is spent."""
    taken = _take_all(demand, rooms, None)
    if taken is None:
        return False
    _undo(taken)
    return True


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
