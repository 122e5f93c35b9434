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
from scheduler.policy.capacity.requests import Demand, InstanceRequest
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.queue import Queue
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.scaling.launch_limits import LaunchLimits

_Kind = tuple[Resources | None, Labels]
Told = tuple[str, str]
"""A waiting code, and the sentence."""


class Feasibility:
    """Who is on hold, whom no pool serves, and what no slot or offering could hold, even empty."""

    def __init__(self, cycle: CycleState, limits: LaunchLimits) -> None:
        self._cycle, self._limits = cycle, limits
        self._told: dict[Demand, Told | None] = {}
        self._kinds: dict[str, list[_Kind]] = {name: [] for name in cycle.pools}
        """By pool: what was found to be there so far."""
        self._held: dict[tuple[object, ...], bool] = {}
        """Whether any of that could hold an instance, for all that ask for the same."""
        self._more_kinds = {name: _list_kinds(slot_infos) for name, slot_infos in cycle.pools.items()}

    def set_aside(self, queue: Queue) -> Queue:
        """Those for whom something is to be tried; the others are told why they wait."""
        told = {demand: found for demand in queue.different if (found := self.find(demand)) is not None}
        if not told and not any(map(is_on_hold, self._cycle.view.special.values())):
            return queue
        stays = [self._stays(reservation, told.get(demand)) for reservation, demand in queue]
        return queue.filter(stays)

    def _stays(self, reservation: Reservation, told: Told | None) -> bool:
        if is_on_hold(reservation):
            self._cycle.wait(reservation.id, "on_hold", "on hold until it is resumed, or its priority is above 0")
            return False
        if told is not None:
            self._cycle.wait(reservation.id, *told)
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

    def _could_ever_hold(self, name: str, need: InstanceRequest) -> bool:
        if self._cycle.rules.pools[name].is_elastic and self._limits.list_fitting(name, need):
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


def _list_kinds(slot_infos: Iterable[SlotInfo]) -> Iterator[_Kind]:
    """Capacity and labels of the active ones and of hosts that are away, those that are alike once."""
    known: set[tuple[object, object]] = set()
    for slot_info in slot_infos:
        if slot_info.is_active or not slot_info.pool.is_elastic:
            held = None if slot_info.capacity is None else tuple(slot_info.capacity.items())
            kind = (held, tuple(slot_info.labels.items()))
            if kind not in known:
                known.add(kind)
                yield slot_info.capacity, slot_info.labels


def find_misfits(reservations: Iterable[Reservation], slots: Iterable[Slot], rules: Rules) -> dict[str, Told]:
    """By id: those of these that no pool serves, or that none of these slots and no offering could hold, even empty;
    each with what the next tick tells of it. One that is on hold too: it would not fit when it is taken off.
    """
    asked = list(reservations)
    cycle = CycleState(View([*slots, *asked]), rules, 0.0)
    misfits = Feasibility(cycle, LaunchLimits(cycle))
    found = {each.id: misfits.find(cycle.demand_of(each)) for each in asked}
    return {name: told for name, told in found.items() if told is not None}
