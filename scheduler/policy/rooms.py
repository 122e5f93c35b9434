"""Rooms: the places that may take instances, grouped so that alike places are looked at once.

The cost of a search grows with the number of *different* places (pool, labels, what is free, how many leases),
not with the number of slots; within a group the first in slot order is taken.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from scheduler.model.labels import Labels, count_preferred, count_surplus, has_labels
from scheduler.model.labels import shape_of as shape_of_labels
from scheduler.model.reservations import Component, Instance, Reservation, Shape
from scheduler.model.resources import Resources, fits, merge
from scheduler.model.resources import shape_of as shape_of_resources
from scheduler.model.rules import Pool, SchedulerKeys
from scheduler.policy.places import Order, Place

Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Demand:
    """What one reservation needs: its shape, the pools that may serve it, and slots that its holder declined."""

    reservation: Reservation
    shape: Shape
    pools: tuple[str, ...]
    queue: str
    """Whose queue it waits in: its system's own, or "" for the common one."""
    settings: SchedulerKeys
    """The scheduler's settings that hold for it."""
    spreads: bool = False
    """Whether the slot with fewest leases is taken first, not the one with most."""
    impatient: tuple[str, ...] = ()
    """Pools whose on-demand offerings it may have whatever they cost: it was interrupted there too often."""

    @property
    def instances(self) -> tuple[Instance, ...]:
        """Its essential instances, in the order in which they are placed."""
        return self.shape.essential

    @property
    def is_plain(self) -> bool:
        """Whether what holds for its shape holds for it: it excludes no slots and may have no more of its own."""
        return not self.reservation.declined and not self.impatient


def given_to(component: Component, pool: Pool) -> Resources:
    """What an instance is given in that pool: its wishes over the pool's defaults."""
    return merge(pool.default_resources, component.resources) if pool.default_resources else component.resources


def could_hold(demand: Demand, component: Component, pool: Pool, capacity: Resources | None, labels: Labels) -> bool:
    """Whether a slot of this pool with this much left, and these labels, could take one instance."""
    if not has_labels(labels, demand.shape.labels) or not has_labels(labels, component.labels):
        return False
    return capacity is None or fits(given_to(component, pool), capacity)


@dataclass(slots=True)
class _Group:
    """Places that are alike in all that a search looks at, in slot order."""

    heap: list[tuple[Order, str]] = field(default_factory=list)
    members: dict[str, Place] = field(default_factory=dict)

    def add(self, place: Place) -> None:
        self.members[place.slot.id] = place
        heappush(self.heap, (place.order, place.slot.id))

    @property
    def sample(self) -> Place:
        """Any one of them; never one that has left, for that one is not like them any more."""
        return next(iter(self.members.values()))

    def first(self, declined: Collection[str]) -> Place | None:
        """The first in slot order that was not declined."""
        while self.heap and self.heap[0][1] not in self.members:
            heappop(self.heap)
        if not self.heap:
            return None
        if self.heap[0][1] not in declined:
            return self.members[self.heap[0][1]]
        allowed = [place for name, place in self.members.items() if name not in declined]
        return min(allowed, key=lambda place: place.order, default=None)


class Rooms:
    """The places that may take instances in this tick; `find` chooses one, `take` spends its room."""

    def __init__(self, places: Iterable[Place]) -> None:
        self._groups: dict[Key, _Group] = {}
        self._keys: dict[str, Key] = {}
        for place in places:
            self.add(place)

    def add(self, place: Place) -> None:
        """Let searches find this place."""
        key = _key_of(place)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group()
        group.add(place)
        self._keys[place.slot.id] = key

    def find(self, demand: Demand, component: Component) -> Place | None:
        """The place for one instance; None when nothing has room.

        Most preferred labels, fewest surplus ones, most leases first (fewest if it `spreads`), then slot order.
        """
        best: tuple[tuple[object, ...], Place] | None = None
        for group in self._groups.values():
            if not _has_room(group.sample, demand, component):
                continue
            place = group.first(demand.reservation.declined)
            if place is not None:
                rank = self._rank(place, demand, component)
                if best is None or rank < best[0]:
                    best = (rank, place)
        return best[1] if best else None

    def _rank(self, place: Place, demand: Demand, component: Component) -> tuple[object, ...]:
        shape = demand.shape
        preferred = count_preferred(place.labels, shape.prefers)
        surplus = count_surplus(place.labels, {**shape.labels, **component.labels})
        return (-preferred, surplus, place.load if demand.spreads else -place.load, place.order)

    def holds(self, place: Place) -> bool:
        """Whether this place is one of them."""
        return place.slot.id in self._keys

    @property
    def is_empty(self) -> bool:
        """Whether there is no place at all."""
        return not self._keys

    def list_places(self) -> Iterator[Place]:
        """Every place, in no particular order."""
        return (place for group in self._groups.values() for place in group.members.values())

    def take(self, place: Place, component: Component) -> None:
        """Spend the room of one instance there."""
        self.remove(place)
        place.take(given_to(component, place.pool))
        self.add(place)

    def give_back(self, place: Place, component: Component) -> None:
        """Undo `take`."""
        self.remove(place)
        place.give_back(given_to(component, place.pool))
        self.add(place)

    def remove(self, place: Place) -> None:
        """Let no search find this place any more."""
        key = self._keys.pop(place.slot.id)
        group = self._groups[key]
        del group.members[place.slot.id]
        if not group.members:
            del self._groups[key]


def _key_of(place: Place) -> Key:
    free = None if place.free is None else shape_of_resources(place.free)
    return (place.slot.pool, free, shape_of_labels(place.labels), place.load, place.uses_left)


def _has_room(place: Place, demand: Demand, component: Component) -> bool:
    if place.slot.pool not in demand.pools or not place.has_place:
        return False
    return could_hold(demand, component, place.pool, place.free, place.labels)


Extend = Callable[[Component], Place | None]


def fill(demand: Demand, rooms: Iterable[Rooms], extend: Extend | None = None) -> list[Place] | None:
    """A place for each of its instances, its room spent; or None, and nothing is spent: all of them or none.

    Rooms are tried in the order given; where none has room, `extend` may add a place to the last of them.
    """
    rooms = list(rooms)
    taken: list[tuple[Rooms, Place, Component]] = []
    for instance in demand.instances:
        component = instance.component
        holder, place = _find_in(rooms, demand, component)
        if place is None and extend is not None:
            holder, place = rooms[-1], extend(component)
        if place is None:
            for earlier in reversed(taken):
                earlier[0].give_back(*earlier[1:])
            return None
        holder.take(place, component)
        taken.append((holder, place, component))
    for _, place, _ in taken:
        place.wanted = True
    return [place for _, place, _ in taken]


def _find_in(rooms: list[Rooms], demand: Demand, component: Component) -> tuple[Rooms, Place | None]:
    for each in rooms:
        place = each.find(demand, component)
        if place is not None:
            return each, place
    return rooms[-1], None


def undo(demand: Demand, rooms: Sequence[Rooms], places: Sequence[Place]) -> None:
    """Give back what `fill` took for it."""
    for instance, place in zip(demand.instances, places, strict=True):
        holder = next(each for each in rooms if each.holds(place))
        holder.give_back(place, instance.component)
        place.wanted = False
