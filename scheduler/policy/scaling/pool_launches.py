"""What the launches and starts of one cycle in one pool depend on, and how many there were."""

from functools import cached_property

from scheduler.model.transitions import INACTIVE
from scheduler.policy.capacity.fits import capacity_of
from scheduler.policy.capacity.requests import InstanceRequest
from scheduler.policy.capacity.slot_info import SlotInfo, find_life, is_settled_stop
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.scaling.market_mix import MarketMix, count_mix
from scheduler.policy.scaling.offerings import Choice, list_alternatives, list_choices, list_configured


class PoolLaunches:
    """The offerings and slots that launches in one pool may take, and the launches and starts that were decided.

    Speed: a tick that considers no launch counts no slots. After the repairs, only launches change whether a slot is
    active, empty, or cordoned and ready, so that a later count finds the same slots.
    """

    def __init__(self, cycle: CycleState, name: str) -> None:
        self._cycle, self._name = cycle, name
        self.launches = self.starts = 0

    @cached_property
    def active(self) -> int:
        """How many slots of the pool are active, with those that this cycle launches."""
        return sum(each.state not in INACTIVE for each in self._cycle.pools[self._name])

    @cached_property
    def choices(self) -> list[Choice]:
        """The offerings that a new slot of the pool could be, cheapest first."""
        return list_choices(self._cycle.rules.pools[self._name])

    @cached_property
    def mix(self) -> MarketMix:
        """How the slots of the pool divide among the markets."""
        return count_mix((each.state, each.market) for each in self._cycle.pools[self._name])

    @cached_property
    def empty(self) -> list[SlotInfo]:
        """The slots that a launch may take. The next launch takes the last one, which is the first in slot order."""
        slot_infos = reversed(self._cycle.pools[self._name])
        return [each for each in slot_infos if each.state == "empty" and not each.slot.cordoned]

    @cached_property
    def cordoned(self) -> list[SlotInfo]:
        """The cordoned slots that are ready."""
        slot_infos = self._cycle.pools[self._name]
        return [each for each in slot_infos if each.slot.cordoned and each.state == "ready" and not each.stuck]

    @cached_property
    def startable(self) -> list[SlotInfo]:
        """The stopped slots that may be started now, cheapest first, then in slot order."""
        slot_infos, now = self._cycle.pools[self._name], self._cycle.now
        found = [each for each in slot_infos if is_in_tier(each) and not has_to_go(each, now) and _is_for_sale(each)]
        return sorted(found, key=lambda each: (each.slot.price or 0.0, each.order))

    def list_fitting(self, need: InstanceRequest) -> list[Choice]:
        """Return the choices for a new slot that could hold one instance, cheapest first."""
        return [each for each in self.choices if need.could_hold(self._name, each.capacity, each.labels)]


def is_in_tier(slot_info: SlotInfo) -> bool:
    """Return whether a slot is stopped and counts towards `stopped_slots`: its stop is confirmed, and it is not
    cordoned.
    """
    slot = slot_info.slot
    is_stopped = slot_info.state == slot.state == "stopped" and not slot.cordoned
    return is_stopped and is_settled_stop(slot, slot_info.pool)


def has_to_go(slot_info: SlotInfo, now: float) -> bool:
    """Return whether the slot's machine has drifted or is too old, by the rules of its pool."""
    if not slot_info.pool.replacement.is_on:
        return False
    has_drifted, end = find_life(slot_info, slot_info.pool)
    return has_drifted or now >= end


def _is_for_sale(slot_info: SlotInfo) -> bool:
    """Return whether the slot's offering may be launched too: its price is known and not too high."""
    offering = slot_info.pool.offering_by_key.get(slot_info.slot.offering or "")
    return offering is None or offering.is_for_sale


def find_own_choice(slot_info: SlotInfo) -> Choice:
    """Return the choice as which a stopped slot is started: its own offering, as the row of the slot describes it."""
    slot = slot_info.slot
    capacity = capacity_of(slot, slot_info.pool)
    return Choice(slot.offering, slot.market or "", slot.price or 0.0, capacity, slot.labels)


def list_resized(slot_info: SlotInfo) -> list[Choice]:
    """Return the other choices as which a stopped slot may be started, best first; none without `resize_stopped`.

    Each is of the same market and has at least the resources and labels of the slot's offering, as for a launch in
    bulk. The machine stays in its zone. All offerings of a pool serve one system, so the architecture stays.
    """
    slot, pool = slot_info.slot, slot_info.pool
    if not pool.resize_stopped:
        return []
    own = next((each for each in list_configured(pool) if each.key == slot.offering), None)
    found = [] if own is None else list_alternatives(pool, own, ())[1:]
    zones = {None, slot.zone}
    return [each for each in found if each.key and pool.offering_by_key[each.key].zone in zones]
