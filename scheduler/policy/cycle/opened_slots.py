"""The slots as they are when a cycle begins, in slot order. They are kept from one cycle to the next, and only slots
that changed are read again.
"""

from collections.abc import Mapping
from itertools import chain
from typing import Any

from scheduler.model.pools import Pool
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot
from scheduler.model.view import View
from scheduler.policy.capacity.slot_info import CachedSlot, SlotInfo, is_sound, make_cached_slot
from scheduler.policy.plan_cache import list_touched

_copy: Any = SlotInfo.__copy__  # type: ignore[attr-defined]  # every Struct has it; half the time of copy()


class OpenedSlots:
    """The cached facts of all slots of the configured pools.

    Three fields list the slots that a cycle has to examine before it copies any slot. `restless`: a rule, such as a
    timeout, may change the slot. `unsound`: a lease names an earlier machine of the slot. `vanished`: the rules no
    longer list the slot's pool.
    """

    def __init__(self) -> None:
        self._view: View | None = None
        self._pools: Mapping[str, Pool] = {}
        self._revision = 0
        self._slots: dict[str, list[CachedSlot]] = {}
        """Pool name -> its slots, in slot order."""
        self._places: dict[str, tuple[str, int]] = {}
        """Slot id -> (its pool, its index in the list of this pool in `_slots`), in slot order."""
        self.restless: dict[int, str] = {}
        """Position in slot order -> slot id. It contains the slots that a rule of the lifecycle, such as a timeout, may
        change although no row or lease changes (`CachedSlot.is_at_rest` is False).
        """
        self.unsound: set[str] = set()
        """Ids of slots whose leases do not all belong to their present machine. Such a slot may not exist any more."""
        self.vanished: list[Slot] = []
        """Slots with EC2 machines whose pool the rules no longer list, in slot order."""

    def follow(self, view: View, rules: Rules, cached: dict[str, CachedSlot]) -> None:
        """Read the slots that changed since the last call. Read all slots if a slot was added or deleted, or if a pool
        has changed.

        `cached`: slot id -> cached facts (`PlanCache.slots`). Facts that are missing there are added.
        """
        is_known = view is self._view and _are_same(rules.pools, self._pools)
        if not is_known or not self._reread(view, cached):
            self._read_all(view, rules.pools, cached)
        self._revision = view.revision

    def _reread(self, view: View, cached: dict[str, CachedSlot]) -> bool:
        """Read the slots that changed, and return True. Return False if all slots have to be read, because a changed
        slot is new, was deleted or has another pool.
        """
        slots, places = view.slots, self._places
        for name in list_touched(view, self._revision):
            slot, place = slots.get(name), places.get(name)
            if slot is None or place is None or slot.pool != place[0]:
                return False
            there = self._slots[place[0]]
            old = there[place[1]]
            new = cached.get(name)
            if new is None:
                new = cached[name] = make_cached_slot(view, slot, self._pools[place[0]])
            new.slot_info.order = old.slot_info.order
            there[place[1]] = new
            if not (old.is_at_rest and new.is_at_rest and old.is_sound and new.is_sound):
                self._note(new)
        return True

    def _find(self, view: View, slot: Slot, order: int, cached: dict[str, CachedSlot]) -> CachedSlot:
        known = cached.get(slot.id)
        if known is None or known.slot_info.pool is not self._pools[slot.pool]:
            known = cached[slot.id] = make_cached_slot(view, slot, self._pools[slot.pool])
        known.slot_info.order = order
        return known

    def _note(self, opened: CachedSlot) -> None:
        """Add one slot to the tables, or remove it: `restless` contains the slot if a rule of the lifecycle may change
        it; `unsound` contains the slot if one of its leases does not belong to its present machine.
        """
        name, order = opened.slot_info.slot.id, opened.slot_info.order
        if opened.is_at_rest:
            self.restless.pop(order, None)
        else:
            self.restless[order] = name
        if opened.is_sound:
            self.unsound.discard(name)
        else:
            self.unsound.add(name)

    def _read_all(self, view: View, pools: Mapping[str, Pool], cached: dict[str, CachedSlot]) -> None:
        self._view, self._pools = view, dict(pools)
        self._slots, self._places, self.restless, self.unsound, self.vanished = {}, {}, {}, set(), []
        for name in pools:
            slots, first = view.pools[name].list() if name in view.pools else [], len(self._places)
            self._slots[name] = [self._find(view, slot, order, cached) for order, slot in enumerate(slots, first)]
            self._places.update((slot.id, (name, place)) for place, slot in enumerate(slots))
        for opened in chain.from_iterable(self._slots.values()):
            if not (opened.is_at_rest and opened.is_sound):
                self._note(opened)
        for name in sorted(set(view.pools).difference(pools)):
            slots = view.pools[name].list()
            self.vanished += [slot for slot in slots if slot.machine is None and slot.state != "empty"]
            self.unsound.update(slot.id for slot in slots if not is_sound(view, slot))
        self.unsound.update(view.leases_on.keys() - view.slots.keys())

    def copy(self) -> tuple[dict[str, list[SlotInfo]], dict[str, SlotInfo]]:
        """Return scratch copies of all slots, which one cycle may change. They are returned in two tables: (1) pool ->
        its slots in slot order, pools in configured order; (2) slot id -> slot.

        Speed: the copies are made in one pass over a list.
        """
        pools: dict[str, list[SlotInfo]] = {}
        for name, slots in self._slots.items():
            pools[name] = copies = list(map(_copy, [opened.slot_info for opened in slots]))
            for copy, opened in zip(copies, slots, strict=True):
                copy.opened = opened
        return pools, dict(zip(self._places, chain.from_iterable(pools.values()), strict=True))


def _are_same(pools: Mapping[str, Pool], others: Mapping[str, Pool]) -> bool:
    """Return whether two tables have the same pools (the same objects) in the same order."""
    return list(pools) == list(others) and all(pool is others[name] for name, pool in pools.items())
