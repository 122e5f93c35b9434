"""Reclaim under `quota`: elastic instances are reclaimed for a reservation that fits on no idle slot.

A reclaim is tried before whole reservations are preempted. The setting `elastic` decides about it. `yielding`: the
essential instances of each reservation have precedence over elastic instances of others, at any level. `flexible`: they
have precedence only if the leases of the pools then use more of the pools' resources in all. No balance changes: the
cost of an elastic lease stays with its account. The rules of what may be reclaimed are those for other queues
(`policy/elastic`). The search is another one: slots are taken in slot order, and not packed or spread. Sources: Zoe for
the reclaim, qscheduler for the order of the slots.
"""

from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from itertools import compress, islice
from math import inf
from operator import attrgetter

import msgspec

from scheduler.model.accounts import FREE
from scheduler.model.reservations import Lease, Reservation
from scheduler.model.resources import Resources, shape_of, total
from scheduler.policy.capacity.fits import Moment, measure
from scheduler.policy.capacity.gang import OpenSlot, Runs, place
from scheduler.policy.capacity.requests import Demand, InstanceRequest
from scheduler.policy.capacity.slot_index import RemainingCapacities
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.state import make_revoke
from scheduler.policy.elastic.assignment import MORE, RatedSlots, weigh_use
from scheduler.policy.elastic.instances import RECLAIMS, is_reclaimable
from scheduler.policy.elastic.step import RECLAIMING
from scheduler.policy.elastic.victim_search import ROUNDING
from scheduler.policy.queueing.order import sort_queue
from scheduler.policy.quota.group_table import PendingGroup
from scheduler.policy.quota.run import QuotaRun, QuotaSpace, TrialLeases, could_serve, fits_beside


@dataclass(slots=True, eq=False)
class ReclaimableLease:
    """An elastic lease that may be reclaimed, with its reservation and its slot."""

    holder: Reservation
    lease: Lease
    slot_info: SlotInfo

    @property
    def key(self) -> tuple[str, str]:
        """The key of the lease in `slot_info.leases`: (reservation id, component)."""
        return self.holder.id, self.lease.component


def reclaim(quota_run: QuotaRun, groups: Iterable[PendingGroup], level: int) -> None:
    """Reclaim elastic instances for the reservations of pending groups, in the order of the groups, and assign the
    slots at `level`.

    Only instances whose capacity is needed are reclaimed: last in rank first, highest index first. With a
    `preemption_grace` their holders have that time to stop, and the pending reservation claims the slots meanwhile.
    """
    if not quota_run.cycle.view.stretching:
        return
    takers = (group for group in groups if not group.is_served and group.demand.settings.elastic in RECLAIMS)
    heap = [(group.rank, group.number, group) for group in takers]
    if not heap:
        return
    heapify(heap)
    reclaimable = _Reclaimable(quota_run, _list_reclaimable(quota_run))
    while heap and reclaimable.may_serve:
        rank, number, group = heap[0]
        found = None
        if not group.is_served and (level == FREE or not quota_run.limits.is_fanned_out(group)):
            if rank != group.rank:
                heapreplace(heap, (group.rank, number, group))
                continue
            found = _Trial(reclaimable, group).run()
        if found is None:
            heappop(heap)
        else:
            _carry_out(reclaimable, group, *found, level)


def _list_reclaimable(quota_run: QuotaRun) -> list[ReclaimableLease]:
    """Return the elastic leases that may be reclaimed, last in rank first. They are in `quota` queues whose setting
    `elastic` is `flexible` or `yielding`.
    """
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


