"""The starvation guard: who has waited for too long is not overtaken on the slots that could serve it.

Without it a big reservation waits for ever while small ones keep every slot half full. Orchard's backfill, bounded.
"""

from collections.abc import Iterable

from scheduler.model.reservations import Reservation, Shape
from scheduler.policy.capacity.gang import Shortage, has_room, has_room_for_some
from scheduler.policy.capacity.requests import Demand, InstanceRequest, RequestClass
from scheduler.policy.capacity.slot_index import SlotIndex
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.scaling.launch_limits import LaunchLimits, first_code
from scheduler.policy.scaling.trial_launch import TrialLaunch

_Kind = tuple[Shape, tuple[str, ...], tuple[str, ...]]
"""Whom the same slots could serve: shape, pools with on-demand offerings for it, slots that are left out."""


class StarvationGuard:
    """Takes the slots that could serve a protected reservation out of the ready rooms, for all behind it; for these
    none is launched either that could serve a gang which waits for more than that (`policy/scaling/launch.py`).
    """

    def __init__(self, cycle: CycleState, limits: LaunchLimits, oldest: float) -> None:
        self._cycle, self._limits = cycle, limits
        self.keeps_any = False
        """Whether any slot is kept."""
        self._kept_out: dict[Demand, bool] = {}
        """Of those with one instance: whether it has room on what is kept, from which nothing is taken."""
        self._oldest = oldest
        self._looked_after: set[_Kind] = set()
        """For whom all that could serve them is kept already, or need not be."""
        self._kept_for: set[RequestClass] = set()
        """For instances like these all that could hold one is kept already."""
        self.few = Shortage()
        """Of places that are ready, kept ones too; to be cleared when room is given back."""

    def protect(self, reservation: Reservation, demand: Demand, *, is_covered: bool) -> None:
        """Protect it if it has been pending for longer than `starvation_guard` (0 = off), unless what it waits for
        is not a slot: it is held by `capacity`, or only cordoned slots have room. One that has room on slots that
        are ready or on their way waits for these.
        """
        limit = demand.settings.starvation_guard
        if not limit or self._cycle.now - reservation.created_at <= limit:
            return
        kind = _kind_of(demand)
        if kind in self._looked_after and (is_covered or len(demand.needs) == 1):
            return
        if is_covered or not self._waits_otherwise(demand):
            if len(demand.needs) > 1:
                self._cycle.protected.add(reservation.id)
            if kind not in self._looked_after:
                self._keep_slots(reservation, demand)
        self._looked_after.add(kind)

    def is_done_with(self, demand: Demand) -> bool:
        """Whether it does nothing more for those with this demand, however long they have waited."""
        limit = demand.settings.starvation_guard
        is_young = not limit or self._cycle.now - self._oldest <= limit
        return is_young or _kind_of(demand) in self._looked_after

    def _keep_slots(self, reservation: Reservation, demand: Demand) -> None:
        needs = [need for need in dict.fromkeys(demand.needs) if need.likeness not in self._kept_for]
        slot_infos = self._cycle.ready.list_slot_infos() if needs else ()
        kept = [
            slot_info
            for slot_info in slot_infos
            if slot_info.slot.id not in demand.declined and _could_hold(needs, slot_info)
        ]
        if kept:
            slot_index = self._cycle.kept.setdefault(reservation.id if len(demand.needs) > 1 else "", SlotIndex())
            for slot_info in kept:
                self._cycle.ready.remove(slot_info)
                slot_index.add(slot_info)
            self.keeps_any = True
        if not demand.declined:
            self._kept_for.update(need.likeness for need in needs)
        self._kept_out.clear()

    def keeps_out(self, demand: Demand) -> bool:
        """Whether one that found nothing ready would have got a lease but for the slots that are kept for others."""
        if len(demand.needs) > 1:
            return has_room(demand, (self._cycle.ready, *self._cycle.kept.values()), self.few)
        if demand not in self._kept_out:
            self._kept_out[demand] = has_room(demand, tuple(self._cycle.kept.values()))
        return self._kept_out[demand]

    def _waits_otherwise(self, demand: Demand) -> bool:
        if len(demand.alike) > 1:  # what one of them takes may be what another lacks
            there = [self._cycle.ready, self._cycle.coming]
            return TrialLaunch(self._cycle, self._limits, demand, there).foresee_code() in {"capacity", "cordoned"}
        needs = dict.fromkeys(demand.needs)
        codes = [[code for *_, code in self._limits.list_choices(demand, need)] for need in needs]
        if any(first_code(held) == "capacity" for held in codes):
            return True
        if any(codes):
            return self._limits.choose_code(demand, first_code(codes[0])) == "cordoned"
        if not all(map(self._limits.has_cordoned_room, needs)):
            return False
        return not has_room_for_some(demand, (self._cycle.ready, self._cycle.coming))


def _kind_of(demand: Demand) -> _Kind:
    return demand.shape, demand.impatient, demand.declined


def _could_hold(needs: Iterable[InstanceRequest], slot_info: SlotInfo) -> bool:
    """Whether the slot, if it were empty, could hold one of these instances."""
    pool, capacity, labels = slot_info.slot.pool, slot_info.capacity, slot_info.labels
    return any(pool in need.given and need.could_hold(pool, capacity, labels) for need in needs)
