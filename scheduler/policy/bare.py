"""The ready places as they would be without the elastic instances that may be taken off them.

Most of those who wait under load fit not even there: they are known by one search, and nothing is moved to find out.
"""

from collections.abc import Iterable, Sequence
from copy import copy

from scheduler.policy.needs import Demand, Need
from scheduler.policy.places import Place
from scheduler.policy.rooms import Rooms, has_room
from scheduler.policy.seats import Seat


class Bare:
    """Copies of places; what essential instances take of these is taken here too."""

    def __init__(self, rooms: Rooms, seats: Iterable[Seat]) -> None:
        self.size = len(rooms)
        """How many places there were: some may be kept for somebody later on."""
        self._copies: dict[int, Place] = {}
        for place in rooms.list_places():
            shadow = self._copies[place.order] = copy(place)
            shadow.kind = shadow.stock = None
        for seat in seats:
            if seat.place is not None and seat.place.order in self._copies:
                _lift(self._copies[seat.place.order], seat, seat.place)
        self._rooms = Rooms(self._copies.values())

    def has_room(self, demand: Demand) -> bool:
        """Whether all its instances would fit."""
        return has_room(demand, (self._rooms,))

    def take(self, needs: Sequence[Need], places: Sequence[Place]) -> None:
        """These got, or keep, their room there; of places that are not ready nothing is known here."""
        for need, place in zip(needs, places, strict=False):
            if place.order in self._copies:
                self._rooms.take(self._copies[place.order], need)


def _lift(shadow: Place, seat: Seat, place: Place) -> None:
    if place is seat.home:
        shadow.lifted += 1
    else:
        shadow.given -= 1
    if shadow.free is not None:
        amounts = seat.amounts_on(place)
        shadow.free = {name: free + amounts.get(name, 0) for name, free in shadow.free.items()}
