"""Idle slots take who is first in order: one step of placing by quota. Source: qscheduler.

In slot order, each slot takes the first reservation whose labels it has (and, in the step for preferences, all that
it prefers), and then the next one, as long as it has room. An idle slot is never kept for a better reservation.

A reservation with several instances has its turn where its first instance would be placed. The others take the first
slots in slot order that will do, from the first one on; it is placed if all of them have room, else the slot goes to
the next in order, and it has its turn again on later slots.
"""

from collections.abc import Iterable

from scheduler.model.labels import has_labels
from scheduler.model.resources import Resources, fits, subtract
from scheduler.policy.asks import Ask
from scheduler.policy.lots import Lines, Lot
from scheduler.policy.needs import Demand, Need
from scheduler.policy.places import Place
from scheduler.policy.rounds import Round


def offer(tick: Round, lots: Iterable[Lot], level: int, *, preferring: bool) -> None:
    """Give idle slots to these lots at one level; only those with everything that they prefer, or any."""
    asked = [(ask, lot) for lot in lots if (ask := lot.preferred if preferring else lot.required) is not None]
    if not asked or not tick.idle:
        return
    _Offer(tick, asked, level, preferring=preferring).run()
    tick.drop_full()


class _Offer:
    def __init__(self, tick: Round, asked: list[tuple[Ask, Lot]], level: int, *, preferring: bool) -> None:
        self._tick, self._level, self._preferring = tick, level, preferring
        self._lines: Lines[list[Place]] = Lines(asked, self._is_out)
        self._hopeless: set[Lot] = set()
        """Of several instances each: those for whom there is no room even without their first one."""

    def run(self) -> None:
        """Every idle slot in its turn."""
        tick = self._tick
        for place in tick.idle:
            while place.has_place and (met := tick.asks.list_met(place, place.free)):
                found = self._lines.find(met, lambda lot, place=place: self._find_places(lot, place))  # type: ignore[misc]
                if found is None:
                    break
                tick.assign(*found, self._level)

    def _is_out(self, lot: Lot) -> bool:
        is_paid = self._level in range(5)
        return lot in self._hopeless or (is_paid and self._tick.limits.is_fanned_out(lot))

    def _find_places(self, lot: Lot, place: Place) -> list[Place] | None:
        """A place for each of its instances, the first one here; None where it has to be passed over."""
        if place.slot.id in lot.demand.declined:
            return None
        places: list[Place] | None = [place]
        if len(lot.demand.needs) > 1:
            places = self._find_all(lot, place)
        if places is None or self._tick.limits.refuses(lot.account, places):
            return None
        return places

    def _find_all(self, lot: Lot, place: Place) -> list[Place] | None:
        needs = lot.demand.needs
        scratch = _Scratch(self._tick.idle, lot.demand, preferring=self._preferring)
        scratch.take(place, needs[0])
        rest = scratch.take_all(needs[1:])
        if rest is not None:
            return [place, *rest]
        without_first = _Scratch(self._tick.idle, lot.demand, preferring=self._preferring)
        if without_first.take_all(needs[1:]) is None:
            self._hopeless.add(lot)
        return None


class _Scratch:
    """Idle places, from which the instances of one reservation are taken on trial."""

    def __init__(self, idle: list[Place], demand: Demand, *, preferring: bool) -> None:
        self._idle, self._demand, self._preferring = idle, demand, preferring
        self._taken: dict[Place, list[Need]] = {}

    def take_all(self, needs: Iterable[Need]) -> list[Place] | None:
        """For each the first place in slot order; None where one finds none."""
        places = []
        for need in needs:
            place = next((each for each in self._idle if self._has_room(each, need)), None)
            if place is None:
                return None
            self.take(place, need)
            places.append(place)
        return places

    def take(self, place: Place, need: Need) -> None:
        """Spend the room of one instance."""
        self._taken.setdefault(place, []).append(need)

    def _has_room(self, place: Place, need: Need) -> bool:
        taken, pool = self._taken.get(place, ()), place.slot.pool
        if pool not in need.given or place.slot.id in self._demand.declined:
            return False
        if place.load + len(taken) >= place.pool.lease_limit or place.uses_left <= len(taken):
            return False
        if self._preferring and not has_labels(place.labels, need.prefers):
            return False
        room: Resources | None = place.free
        for each in taken:
            room = None if room is None else subtract(room, each.given[pool])
        return need.rank_labels(place.labels) is not None and (room is None or fits(need.given[pool], room))
