"""Reclaim under `quota`: elastic instances are reclaimed for a reservation that fits on no idle slot.

This is tried before whole reservations are preempted for it. `yielding`: essential instances of every reservation go
before elastic ones of others, at any level. `flexible`: only if the utilisation of the pools grows. No balance changes:
the cost of an elastic lease stays with its account. The rules of what may be reclaimed are those of the cascade
(`policy/elastic`). The search is another one: qscheduler takes slots in slot order, while the cascade packs or spreads.
Sources: Zoe, in the order of qscheduler.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from itertools import compress

import msgspec

from scheduler.model.accounts import FREE
from scheduler.model.decisions import Claim
from scheduler.model.reservations import Lease, Reservation
from scheduler.model.resources import Resources, total
from scheduler.policy.capacity.requests import InstanceRequest
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.state import make_revoke, name_placements
from scheduler.policy.elastic.assignment import MORE, weigh_use
from scheduler.policy.elastic.instances import RECLAIMS, is_reclaimable
from scheduler.policy.elastic.step import RECLAIMING
from scheduler.policy.queueing.order import sort_queue
from scheduler.policy.quota.pending_groups import PendingGroup
from scheduler.policy.quota.run import QuotaRun, fits_beside, make_leases


@dataclass(slots=True, eq=False)
class ReclaimableLease:
    """One elastic lease that may be reclaimed."""

    holder: Reservation
    lease: Lease
    slot_info: SlotInfo

    @property
    def key(self) -> tuple[str, str]:
        """The key of the lease in the table of its slot: (reservation, component)."""
        return self.holder.id, self.lease.component


def reclaim(quota_run: QuotaRun, groups: Iterable[PendingGroup], level: int) -> None:
    """Reclaim elastic instances for the pending groups, in their order.

    Only instances that stand in the way are reclaimed: last in rank first, highest index first. With a
    `preemption_grace` their holders have until then, and the newcomer claims the slots meanwhile.
    """
    if not quota_run.cycle.view.stretching:
        return
    takers = (group for group in groups if not group.is_served and group.demand.settings.elastic in RECLAIMS)
    heap = [(group.rank, group.number, group) for group in takers]
    if not heap:
        return
    heapify(heap)
    reclaimable = _list_reclaimable(quota_run)
    while heap and reclaimable:
        rank, number, group = heap[0]
        found = None
        if not group.is_served and (level == FREE or not quota_run.limits.is_fanned_out(group)):
            if rank != group.rank:
                heapreplace(heap, (group.rank, number, group))
                continue
            found = _Trial(quota_run, reclaimable, group).run()
        if found is None:
            heappop(heap)
        else:
            _carry_out(quota_run, group, *found, level)
            reclaimable = [part for part in reclaimable if part not in found[1]]


def _list_reclaimable(quota_run: QuotaRun) -> list[ReclaimableLease]:
    """Return all leases that may be reclaimed in queues that are `quota` and allow reclaim, last in rank first."""
    cycle, slot_infos = quota_run.cycle, {slot_info.slot.id: slot_info for slot_info in quota_run.slot_infos}
    leased = [each for each in cycle.view.stretching.values() if cycle.stays_leased(each)]
    may_give = [each.queue == "quota" and each.elastic in RECLAIMS for each in map(cycle.settings_of, leased)]
    found: list[ReclaimableLease] = []
    for holder, demand in sort_queue(cycle, compress(leased, may_give)):
        held = {lease.component: lease for lease in holder.leases if lease.kind == "elastic"}
        for lease in [held[each.name] for each in demand.shape.elastic if each.name in held]:
            slot_info = slot_infos.get(lease.slot)
            if slot_info is not None and is_reclaimable(cycle, slot_info, holder, lease):
                found.append(ReclaimableLease(holder, lease, slot_info))
    return found[::-1]


@dataclass(slots=True)
class _Trial:
    """A trial: slots for one reservation, and the elastic leases that have to be reclaimed for it."""

    quota_run: QuotaRun
    reclaimable: Sequence[ReclaimableLease]
    group: PendingGroup
    gone: list[ReclaimableLease] = field(default_factory=list)
    taken: dict[SlotInfo, list[Resources]] = field(default_factory=dict)

    def run(self) -> tuple[list[SlotInfo], list[ReclaimableLease]] | None:
        """Return a slot for each instance and the leases to reclaim; None if reclaims do not make all instances fit."""
        slot_infos: list[SlotInfo] = []
        for need in self.group.demand.needs:
            slot_info = self._find(need)
            if slot_info is None:
                return None
            self.taken.setdefault(slot_info, []).append(need.given[slot_info.slot.pool])
            slot_infos.append(slot_info)
        self._put_back()
        if self.quota_run.limits.refuses(self.group.account, slot_infos) or not self._is_worth_it():
            return None
        # Without reclaims the reservation waits for revoking leases that nothing claims: it is placed once they have
        # ended.
        return (
            (slot_infos, self.gone) if self.gone or all(self._fits(each, at_once=True) for each in slot_infos) else None
        )

    def _put_back(self) -> None:
        """Put elastic leases back that the trial took off needlessly: the reservation fits beside them. First in rank
        come first.
        """
        for number in reversed(range(len(self.gone))):
            part = self.gone.pop(number)
            if not self._fits(part.slot_info):
                self.gone.insert(number, part)

    def _find(self, need: InstanceRequest) -> SlotInfo | None:
        """Return the first idle slot with capacity, else the first that has it as elastic leases go one by one."""
        for slot_info in self.quota_run.idle:
            if self._could_serve(slot_info, need) and self._fits(slot_info, need):
                return slot_info
        for part in self.reclaimable:
            if part in self.gone or not self._could_serve(part.slot_info, need):
                continue
            self.gone.append(part)
            if self._fits(part.slot_info, need):
                return part.slot_info
        return None

    def _could_serve(self, slot_info: SlotInfo, need: InstanceRequest) -> bool:
        if slot_info.slot.pool not in need.given or slot_info.slot.id in self.group.demand.declined:
            return False
        return need.could_hold(slot_info.slot.pool, slot_info.capacity, slot_info.labels)

    def _fits(self, slot_info: SlotInfo, need: InstanceRequest | None = None, *, at_once: bool = False) -> bool:
        """Return whether the trial's instances on a slot, and one more, fit without the leases to reclaim."""
        wanted = [*self.taken.get(slot_info, ()), *([need.given[slot_info.slot.pool]] if need else ())]
        gone = {part.key for part in self.gone}
        staying = [lease for key, lease in slot_info.leases.items() if key not in gone]
        at_once = at_once or not self.group.demand.settings.preemption_grace
        return fits_beside(slot_info, staying, self.quota_run.given.get(slot_info, ()), wanted, at_once=at_once)

    def _is_worth_it(self) -> bool:
        if self.group.demand.settings.elastic == "yielding":
            return True
        slot_infos = [*self.taken, *(part.slot_info for part in self.gone)]
        have: dict[str, Resources] = {}
        for name in {slot_info.slot.pool for slot_info in slot_infos}:
            have[name] = total(each.capacity or {} for each in self.quota_run.slot_infos if each.slot.pool == name)
        given = sum(weigh_use(slot_info, each, have) for slot_info, taken in self.taken.items() for each in taken)
        return given > sum(weigh_use(part.slot_info, part.lease.resources, have) for part in self.gone) + MORE


