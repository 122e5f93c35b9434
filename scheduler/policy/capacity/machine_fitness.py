"""Whether a machine may stay in service, by its record and the limits of its pool."""

from scheduler.model.decisions import SlotReason
from scheduler.model.machines import Offering
from scheduler.model.rules import Pool
from scheduler.model.slots import Slot
from scheduler.policy.capacity.slot_info import SlotInfo


def find_reason_to_retire(slot_info: SlotInfo) -> SlotReason | None:
    """Return why a ready slot must be drained; None if it stays in service."""
    slot, pool = slot_info.slot, slot_info.pool
    if slot.offering is not None and not is_configured(slot, pool):
        return "unconfigured"
    if (slot_info.unconfirmed or slot.failed_probes) and is_unhealthy(pool, slot_info.unconfirmed, slot.failed_probes):
        return "unhealthy"
    if slot_info.unclean:
        return "unclean"
    if pool.max_uses and slot.uses >= pool.max_uses and not slot_info.leases and slot.stranger is None:
        return "used_up"
    # A slot that boots cannot drain yet, so its row keeps the reason until the slot is ready.
    return slot.drain_reason  # type: ignore[return-value]


def is_unhealthy(pool: Pool, unconfirmed: int, failed_probes: int) -> bool:
    """Return whether `unhealthy_after` leases in a row were not confirmed, or as many probes in a row failed."""
    return 0 < pool.unhealthy_after <= max(unconfirmed, failed_probes)


def is_configured(slot: Slot, pool: Pool) -> bool:
    """Return whether the pool still lists the offering that the slot was launched from; True without an offering.

    The key of an offering changes when another one with its name appears in another market or zone, so the name and
    the market are compared too.
    """
    if slot.offering is None or not pool.is_elastic:
        return True
    known = pool.offering_by_key.get(slot.offering)
    if known is not None and slot.market in {None, known.market}:
        return True
    return any(slot.offering in _keys_of(each) and slot.market in {None, each.market} for each in pool.offerings)


def _keys_of(offering: Offering) -> tuple[str, str, str]:
    """Return the keys that an offering can have, depending on other offerings with its name."""
    key = f"{offering.name}/{offering.market}"
    return (offering.name, key, f"{key}/{offering.zone or 'any'}")
