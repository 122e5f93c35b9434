"""The ready places as they would be without the elastic instances that may be taken off them.

Most of those who wait under load fit not even there: they are known by adding up, and nothing is moved to find out.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scheduler.model.resources import Resources, subtract
from scheduler.policy.needs import Demand, Need
from scheduler.policy.places import Place
from scheduler.policy.rooms import Rooms
from scheduler.policy.seats import Seat

ROUNDING = 1e-6
"""So much of an instance may be missing: sums of fractions are not exact, and nobody is to be refused for that."""


@dataclass(slots=True)
class _Room:
    """What one place would have."""

    place: Place
    free: Resources | None
    leases: float
    """How many more it may take."""

    def count(self, need: Need, most: int) -> int:
        """How many instances would fit, up to so many."""
        pool = self.place.slot.pool
        if self.leases <= 0 or pool not in need.given or not need.could_hold(pool, None, self.place.labels):
            return 0
        fit = min(self.leases, most)
        if self.free is not None:
            for name, amount in need.given[pool].items():
                if amount > 0:
                    fit = min(fit, self.free.get(name, 0) / amount + ROUNDING)
        return int(fit)


class Bare:
    """Sums over places; what essential instances take of these is taken here too, and nothing ever comes back."""

    def __init__(self, rooms: Rooms, seats: Iterable[Seat]) -> None:
        self.size = len(rooms)
        """How many places there were: some may be kept for somebody later on."""
        self._refused: list[tuple[Need, int]] = []
        """Of so many instances of this there is no room."""
        self._rooms: dict[int, _Room] = {}
        for place in rooms.list_places():
            leases = min(place.pool.lease_limit - place.load, place.uses_left)
            self._rooms[place.order] = _Room(place, place.free, leases)
        for seat in seats:
            if seat.place is not None and seat.place.order in self._rooms:
                self._lift(self._rooms[seat.place.order], seat, seat.place)

    def _lift(self, room: _Room, seat: Seat, place: Place) -> None:
        room.leases += 1
        if room.free is not None:
            amounts = seat.amounts_on(place)
            room.free = {name: free + amounts.get(name, 0) for name, free in room.free.items()}

    def could_hold(self, demand: Demand) -> bool:
        """Whether the instances of each of its components would fit if they were alone; if not, no search helps."""
        return all(self._could_hold(need, count, demand.declined) for need, count in Counter(demand.needs).items())

    def _could_hold(self, need: Need, count: int, declined: Sequence[str]) -> bool:
        if any(count >= refused and need.asks_as_much_as(other) for other, refused in self._refused):
            return False
        left = count
        for room in self._rooms.values():
            if room.place.slot.id not in declined:
                left -= room.count(need, left)
            if left <= 0:
                return True
        if not declined:
            self._refused.append((need, count))
        return False

    def take(self, needs: Sequence[Need], places: Sequence[Place]) -> None:
        """These got, or keep, their room there; of places that are not ready nothing is known here."""
        for need, place in zip(needs, places, strict=False):
            room = self._rooms.get(place.order)
            if room is not None:
                room.leases -= 1
                room.free = None if room.free is None else subtract(room.free, need.given[place.slot.pool])
