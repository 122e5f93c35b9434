"""Reservations that cannot be placed even if all slots are free: they are on hold, have no pool, or are too large for
every slot and offering.

Each cycle looks for such reservations before the placing. The intake makes the same test when a request is submitted.
Source: Arvados.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from scheduler.model.reservations import Reservation, is_on_hold
from scheduler.model.resources import Labels, Resources
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot
from scheduler.model.view import View
from scheduler.model.waiting_codes import ENTRIES
from scheduler.model.waits import Reason
from scheduler.policy.capacity.requests import Demand, InstanceRequest
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.queue import Queue
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.scaling.launch_limits import LaunchLimits
from scheduler.policy.scaling.offerings import list_configured

ON_HOLD: Final[Reason] = ("on_hold", ENTRIES["on_hold"].sentence)
"""The waiting code and the sentence for each reservation on hold."""
_Kind = tuple[Resources | None, Labels]


def set_aside(cycle: CycleState, limits: LaunchLimits, queue: Queue) -> Queue:
    """Return the reservations of the queue that can be placed. For each other reservation, record why it waits."""
    feasibility = Feasibility(cycle, limits)
    reasons = {demand: found for demand in queue.different if (found := feasibility.find(demand)) is not None}
    if not reasons and not any(map(is_on_hold, cycle.view.special.values())):
        return queue
    stays = []
    for reservation, demand in queue:
        reason = ON_HOLD if is_on_hold(reservation) else reasons.get(demand)
        if reason is not None:
            cycle.wait(reservation.id, *reason)
        stays.append(reason is None)
    return queue.filter(stays)


class Feasibility:
    """Finds why a demand can never be placed: no pool serves it, or no slot or offering could hold it, even empty."""

    def __init__(self, cycle: CycleState, limits: LaunchLimits) -> None:
        self._cycle, self._limits = cycle, limits
        self._reasons: dict[Demand, Reason | None] = {}
        self._kinds: dict[str, tuple[list[_Kind], Iterator[_Kind]]] = {}
        """Pool -> two things: (1) the different (capacity, labels) of its slots that were examined so far; (2) an
        iterator over the remaining ones.
        """
        self._held: dict[tuple[object, ...], bool] = {}
        """(pool, amounts of an instance, required labels) -> whether an empty slot of the pool could hold the
        instance.
        """

    def find(self, demand: Demand) -> Reason | None:
        """Return the reason why a demand can never be placed; None if a slot or an offering could hold it.

        The answer is computed once for each demand.
        """
        if demand not in self._reasons:
            self._reasons[demand] = self._look_up(demand)
        return self._reasons[demand]

    def _look_up(self, demand: Demand) -> Reason | None:
        named = demand.shape.pool or demand.shape.system or "nothing"
        if not demand.pools:
            known = f"no pool is named {named}" if demand.shape.pool else f"no pool serves {named}"
            return "no_pool", f"{known} and has agents, which run commands" if demand.shape.needs_agent else known
        for need in dict.fromkeys(demand.needs):
            if not any(self._could_ever_hold(name, need) for name in demand.pools):
                return "never_fits", f"no slot or offering of {named} could hold {need.component.name}, even empty"
        return None

    def _could_ever_hold(self, name: str, need: InstanceRequest) -> bool:
        pool = self._cycle.rules.pools[name]
        if pool.is_elastic and (
            self._limits.pools[name].list_fitting(need)
            or any(
                not each.is_for_sale and need.could_hold(name, each.capacity, each.labels)
                for each in list_configured(pool)
            )
        ):
            return True
        key = (name, need.steps[name], need.required)
        if key not in self._held:
            self._held[key] = any(need.could_hold(name, *kind) for kind in self._iterate_kinds(name))
        return self._held[key]

    def _iterate_kinds(self, name: str) -> Iterator[_Kind]:
        """Yield the different (capacity, labels) of a pool's slots one by one: usually one of the first can hold a
        request, and the remaining slots need not be examined.
        """
        if name not in self._kinds:
            self._kinds[name] = [], list_kinds(self._cycle.pools[name])
        known, further = self._kinds[name]
        yield from known
        for kind in further:
            known.append(kind)
            yield kind


def list_kinds(slot_infos: Iterable[SlotInfo]) -> Iterator[_Kind]:
    """Yield (capacity, labels) of active slots and of absent static hosts. Equal pairs are yielded once."""
    known: set[tuple[object, object]] = set()
    for slot_info in slot_infos:
        if slot_info.is_active or not slot_info.pool.is_elastic:
            held = None if slot_info.capacity is None else tuple(slot_info.capacity.items())
            kind = (held, tuple(slot_info.labels.items()))
            if kind not in known:
                known.add(kind)
                yield slot_info.capacity, slot_info.labels


def find_misfits(reservations: Iterable[Reservation], slots: Iterable[Slot], rules: Rules) -> dict[str, Reason]:
    """Return a table (reservation id -> reason) of the reservations in `reservations` that can never be placed: no pool
    serves them, or no slot or offering could hold them.

    The reason is the one that the next cycle reports. Reservations on hold are tested too: they may not fit after they
    are resumed either.
    """
    submitted = list(reservations)
    cycle = CycleState(View([*slots, *submitted]), rules, 0.0)
    misfits = Feasibility(cycle, LaunchLimits(cycle))
    found = {each.id: misfits.find(cycle.demand_of(each)) for each in submitted}
    return {name: reason for name, reason in found.items() if reason is not None}
