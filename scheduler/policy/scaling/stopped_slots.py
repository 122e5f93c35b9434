"""The stopped slots of a pool that may be started, and the offerings as which each may be started."""

from collections.abc import Iterable

from scheduler.policy.capacity.slot_info import SlotInfo, capacity_of, find_life, is_settled_stop
from scheduler.policy.scaling.offerings import Choice, list_alternatives, list_configured


def list_startable(slot_infos: Iterable[SlotInfo], now: float) -> list[SlotInfo]:
    """Return the stopped slots that may be started now, cheapest first, then in slot order."""
    found = [each for each in slot_infos if is_in_tier(each) and not has_to_go(each, now) and _is_for_sale(each)]
    return sorted(found, key=lambda each: (each.slot.price or 0.0, each.order))


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
