"""Whether a machine may be used further, by what is known of it and what its pool allows."""

from scheduler.model.decisions import SlotReason
from scheduler.model.machines import Offering
from scheduler.model.rules import Pool
from scheduler.model.slots import Slot
from scheduler.policy.capacity.slot_info import SlotInfo


def find_reason_to_retire(slot_info: SlotInfo) -> SlotReason | None:
    """Why a ready slot is no longer to be used; None while it is."""
    slot, pool = slot_info.slot, slot_info.pool
    if slot.offering is not None and not is_configured(slot, pool):
        return "unconfigured"
    if (slot_info.unconfirmed or slot.failed_probes) and is_unhealthy(pool, slot_info.unconfirmed, slot.failed_probes):
        return "unhealthy"
    if slot_info.unclean:
        return "unclean"
    if pool.max_uses and slot.uses >= pool.max_uses and not slot_info.leases and slot.stranger is None:
        return "used_up"
    # One that was to go while its state did not allow to drain it.
    return slot.drain_reason  # type: ignore[return-value]


def is_unhealthy(pool: Pool, unconfirmed: int, failed_probes: int) -> bool:
    """Whether so many leases were not confirmed, or so many probes failed, in a row, that it takes no more."""
    return 0 < pool.unhealthy_after <= max(unconfirmed, failed_probes)


def is_configured(slot: Slot, pool: Pool) -> bool:
    """Whether the offering that it was launched from is still one of its pool's; without one it always is.

    A key changes when a namesake in another market or zone comes or goes: name and market say what it is.
    """
    if slot.offering is None or not pool.is_elastic:
        return True
    known = pool.offering_by_key.get(slot.offering)
    if known is not None and slot.market in {None, known.market}:
        return True
    return any(slot.offering in _keys_of(each) and slot.market in {None, each.market} for each in pool.offerings)


def _keys_of(offering: Offering) -> tuple[str, str, str]:
    """What it may be called, depending on its namesakes."""
    key = f"{offering.name}/{offering.market}"
    return (offering.name, key, f"{key}/{offering.zone or 'any'}")
