"""Slots as a cycle finds them. Facts that follow from a slot's row and its leases alone are cached in the view until
one of them changes, so that a cycle in which little has changed examines few slots.
"""

from typing import Final

from scheduler.model.rules import Pool
from scheduler.model.slots import Slot
from scheduler.model.transitions import HOLDING
from scheduler.model.view import View
from scheduler.policy.capacity.machine_fitness import find_reason_to_retire
from scheduler.policy.capacity.slot_info import NO_LEASES, CachedSlot, Leases, make_slot_info

AT_REST: Final = frozenset({"ready", "empty"})
"""A slot may stay in these states for any time."""


def open_slots(view: View, name: str, pool: Pool, cached: dict[str, CachedSlot]) -> list[CachedSlot]:
    """Return the cached facts of a pool's slots, in slot order.

    Slots that are not in `cached`, or were cached under other rules, are added to it.
    """
    found: list[CachedSlot] = []
    for slot in view.list_slots(name):
        known = cached.get(slot.id)
        if known is None or known.slot_info.pool is not pool:
            known = cached[slot.id] = _open(view, slot, pool)
        found.append(known)
    return found


def _open(view: View, slot: Slot, pool: Pool) -> CachedSlot:
    state = slot.state
    is_named = slot.id in view.leases_on
    slot_info = make_slot_info(slot, pool, 0, find_leases(view, slot) if is_named and state in HOLDING else NO_LEASES)
    is_at_rest = state in AT_REST and slot.interrupted_at is None
    if is_at_rest and state == "ready":
        is_at_rest = find_reason_to_retire(slot_info) is None
    return CachedSlot(slot_info, is_at_rest, not is_named or is_sound(view, slot))


def is_sound(view: View, slot: Slot) -> bool:
    """Return whether all leases that name a slot belong to its present epoch, and its state may hold leases."""
    named = view.leases_on.get(slot.id)
    return not named or (slot.state in HOLDING and len(find_leases(view, slot)) == len(named))


def find_leases(view: View, slot: Slot) -> Leases:
    """Return the leases of a slot's present epoch, by (reservation, component)."""
    found, epoch = view.leases_on.get(slot.id, NO_LEASES), slot.epoch
    for lease in found.values():
        if lease.epoch != epoch:
            return {key: each for key, each in found.items() if each.epoch == epoch}
    return found
