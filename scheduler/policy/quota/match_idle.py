"""Assign idle slots to the first reservations in order: one step of the placing by quota.

In slot order, each slot takes the first reservation whose required labels the slot has (in the step for preferences,
also all preferred labels), and then the next one, until the slot is full. No idle slot is kept for a better
reservation. A reservation with several instances is tried on the slot where its first instance would be placed. Its
other instances take the first slots in slot order on which they fit. The reservation is placed if all instances fit. If
not, the slot goes to the next reservation in order, and later slots are tried for this one. Source: qscheduler.
"""

from collections.abc import Iterable
from functools import partial

from scheduler.model.labels import has_labels
from scheduler.model.resources import Resources, subtract
from scheduler.policy.capacity.fits import find_obstacle
from scheduler.policy.capacity.requests import Demand, InstanceRequest
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.quota.group_table import Candidates
from scheduler.policy.quota.pending_groups import PendingGroup, PendingIndex, Requirements
from scheduler.policy.quota.run import QuotaRun


def match_idle(quota_run: QuotaRun, candidates: Candidates, level: int, *, preferring: bool) -> None:
    """Assign idle slots to pending groups at one level.

    `preferring`: only slots with all labels that a group prefers.
    """
    if not candidates.payers or not quota_run.idle:
        return
    matching = _Matching(quota_run, candidates, level, preferring=preferring)
    for slot_info in quota_run.idle:
        while slot_info.has_place and (met := quota_run.requirements_index.list_met(slot_info, slot_info.free)):
            found = matching.find(met, slot_info)
            if found is None:
                break
            quota_run.assign(*found, level)
    quota_run.drop_full()


class _Matching:
    def __init__(self, quota_run: QuotaRun, candidates: Candidates, level: int, *, preferring: bool) -> None:
        self._run, self._level, self._preferring = quota_run, level, preferring
        self._pending: PendingIndex[list[SlotInfo]] = PendingIndex(
            partial(candidates.list_meeting, preferring=preferring), self._is_out
        )
        self._hopeless: set[PendingGroup] = set()
        """Groups with several instances for each reservation that do not fit even without the first instance."""

    def find(self, met: tuple[Requirements, ...], slot_info: SlotInfo) -> tuple[PendingGroup, list[SlotInfo]] | None:
        """Return the first group whose first instance can be placed on this slot, and a slot for each instance."""
        return self._pending.find(met, lambda group: self._find_slots(group, slot_info))

    def _is_out(self, group: PendingGroup) -> bool:
        is_paid = self._level in range(5)
        return group in self._hopeless or (is_paid and self._run.limits.is_fanned_out(group))

    def _find_slots(self, group: PendingGroup, slot_info: SlotInfo) -> list[SlotInfo] | None:
        """Return a slot for each instance, this slot for the first one; None if the group cannot be placed here.

        It cannot if this slot was declined, an instance fits on no slot, or a limit of the account refuses the slots.
        """
        if slot_info.slot.id in group.demand.declined:
            return None
        slot_infos: list[SlotInfo] | None = [slot_info]
        if len(group.demand.needs) > 1:
            slot_infos = self._find_all(group, slot_info)
        if slot_infos is None or self._run.limits.refuses(group.account, slot_infos):
            return None
        return slot_infos

    def _find_all(self, group: PendingGroup, slot_info: SlotInfo) -> list[SlotInfo] | None:
        needs = group.demand.needs
        scratch = _Scratch(self._run.idle, group.demand, preferring=self._preferring)
        scratch.take(slot_info, needs[0])
        rest = scratch.take_all(needs[1:])
        if rest is not None:
            return [slot_info, *rest]
        without_first = _Scratch(self._run.idle, group.demand, preferring=self._preferring)
        if without_first.take_all(needs[1:]) is None:
            self._hopeless.add(group)
        return None


class _Scratch:
    """A trial for one reservation: it places the instances on idle slots in a copy of their capacity."""

    def __init__(self, idle: list[SlotInfo], demand: Demand, *, preferring: bool) -> None:
        self._idle, self._demand, self._preferring = idle, demand, preferring
        self._taken: dict[SlotInfo, list[InstanceRequest]] = {}

    def take_all(self, needs: Iterable[InstanceRequest]) -> list[SlotInfo] | None:
        """Return for each request the first slot in slot order on which it fits; None if a request fits on no slot."""
        slot_infos = []
        for need in needs:
            slot_info = next((each for each in self._idle if self._has_room(each, need)), None)
            if slot_info is None:
                return None
            self.take(slot_info, need)
            slot_infos.append(slot_info)
        return slot_infos

    def take(self, slot_info: SlotInfo, need: InstanceRequest) -> None:
        """Subtract one instance from the free capacity of a slot in this trial, which is a copy."""
        self._taken.setdefault(slot_info, []).append(need)

    def _has_room(self, slot_info: SlotInfo, need: InstanceRequest) -> bool:
        taken, pool = self._taken.get(slot_info, ()), slot_info.slot.pool
        if pool not in need.given or slot_info.slot.id in self._demand.declined:
            return False
        if self._preferring and not has_labels(slot_info.labels, need.prefers):
            return False
        free: Resources | None = slot_info.free
        for each in taken:
            free = None if free is None else subtract(free, each.given[pool])
        leases = slot_info.pool.lease_limit - slot_info.load - len(taken)
        if find_obstacle(need.given[pool], free, leases, slot_info.uses_left - len(taken)) is not None:
            return False
        return need.rank_labels(slot_info.labels) is not None
