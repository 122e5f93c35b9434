"""Lending: later work may use the slots that are kept for planned starts.

Work may start on a planned slot if it is expected to end before the planned start, or if it leaves room for the
reservation that is planned there. Work whose end is not known gets only the second. Source: EASY backfill.
"""

from copy import copy

from scheduler.model.resources import subtract
from scheduler.policy.capacity.gang import fill, has_room
from scheduler.policy.capacity.requests import Demand
from scheduler.policy.capacity.slot_index import SlotIndex
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.queueing.planned_start import PlannedSlot


class Lender:
    """The planned slots of a cycle, and what is left of them."""

    def __init__(self, cycle: CycleState) -> None:
        self._cycle = cycle
        self._starts: list[tuple[float, SlotIndex]] = []
        """(planned start, the slots that are kept for it)."""
        self._planned: dict[str, tuple[PlannedSlot, SlotIndex]] = {}
        """Id of a planned slot -> what is planned there, and the index that contains the slot."""
        self._beside: SlotIndex | None = None
        """Copies of the planned slots, with what work of any length may use of them."""
        self._copies: dict[str, SlotInfo] = {}
        self.refused: set[Demand] = set()
        """Demands that would not fit if the planned slots were not kept."""
        self.unlent: dict[Demand, float] = {}
        """Demand -> the earliest expected end with which it found no room."""

    def may_lend(self, demand: Demand) -> bool:
        """Return whether the demand would fit now if the planned slots were not kept."""
        if not self._starts or demand in self.refused:
            return False
        if demand in self.unlent or has_room(demand, (self._cycle.ready, *(index for _, index in self._starts))):
            return True
        self.refused.add(demand)
        return False

    def add(self, start: float, planned: list[PlannedSlot], index: SlotIndex) -> None:
        """Lend the slots of one planned start. `index` contains them."""
        self._starts.append((start, index))
        self.unlent.clear()
        self.refused.clear()
        for each in planned:
            slot_info = each.slot_info
            self._planned[slot_info.slot.id] = each, index
            if slot_info.pool.max_uses:
                slot_info.redeemed += each.count  # uses of the machine that are left for the planned instances
                index.regroup(slot_info)
            if slot_info.pool.lease_limit > each.load:
                if self._beside is None:
                    self._beside = self._cycle.make_index()
                twin = self._copies[slot_info.slot.id] = copy(slot_info)
                twin.opened = twin.slot_class = twin.remaining = None
                _limit(twin, each)
                self._beside.add(twin)

    def lend(self, demand: Demand, end: float) -> list[SlotInfo] | None:
        """Return slots for a demand that fits on no other ready slots, and take the capacity; None: there are none.
        `end`: when work that starts now is expected to end; infinity: it is not known.
        """
        refused = self.unlent.get(demand)
        if refused is not None and end >= refused:
            return None
        slot_infos = fill(demand, (self._cycle.ready, self._beside)) if self._beside is not None else None
        if slot_infos is not None:
            return self._take_beside(demand, slot_infos)
        lent = [index for start, index in self._starts if end <= start]
        slot_infos = fill(demand, (self._cycle.ready, *lent)) if lent else None
        if slot_infos is None:
            self.unlent[demand] = end
            return None
        for slot_info in slot_infos:
            self._renew_twin(slot_info)
        return slot_infos

    def _take_beside(self, demand: Demand, slot_infos: list[SlotInfo]) -> list[SlotInfo]:
        """Take the capacity that was found on copies from the planned slots. Return these in place of the copies."""
        found = []
        for need, slot_info in zip(demand.needs, slot_infos, strict=True):
            name = slot_info.slot.id
            if self._copies.get(name) is not slot_info:
                found.append(slot_info)
                continue
            amounts, (planned, index) = need.given[slot_info.slot.pool], self._planned[name]
            planned.load += 1
            planned.spare = None if planned.spare is None else subtract(planned.spare, amounts)
            real = planned.slot_info
            real.given += 1
            real.free = None if real.free is None else subtract(real.free, amounts)
            real.wanted = True
            index.regroup(real)
            found.append(real)
        for slot_info in found:
            self._renew_twin(slot_info)
        return found

    def _renew_twin(self, slot_info: SlotInfo) -> None:
        twin = self._copies.get(slot_info.slot.id)
        if twin is not None and self._beside is not None:
            _limit(twin, self._planned[slot_info.slot.id][0])
            self._beside.regroup(twin)


def _limit(twin: SlotInfo, planned: PlannedSlot) -> None:
    """Set what a copy has free: what is free now and at the planned start."""
    real, spare = planned.slot_info, planned.spare or {}
    twin.free = None if real.free is None else {name: min(each, spare.get(name, 0)) for name, each in real.free.items()}
    twin.given += max(real.load, planned.load) - twin.load
    twin.redeemed = real.redeemed + real.given - twin.given