class _Reclaimable:
    """The elastic leases that may be reclaimed, and the idle slots, during one call of `reclaim`.

    The capacity that a slot would have without all of these leases only shrinks during the call.
    """

    def __init__(self, quota_run: QuotaRun, parts: Sequence[ReclaimableLease]) -> None:
        """Start with the leases `parts`: all leases that may be reclaimed, last in rank first."""
        self.quota_run, self._parts, self._start = quota_run, parts, 0
        self.left = set(parts)
        """The leases that may be reclaimed and that were not reclaimed yet."""
        self.idle = set(quota_run.idle)
        self._fitting: dict[tuple[Demand, InstanceRequest], RatedSlots[int]] = {}
        """(demand, request of one instance) -> the idle slots on which the instance fits without a reclaim, in slot
        order.
        """
        self._changed: list[SlotInfo] = []
        """The slots that reclaims have changed, with one entry for each change."""
        self._most: dict[SlotInfo, tuple[Resources | None, float]] = {}
        """Slot -> (amounts, number of leases): the most that further leases could take there if all reclaimable leases
        on the slot ended. Amounts None: without limit.
        """
        self._on: dict[SlotInfo, set[tuple[str, str]]] = {}
        for part in parts:
            self._on.setdefault(part.slot_info, set()).add(part.key)
        self._have: dict[str, Resources] = {}

    @property
    def may_serve(self) -> bool:
        """Whether a lease may still be reclaimed, or earlier reclaims may have left capacity for others."""
        return bool(self.left) or len(self.left) < len(self._parts)

    def walk(self) -> Iterator[ReclaimableLease]:
        """Return an iterator over the leases that were not reclaimed yet, last in rank first."""
        while self._start < len(self._parts) and self._parts[self._start] not in self.left:
            self._start += 1
        return filter(self.left.__contains__, islice(self._parts, self._start, None))

    def note(self, slot_infos: Sequence[SlotInfo], gone: Iterable[ReclaimableLease]) -> None:
        """Record the result of a reclaim: the leases `gone` were reclaimed. The reservation for which this was done now
        has leases or claims on the slots `slot_infos`.
        """
        self.left.difference_update(gone)
        self._changed += [*slot_infos, *(part.slot_info for part in gone)]
        if any(slot_info.pool.max_uses for slot_info in slot_infos):
            self.idle = set(self.quota_run.idle)

    def reopen(self, gone: Iterable[ReclaimableLease]) -> None:
        """Add the slots of the reclaimed leases `gone` to the idle slots, unless they still cannot take one more
        lease.
        """
        found = [part.slot_info for part in gone if part.slot_info.has_place and part.slot_info not in self.idle]
        if found:  # speed: most slots of reclaimed leases are idle slots already
            self.quota_run.reopen(found)
            self.idle.update(found)

    def find_idle(self, demand: Demand, need: InstanceRequest, touched: Collection[str]) -> SlotInfo | None:
        """Return the first idle slot in slot order on which an instance fits without a reclaim; None if there is none.
        `touched`: ids of slots to ignore.
        """
        fitting = self._fitting.get((demand, need))
        if fitting is None:

            def rate(slot_info: SlotInfo) -> int | None:
                fits = slot_info in self.idle and _fits_now(self.quota_run, demand, need, slot_info)
                return slot_info.order if fits else None

            fitting = self._fitting[demand, need] = RatedSlots(rate, self._changed)
            for slot_info in self.quota_run.idle:
                fitting.add(slot_info)
        found = fitting.find_first(touched)
        return None if found is None else found[1]

    def could_give(self, slot_info: SlotInfo, need: InstanceRequest) -> bool:
        """Return False if it is certain that an instance does not fit on a slot even if all reclaimable leases there
        end; else True.

        The result is True for a slot with more leases than its limit, because leases have to be reclaimed there in any
        case.
        """
        if slot_info not in self._most:
            self._most[slot_info] = self._find_most(slot_info)
        free, leases = self._most[slot_info]
        return leases > 0 and _could_fit(need.given[slot_info.slot.pool], free)

    def _find_most(self, slot_info: SlotInfo) -> tuple[Resources | None, float]:
        limit = slot_info.pool.lease_limit
        if measure(slot_info.leases.values()).count > limit - slot_info.given:
            return None, inf
        staying = [lease for key, lease in slot_info.leases.items() if key not in self._on[slot_info]]
        count, free = self.quota_run.find_free(slot_info, staying, "later")
        return free, limit - count

    def have(self, pool: str) -> Resources:
        """Return the sum of the resources of a pool's slots in service."""
        if pool not in self._have:
            slot_infos = (each for each in self.quota_run.slot_infos if each.slot.pool == pool)
            self._have[pool] = total(each.capacity or {} for each in slot_infos)
        return self._have[pool]


def _could_fit(amounts: Resources, free: Resources | None) -> bool:
    """Return False if it is certain that `amounts` do not fit into `free` (None: no limit); else True. Small
    differences are ignored, because `free` may have been summed in another order.
    """
    return free is None or all(amount <= free.get(name, 0) + ROUNDING for name, amount in amounts.items() if amount > 0)


def _fits_now(quota_run: QuotaRun, demand: Demand, need: InstanceRequest, slot_info: SlotInfo) -> bool:
    """Return whether an instance fits on a slot beside the present leases. With a grace period, revoking leases do not
    count, because the instance begins after them.
    """
    if not could_serve(demand, need, slot_info):
        return False
    amounts, leases = need.given[slot_info.slot.pool], slot_info.leases.values()
    at_once = not demand.settings.preemption_grace or all(lease.state != "revoking" for lease in leases)
    if at_once and not _could_fit(amounts, slot_info.free):
        return False  # speed: most slots have too little
    return fits_beside(slot_info, leases, quota_run.given.get(slot_info, ()), [amounts], at_once=at_once)


