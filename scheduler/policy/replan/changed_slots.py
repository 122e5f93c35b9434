"""The changed slots of a kept cycle: the cycle reads their rows and leases again."""

from collections.abc import Iterable

from scheduler.policy.capacity.slot_info import SlotInfo, find_life, renew_slot
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.replan.idle_slots import IdleSlots
from scheduler.policy.replan.lives import Lives


def renew_all(cycle: CycleState, names: Iterable[str], idle: IdleSlots, lives: Lives) -> list[SlotInfo] | None:
    """Set the scratch copies of these slots to their present rows and leases, and return the copies. `idle`, `lives`:
    what the kept cycle knows about idle slots and about the ends of machines; both are updated.

    Return None if only a full cycle can plan. This is the case if one of the slots (1) was added or deleted; (2) has
    another pool, or other amounts, labels or another market than before; (3) has a lease that was granted on an earlier
    machine of the slot; (4) took no leases before or takes none now; or (5) may change its state by a rule of the
    lifecycle, such as a timeout.
    """
    slots, slot_infos, found = cycle.view.slots, cycle.slot_infos, list[SlotInfo]()
    for name in names:
        slot, slot_info = slots.get(name), slot_infos.get(name)
        if slot is None or slot_info is None:
            return None
        pool, life, takes_leases = slot_info.pool, None, slot_info.takes_leases
        is_new_row = slot is not slot_info.slot
        if not takes_leases or (is_new_row and slot.pool != slot_info.slot.pool):
            return None
        if is_new_row and pool.is_elastic and pool.replacement.is_on:
            life = find_life(slot_info, pool)
        opened = renew_slot(slot_info, cycle.view, slot)
        if is_new_row:
            takes_leases = slot_info.takes_leases
        if opened is None or not (opened.is_at_rest and opened.is_sound and takes_leases):
            return None
        if slot_info.slot_class is None:  # under `quota` the index leaves full slots out
            cycle.ready.add(slot_info)
        else:
            cycle.ready.regroup(slot_info)
        if pool.is_elastic:  # other pools keep their slots
            idle.note(slot_info)
            if life is not None and find_life(slot_info, pool) != life:
                lives.forget()
        found.append(slot_info)
    return found