def _carry_out(
    quota_run: QuotaRun, group: PendingGroup, slot_infos: list[SlotInfo], gone: list[ReclaimableLease], level: int
) -> None:
    cycle, newcomer = quota_run.cycle, group.first
    revoke_by = cycle.find_revoke_by(group.demand.settings)
    for part in gone:
        cycle.decide(make_revoke(part.holder.id, part.lease, "reclaimed", revoke_by, newcomer.id))
        if revoke_by is None:
            cycle.end_instance(part.holder, part.lease.component, part.lease.slot)
            quota_run.give_up(part.holder, part.lease, None)
        else:
            leaving = msgspec.structs.replace(part.lease, state="revoking", revoke_by=revoke_by, charged_at=None)
            part.slot_info.leases = {**part.slot_info.leases, part.key: leaving}
            quota_run.give_up(part.holder, part.lease, leaving)
        quota_run.recount(part.slot_info)
    if revoke_by is None or not gone:
        quota_run.assign(group, slot_infos, level)
        quota_run.reopen(part.slot_info for part in gone)
        return
    quota_run.serve(group)
    quota_run.limits.note(group, slot_infos)
    claims = make_leases(cycle, group.demand, slot_infos, level)
    cycle.decide(Claim(reservation=newcomer.id, leases=name_placements(claims), level=level))
    quota_run.hold(newcomer, tuple(msgspec.structs.replace(each, state="claimed") for each in claims))
    cycle.wait(newcomer.id, "no_capacity", RECLAIMING)