@dataclass(slots=True)
class _Trial(QuotaSpace):
    """A trial for one reservation: it finds a slot for each instance, and the elastic leases that have to be reclaimed
    for them. It is a space (`Space` in `capacity/gang.py`).
    """

    reclaimable: _Reclaimable
    group: PendingGroup
    quota_run: QuotaRun = field(init=False)
    gone: list[ReclaimableLease] = field(default_factory=list)
    taken: dict[SlotInfo, list[Resources]] = field(default_factory=dict)
    _away: set[tuple[str, str]] = field(default_factory=set)
    """The keys (reservation id, component) of the leases in `gone`, the leases that the trial has lifted."""
    _touched: dict[str, SlotInfo] = field(default_factory=dict)
    """Slot id -> slot, for the slots on which the trial has placed an instance or lifted a lease."""
    _full: dict[SlotInfo, set[InstanceRequest]] = field(default_factory=dict)
    """Slot in `_touched` -> the requests that are known not to fit there."""
    _walks: dict[InstanceRequest, Iterator[ReclaimableLease]] = field(default_factory=dict)
    """Request -> an iterator over the leases that may still be lifted for this request."""
    _limited: TrialLeases | None = field(init=False)
    """Tests the trial's instances against the account's limits for labels; None: the account has no such limit."""

    def __post_init__(self) -> None:
        self.quota_run = self.reclaimable.quota_run
        self._limited = self.quota_run.limits.try_leases(self.group.account)

    def run(self) -> tuple[list[SlotInfo], list[ReclaimableLease]] | None:
        """Return two things: (1) a slot for each instance; (2) the leases to reclaim. Return None in three cases:

        (1) The instances do not fit even after all possible reclaims. (2) With the setting `elastic: flexible`, the
        instances would use no more resources than the reclaimed leases do. (3) No reclaim is needed, and the instances
        fit only after leases that are revoking already have ended; the reservation waits for their end.
        """
        slot_infos = place(self.group.demand, self)
        if slot_infos is None:
            return None
        self._put_back()
        if not self._is_worth_it():
            return None
        # Without reclaims the reservation waits for revoking leases that nothing claims: it is placed once they have
        # ended.
        return (
            (slot_infos, self.gone) if self.gone or all(self._fits(each, at_once=True) for each in slot_infos) else None
        )

    def take(self, slot_info: SlotInfo, need: InstanceRequest, most: int) -> int:  # noqa: ARG002  one at a time
        """Place one instance on a slot in the trial."""
        if self._limited is not None:
            self._limited.take(slot_info)
        self.taken.setdefault(slot_info, []).append(need.given[slot_info.slot.pool])
        self._touched[slot_info.slot.id] = slot_info
        return 1

    def undo(self) -> None:
        """Take all instances back, and undo all lifts."""
        for each in (self.gone, self.taken, self._away, self._touched, self._full, self._walks):
            each.clear()
        self._limited = self.quota_run.limits.try_leases(self.group.account)

    def widen(self, runs: Runs) -> None:
        """Lift all elastic leases on slots that could serve an instance. `_put_back` puts most of them back."""
        needs = dict.fromkeys(need for need, _ in runs)
        for part in self.reclaimable.walk():
            if any(could_serve(self.group.demand, need, part.slot_info) for need in needs):
                self.gone.append(part)
                self._away.add(part.key)
                self._touched[part.slot_info.slot.id] = part.slot_info

    def list_open(self, needs: Collection[InstanceRequest]) -> Iterator[OpenSlot]:  # noqa: ARG002  of all requests
        """Yield the idle slots, and those on which leases are lifted."""
        capacities = RemainingCapacities()
        moment: Moment = "later" if self.group.demand.settings.preemption_grace else "always"
        for slot_info in self.quota_run.slot_infos:
            is_lifted = slot_info.slot.id in self._touched
            if not is_lifted and slot_info not in self.reclaimable.idle:
                continue
            staying = [each for key, each in slot_info.leases.items() if key not in self._away]
            remaining = self.find_remaining(capacities, slot_info, staying, moment)
            # Slots on which nothing has to end come first.
            yield (is_lifted, slot_info.slot.pool, shape_of(slot_info.labels)), slot_info, remaining

    def rank(self, need: InstanceRequest, kind: Hashable, slot_info: SlotInfo, load: int) -> tuple[int, ...] | None:  # noqa: ARG002  in slot order
        """Return the rank of a slot for an instance, as `Space.rank` does."""
        return (kind[0],) if could_serve(self.group.demand, need, slot_info) else None  # type: ignore[index]  # see `list_open`

    def _put_back(self) -> None:
        """Take leases out of `gone` that need not be reclaimed, because the reservation fits beside them. The first in
        rank is tried first.
        """
        for part in reversed(self.gone):
            self._away.remove(part.key)
            if not self._fits(part.slot_info):
                self._away.add(part.key)
        self.gone = [part for part in self.gone if part.key in self._away]

    def find(self, need: InstanceRequest) -> SlotInfo | None:
        """Return a slot on which one more instance fits in the trial: the first idle slot in slot order. If there is
        none, lift elastic leases one by one, last in rank first, until the instance fits on a slot. Return None if no
        lift suffices.
        """
        demand, found = self.group.demand, self._find_idle(need)
        idle = [each for each in self._touched.values() if each in self.reclaimable.idle and self._allows(each)]
        for slot_info in sorted(idle, key=attrgetter("order")):
            if found is not None and found.order < slot_info.order:
                break
            if self._fits_again(slot_info, need):
                return slot_info
        if found is not None:
            return found
        if need not in self._walks:
            self._walks[need] = self.reclaimable.walk()
        for part in self._walks[need]:
            slot_info = part.slot_info
            if part.key in self._away or not (could_serve(demand, need, slot_info) and self._allows(slot_info)):
                continue
            # What is taken off for one instance in vain may serve another one, unless all instances are alike.
            if len(demand.alike) == 1 and not self.reclaimable.could_give(slot_info, need):
                continue
            self.gone.append(part)
            self._away.add(part.key)
            self._touched[slot_info.slot.id] = slot_info
            self._full.pop(slot_info, None)
            if self._fits(slot_info, need):
                return slot_info
        return None

    def _find_idle(self, need: InstanceRequest) -> SlotInfo | None:
        """Return the first idle slot on which an instance fits, among the slots that the trial has not changed and that
        no limit of the account refuses. Return None if there is none.
        """
        ignored = set(self._touched)
        while (found := self.reclaimable.find_idle(self.group.demand, need, ignored)) and not self._allows(found):
            ignored.add(found.slot.id)
        return found

    def _allows(self, slot_info: SlotInfo) -> bool:
        return self._limited is None or self._limited.allows(slot_info)

    def _fits_again(self, slot_info: SlotInfo, need: InstanceRequest) -> bool:
        """Return whether an instance fits on a slot that the trial has changed."""
        full = self._full.setdefault(slot_info, set())
        if need in full:
            return False
        if could_serve(self.group.demand, need, slot_info) and self._fits(slot_info, need):
            return True
        full.add(need)
        return False

    def _fits(self, slot_info: SlotInfo, need: InstanceRequest | None = None, *, at_once: bool = False) -> bool:
        """Return whether the trial's instances on a slot, together with one more (`need`, if given), fit beside the
        leases that are not lifted.
        """
        wanted = [*self.taken.get(slot_info, ()), *([need.given[slot_info.slot.pool]] if need else ())]
        staying = [lease for key, lease in slot_info.leases.items() if key not in self._away]
        at_once = at_once or not self.group.demand.settings.preemption_grace
        given = self.quota_run.given.get(slot_info, ())
        return fits_beside(slot_info, staying, given, wanted, at_once=at_once)

    def _is_worth_it(self) -> bool:
        if self.group.demand.settings.elastic == "yielding":
            return True
        slot_infos = [*self.taken, *(part.slot_info for part in self.gone)]
        have = {name: self.reclaimable.have(name) for name in {slot_info.slot.pool for slot_info in slot_infos}}
        given = sum(weigh_use(slot_info, each, have) for slot_info, taken in self.taken.items() for each in taken)
        return given > sum(weigh_use(part.slot_info, part.lease.resources, have) for part in self.gone) + MORE


def _carry_out(
    reclaimable: _Reclaimable, group: PendingGroup, slot_infos: list[SlotInfo], gone: list[ReclaimableLease], level: int
) -> None:
    quota_run = reclaimable.quota_run
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
        reclaimable.reopen(gone)
    else:
        quota_run.claim(group, slot_infos, level, RECLAIMING)
    reclaimable.note(slot_infos, gone)
