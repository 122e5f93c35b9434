"""For whom nothing is even tried, and why: in a tick before placing, and at the door before any tick.

Source: Arvados (what no instance type could hold).
"""

from collections.abc import Iterable, Iterator

from scheduler.model.labels import Labels
from scheduler.model.reservations import Reservation, is_on_hold
from scheduler.model.resources import Resources
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot
from scheduler.model.view import View
from scheduler.policy.draft import Draft, Queue
from scheduler.policy.limits import Limits
from scheduler.policy.needs import Demand, Need
from scheduler.policy.places import Place

_Kind = tuple[Resources | None, Labels]
Told = tuple[str, str]
"""A waiting code, and the sentence."""


class Misfits:
    """Who is on hold, whom no pool serves, and what no slot or offering could hold, even empty."""

    def __init__(self, draft: Draft, limits: Limits) -> None:
        self._draft, self._limits = draft, limits
        self._told: dict[Demand, Told | None] = {}
        self._kinds: dict[str, list[_Kind]] = {name: [] for name in draft.pools}
        """By pool: what was found to be there so far."""
        self._held: dict[tuple[object, ...], bool] = {}
        """Whether any of that could hold an instance, for all that ask for the same."""
        self._more_kinds = {name: _list_kinds(places) for name, places in draft.pools.items()}

    def set_aside(self, queue: Queue) -> Queue:
        """Those for whom something is to be tried; the others are told why they wait."""
        told = {demand: found for demand in queue.different if (found := self.find(demand)) is not None}
        if not told and not any(map(is_on_hold, self._draft.view.special.values())):
            return queue
        stays = [self._stays(reservation, told.get(demand)) for reservation, demand in queue]
        return queue.filter(stays)

    def _stays(self, reservation: Reservation, told: Told | None) -> bool:
        if is_on_hold(reservation):
            self._draft.wait(reservation.id, "on_hold", "on hold until it is resumed, or its priority is above 0")
            return False
        if told is not None:
            self._draft.wait(reservation.id, *told)
        return told is None

    def find(self, demand: Demand) -> Told | None:
        """What is told of all that ask for this; None where a slot or an offering could hold it. Looked up once."""
        if demand not in self._told:
            self._told[demand] = self._look_up(demand)
        return self._told[demand]

    def _look_up(self, demand: Demand) -> Told | None:
        asked = demand.shape.pool or demand.shape.system or "nothing"
        if not demand.pools:
            return "no_pool", f"no pool serves {asked}"
        for need in dict.fromkeys(demand.needs):
            if not any(self._could_ever_hold(name, need) for name in demand.pools):
                return "never_fits", f"no slot or offering of {asked} could hold {need.component.name}, even empty"
        return None

    def _could_ever_hold(self, name: str, need: Need) -> bool:
        if self._draft.rules.pools[name].is_elastic and self._limits.list_fitting(name, need):
            return True
        labels = (frozenset(need.labels.items()), frozenset(need.component.labels.items()))
        key = (name, need.steps[name], *labels)
        if key not in self._held:
            self._held[key] = any(need.could_hold(name, *kind) for kind in self._iterate_kinds(name))
        return self._held[key]

    def _iterate_kinds(self, name: str) -> Iterator[_Kind]:
        """All kinds of that pool, found only as far as they are looked at: the first ones hold most that is asked."""
        yield from self._kinds[name]
        for kind in self._more_kinds[name]:
            self._kinds[name].append(kind)
            yield kind


def _list_kinds(places: Iterable[Place]) -> Iterator[_Kind]:
    """Capacity and labels of the active ones and of hosts that are away, those that are alike once."""
    known: set[tuple[object, object]] = set()
    for place in places:
        if place.is_active or not place.pool.is_elastic:
            held = None if place.capacity is None else tuple(place.capacity.items())
            kind = (held, tuple(place.labels.items()))
            if kind not in known:
                known.add(kind)
                yield place.capacity, place.labels


def find_misfits(reservations: Iterable[Reservation], slots: Iterable[Slot], rules: Rules) -> dict[str, Told]:
    """By id: those of these that no pool serves, or that none of these slots and no offering could hold, even empty;
    each with what the next tick tells of it. One that is on hold too: it would not fit when it is taken off.
    """
    asked = list(reservations)
    draft = Draft(View([*slots, *asked]), rules, 0.0)
    misfits = Misfits(draft, Limits(draft))
    found = {each.id: misfits.find(draft.demand_of(each)) for each in asked}
    return {name: told for name, told in found.items() if told is not None}
