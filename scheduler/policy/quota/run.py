"""The state of one placing by quota, which the steps of the placing share, and the assignment of leases. A cycle places
by quota once.

The state consists of the pending groups by level, the idle slots (slots that can take one more lease), the running work
and the limits of accounts. The running work, the idle slots and facts about pending requests are kept between cycles: a
cycle computes them again only for slots and requests that changed.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from operator import attrgetter
from typing import Final

import msgspec
from typing_extensions import override

from scheduler.model.accounts import FREE, PAID, Account, Levels, find_account
from scheduler.model.decisions import Claim
from scheduler.model.reservations import Lease, Reservation, Shape
from scheduler.model.resources import Labels, Resources, subtract, total
from scheduler.model.rules import Rules
from scheduler.policy.capacity.fits import Moment, Usage, find_obstacle, measure
from scheduler.policy.capacity.gang import Shareable, Space
from scheduler.policy.capacity.requests import Demand, InstanceRequest
from scheduler.policy.capacity.slot_index import RemainingCapacities, RemainingCapacity
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.queue import Queue
from scheduler.policy.cycle.state import CycleState, name_placements
from scheduler.policy.elastic.instances import ElasticGroup
from scheduler.policy.plan_cache import list_touched
from scheduler.policy.quota.accounting import weigh
from scheduler.policy.quota.group_table import Candidates, GroupTable, KnownRequests, PendingGroup, find_likeness
from scheduler.policy.quota.running import RunningIndex, RunningWork

# The limits of quota accounts: on the leases of equal reservations (`max_fanout`), and on the leases on slots with the
# same label (`per_label_task_limits`). Source: the releases of qscheduler that enforced these limits.


class TrialLeases:
    """Tests whether an account's limits for labels (`per_label_task_limits`) permit leases before they are decided. The
    tested leases count together with the account's present leases, by the labels of their slots.
    """

    def __init__(self, account: Account, present: Counter[tuple[str, str, str]]) -> None:
        """Start without tested leases. `present`: (account, label name, label value) -> number of present leases, for
        all accounts.
        """
        self._account, self._present = account, present
        self._taken: Counter[tuple[str, str, str]] = Counter()

    def allows(self, slot_info: SlotInfo) -> bool:
        """Return whether the account may have one more lease on a slot, together with the leases that were counted by
        `take`.
        """
        limits = self._account.per_label_task_limits
        return all(self._present[key] + self._taken[key] < limits[key[1]] for key in self._list_keys(slot_info))

    def take(self, slot_info: SlotInfo) -> bool:
        """Test one more lease on a slot as `allows` does. If the account may have the lease, count it for later tests.
        Return the result of the test.
        """
        is_allowed = self.allows(slot_info)
        if is_allowed:
            self._taken.update(self._list_keys(slot_info))
        return is_allowed

    def _list_keys(self, slot_info: SlotInfo) -> list[tuple[str, str, str]]:
        labels, limits = slot_info.labels, self._account.per_label_task_limits
        return [(self._account.id, name, labels[name]) for name in limits if name in labels]


class AccountLimits:
    """Counts the leases of each account that has limits.

    `max_fanout` limits the paid leases of equal reservations; `per_label_task_limits` limits the leases on slots with a
    label. For both, two kinds of leases count: leases that run when the placing begins, at any level, and leases that
    this cycle assigns. A lease that a preemption ends still counts in the present cycle.
    """

    def __init__(self, cycle: CycleState, running: RunningIndex) -> None:
        self._alike: Counter[Hashable] = Counter()
        self.labelled: Counter[tuple[str, str, str]] = Counter()
        for account in cycle.balances.accounts.values():
            if account.max_fanout or account.per_label_task_limits:
                for run in running.list_paid_by(account.id):
                    if account.max_fanout:
                        self._alike[find_likeness(account, cycle.view.shapes[run.reservation.id])] += len(run.leases)
                    for lease in run.leases if account.per_label_task_limits else ():
                        if lease.slot in cycle.slot_infos:
                            self._note_labels(account, cycle.slot_infos[lease.slot].labels)

    def is_fanned_out(self, group: PendingGroup) -> bool:
        """Return whether the leases of reservations that are equal to those of the group have reached the fan-out limit
        of the group's account (`max_fanout`). Return False if there is no account or no limit.

        If the limit is reached, the group gets no paid lease and preempts nothing.
        """
        account = group.account
        return account is not None and 0 < account.max_fanout <= self._alike[group.likeness]

    def refuses(self, account: Account | None, slot_infos: Sequence[SlotInfo]) -> bool:
        """Return whether leases on all these slots would exceed a limit of the quota account for a label
        (`per_label_task_limits`). False for no account.
        """
        trial = self.try_leases(account)
        return trial is not None and not all(map(trial.take, slot_infos))

    def try_leases(self, account: Account | None) -> "TrialLeases | None":
        """Return an object that tests further leases against the account's `per_label_task_limits`: how many leases the
        account may have on slots with the same value of a label. Return None if the account has no such limit.
        """
        if account is None or not account.per_label_task_limits:
            return None
        return TrialLeases(account, self.labelled)

    def find_test(self, account: Account | None, placed: Iterable[SlotInfo]) -> Callable[[SlotInfo], bool] | None:
        """Return the test of `try_leases` for one more lease beside leases on the slots `placed`; None: no limit."""
        trial = self.try_leases(account)
        if trial is None:
            return None
        for slot_info in placed:
            trial.take(slot_info)
        return trial.allows

    def note(self, group: PendingGroup, slot_infos: Iterable[SlotInfo]) -> None:
        """Count the leases that one reservation of the group gets on these slots. They count for later calls of this
        cycle.
        """
        account = group.account
        if account is None:
            return
        for slot_info in slot_infos:
            if account.max_fanout:
                self._alike[group.likeness] += 1
            if account.per_label_task_limits:
                self._note_labels(account, slot_info.labels)

    def _note_labels(self, account: Account, labels: Labels) -> None:
        for name in account.per_label_task_limits:
            if name in labels:
                self.labelled[account.id, name, labels[name]] += 1


class LimitsOfGrants:
    """The limits `per_label_task_limits` of accounts for their elastic instances. An account that has reached its limit
    for a label is granted no further slot with this label.

    Instances that this cycle has granted count too. An instance that this cycle has reclaimed still counts until the
    next one.
    """

    def __init__(self, cycle: CycleState, limits: AccountLimits, accounts: Mapping[str, Account]) -> None:
        """Make limits that count on from the leases in `limits`. `accounts`: id -> account, for the accounts that have
        `per_label_task_limits`.
        """
        self._cycle, self._limits, self._accounts = cycle, limits, accounts
        self._groups: dict[str, dict[ElasticGroup, None]] = {name: {} for name in accounts}
        """Account id -> the groups of elastic instances for which `update` was called; they may have been granted slots
        in this cycle.
        """
        self._slots: dict[str, dict[str, list[str]]] = {}
        """Label name -> label value -> the ids of the slots with this label."""

    def update(self, group: ElasticGroup) -> None:
        """Set `group.refused` to the ids of the slots on which the limits of its account refuse the group one more
        instance. Change nothing if the account has no limits for labels.
        """
        holder = group.holder
        account = find_account(self._accounts, holder.request.account, holder.sequence)
        if account is None or self._cycle.settings_of(holder).queue != "quota":
            return
        groups = self._groups[account.id]
        groups[group] = None
        refused = set[str]()
        for name, limit in account.per_label_task_limits.items():
            granted = Counter(
                each.slot_info.labels.get(name)
                for other in groups
                for each in other.elastic_instances
                if each.is_granted and each.slot_info is not None
            )
            for value, slots in self._list_slots(name).items():
                if self._limits.labelled[account.id, name, value] + granted[value] >= limit:
                    refused.update(slots)
        group.refused = refused

    def _list_slots(self, name: str) -> dict[str, list[str]]:
        if name not in self._slots:
            slots = self._slots[name] = dict[str, list[str]]()
            for slot, slot_info in self._cycle.slot_infos.items():
                if name in slot_info.labels:
                    slots.setdefault(slot_info.labels[name], []).append(slot)
        return self._slots[name]


def make_limits_of_grants(cycle: CycleState, limits: AccountLimits) -> LimitsOfGrants | None:
    """Return the limits of accounts for elastic instances, starting with the leases that `limits` has counted. Return
    None if no account has limits for labels.
    """
    accounts = cycle.balances.accounts.items()
    limited = {name: account for name, account in accounts if account.per_label_task_limits}
    return LimitsOfGrants(cycle, limits, limited) if limited else None


_ORDER: Final = attrgetter("order")


def serves_quota(cycle: CycleState, slot_info: SlotInfo) -> bool:
    """Return whether a slot is in service (takes leases), and the queue of its pool is `quota`."""
    return slot_info.takes_leases and cycle.rules.settings_of(slot_info.slot.pool, None).queue == "quota"


def sort_slots(slot_infos: Iterable[SlotInfo]) -> list[SlotInfo]:
    """Return slots in slot order."""
    return sorted(slot_infos, key=_ORDER)


class _IdleSlots:
    """The slots that can take one more lease, whatever their resources, under `queue: quota`. Their ids are kept
    between cycles, so that a cycle examines only slots that changed.
    """

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._revision: int | None = None

    def list(self, cycle: CycleState) -> list[SlotInfo]:
        """Return the slots that can take one more lease in this cycle, whatever their resources, in slot order."""
        cached, view = cycle.cache.slots, cycle.view
        for name in view.slots if self._revision is None else list_touched(view, self._revision):
            known = cached.get(name)
            if known is not None and serves_quota(cycle, known.slot_info) and known.slot_info.has_place:
                self._names.add(name)
            else:
                self._names.discard(name)
        self._revision = view.revision
        # Other slots are as they were before the cycle, or have become silent: those take no lease.
        restless = {each.slot.id for each in cycle.list_restless()}
        found = (cycle.slot_infos[name] for name in self._names | restless if name in cycle.slot_infos)
        return sort_slots(each for each in found if each.has_place and serves_quota(cycle, each))


class _QuotaMemory:
    """What the placing by quota keeps between the cycles of one view: the running work, the idle slots, and facts about
    pending requests. They are valid while the rules are the same and each account pays for the same reservations.
    """

    running: RunningIndex
    idle: _IdleSlots
    requests: KnownRequests

    def __init__(self) -> None:
        self._rules: Rules | None = None
        self._payers: dict[str, tuple[bool, int]] = {}
        """Account id -> (`forgotten`, `forgotten_upto`). An account pays for no reservation if `forgotten` is true
        (deleted), and else only for reservations whose sequence number is above `forgotten_upto`.
        """

    def begin(self, cycle: CycleState) -> None:
        """Bring the kept objects up to date: by the changes of the view, and by the decisions of this cycle so far."""
        accounts = cycle.view.accounts
        payers = {name: (account.forgotten, account.forgotten_upto) for name, account in accounts.items()}
        if cycle.rules is not self._rules:
            self.idle, self.requests = _IdleSlots(), KnownRequests()
        if cycle.rules is not self._rules or payers != self._payers:
            self.running = RunningIndex()
        self._rules, self._payers = cycle.rules, payers
        self.running.begin(cycle)


class QuotaRun:
    """The state of one pass that places reservations by quota: pending groups, slots, running work and the limits of
    accounts.
    """

    def __init__(self, cycle: CycleState, waiters: Queue | Collection[Shape]) -> None:
        memory = cycle.cache.recall(_QuotaMemory)
        memory.begin(cycle)
        self.cycle, self.running = cycle, memory.running
        self.limits = AccountLimits(cycle, memory.running)
        self.groups = GroupTable(cycle, waiters, memory.requests)
        self.requirements_index = memory.requests.requirements
        self.idle = memory.idle.list(cycle)
        """Slots that can take one more lease, whatever their resources, in slot order."""
        self.preempted: set[SlotInfo] = set()
        """Slots on which this cycle has preempted work. Each slot has at most one preemption in a cycle."""
        self.gang_preemptors: set[str] = set()
        """Ids of the accounts for which this cycle has preempted work for a gang on several slots."""
        self.contests: dict[str, Levels] = {}
        """Account id -> the cost of the cheapest work that the account's reservations could preempt if its balance was
        greater.
        """
        self.served: set[str] = set()
        """Ids of the reservations that got leases or claims in this pass."""
        self.given: dict[SlotInfo, list[Resources]] = {}
        """Slot -> the amounts of each lease that this pass has assigned there (`assign`)."""
        self._has_filled = False
        """Whether a slot may have become full since full slots were last removed from `idle`."""

    @cached_property
    def slot_infos(self) -> list[SlotInfo]:
        """All slots in service in pools whose queue is `quota`, including full ones, in slot order."""
        return [slot_info for slot_info in self.cycle.slot_infos.values() if serves_quota(self.cycle, slot_info)]

    def find_candidates(self, level: int) -> Candidates:
        """Return the groups of the accounts for which `level` is the best level that they can pay. Groups that have
        reached the fan-out limit of their account (`max_fanout`) are left out of the result.
        """
        return Candidates(self.groups, self.groups.payers[level], lambda group: not self.limits.is_fanned_out(group))

    def find_free_candidates(self) -> Candidates:
        """Return the groups that may run at the free level, in two cases: the account of the group has no balance, or
        it has reached its fan-out limit (`max_fanout`). Accounts with `disable_free_tasks` have no such groups.

        Leases of the free level count towards fan-out limits only in the next cycle.
        """
        accounts, limits = self.cycle.balances.accounts, deepcopy(self.limits)
        paying = {
            payer for level in PAID for payer in self.groups.payers[level] if payer and accounts[payer].max_fanout
        }
        must_pay = {name for name, account in accounts.items() if account.disable_free_tasks}
        payers = (self.groups.payers[FREE] | paying) - must_pay
        return Candidates(self.groups, payers, lambda group: group.level == FREE or limits.is_fanned_out(group))

    def assign(self, group: PendingGroup, slot_infos: Sequence[SlotInfo], level: int) -> None:
        """Assign these slots to the first unplaced reservation of a group, one slot for each instance. The new leases
        of the reservation have the quota level `level`.
        """
        reservation = self.serve(group)
        self.limits.note(group, slot_infos)
        leases = make_leases(self.cycle, group.demand, slot_infos, level)
        for slot_info, lease in zip(slot_infos, leases, strict=True):
            slot_info.given += 1
            slot_info.wanted = self._has_filled = True
            if slot_info.free is not None:
                slot_info.free = subtract(slot_info.free, lease.resources)
                self.given.setdefault(slot_info, []).append(lease.resources)
        self.running.begin_work(reservation, leases)
        self.cycle.assign(reservation, leases, level)

    def claim(self, group: PendingGroup, slot_infos: Sequence[SlotInfo], level: int, detail: str) -> None:
        """Promise these slots to the first unplaced reservation of a group, one slot for each instance, until the
        revoking leases there have ended. `level`: the quota level of its leases. `detail`: the sentence for its wait.
        """
        reservation = self.serve(group)
        self.limits.note(group, slot_infos)
        leases = make_leases(self.cycle, group.demand, slot_infos, level)
        self.cycle.decide(Claim(reservation=reservation.id, leases=name_placements(leases), level=level))
        self.hold(reservation, tuple(msgspec.structs.replace(lease, state="claimed") for lease in leases))
        self.cycle.wait(reservation.id, "no_capacity", detail)

    def serve(self, group: PendingGroup) -> Reservation:
        """Record that the first unplaced reservation of a group got leases or a claim, and return it."""
        reservation = group.first
        group.served += 1
        self.served.add(reservation.id)
        return reservation

    def hold(self, reservation: Reservation, leases: tuple[Lease, ...]) -> None:
        """Place leases or claims of a reservation on their slots in the scratch copy, and record them in the running
        work. `leases`: as they are now (held, revoking or claimed).
        """
        for slot_info in self.list_slot_infos(leases):
            name = slot_info.slot.id
            own = {(reservation.id, lease.component): lease for lease in leases if lease.slot == name}
            slot_info.redeemed += [lease.state for lease in own.values()].count("held")
            slot_info.leases = {**slot_info.leases, **own}
            slot_info.wanted = self._has_filled = True
            self.recount(slot_info)
            if slot_info.pool.max_uses:
                self.idle = [each for each in self.idle if each is not slot_info]
        if reservation.leases or leases[0].state == "claimed":
            self.running.add(reservation, leases)
        else:
            self.running.begin_work(reservation, leases)

    def end(self, run: RunningWork) -> None:
        """End preempted work. Its reservation is pending again, and is not placed in this cycle.

        The work may also have leases on slots other than the one for which it was preempted. Later steps of this cycle
        may place leases on the capacity that becomes free there.
        """
        self.cycle.end(run.reservation)
        self.cycle.preempted.append(run.reservation)
        self.running.end(run.reservation.id)
        for slot_info in self.list_slot_infos(run.leases):
            if slot_info in self.given:  # the end of its leases has set its free amounts without these
                self.recount(slot_info)

    def end_parts(self, work: RunningWork, leases: Sequence[Lease], revoke_by: float | None) -> None:
        """End elastic leases of running work, for which a preemption has paid their share. The work goes on, and no
        instance of their components is granted in this cycle. `revoke_by`: the end of their grace period; None: they
        end at once.
        """
        holder = work.reservation
        for lease in leases:
            self.cycle.preempted_instances.setdefault(holder.id, []).append(lease.component)
            slot_info = self.cycle.slot_infos[lease.slot]
            if revoke_by is None:
                self.cycle.end_instance(holder, lease.component, lease.slot)
            else:
                leaving = msgspec.structs.replace(lease, state="revoking", revoke_by=revoke_by, charged_at=None)
                slot_info.leases = {**slot_info.leases, (holder.id, lease.component): leaving}
            self.recount(slot_info)
        self.running.take_parts(work, leases, at_once=revoke_by is None)

    def list_slot_infos(self, leases: Iterable[Lease]) -> list[SlotInfo]:
        """Return the slots of these leases, each once, without slots that no pool has any more."""
        found = [self.cycle.slot_infos[each.slot] for each in leases if each.slot in self.cycle.slot_infos]
        return list(dict.fromkeys(found)) if len(found) > 1 else found

    def recount(self, slot_info: SlotInfo) -> None:
        """Compute the free amounts of a slot again after its leases have changed."""
        slot_info.count_free()
        if slot_info.free is not None and slot_info in self.given:
            slot_info.free = subtract(slot_info.free, total(self.given[slot_info]))

    def find_free(self, slot_info: SlotInfo, leases: Collection[Lease], moment: Moment) -> tuple[int, Resources | None]:
        """Return (leases, free amounts; None: the slot counts leases only) of a slot that has these leases at a moment,
        and the new ones of this cycle.
        """
        usage, capacity = measure(leases, moment), slot_info.capacity
        used = [usage.amounts, *self.given.get(slot_info, ())]
        return usage.count + slot_info.given, None if capacity is None else subtract(capacity, total(used))

    def give_up(self, holder: Reservation, lease: Lease, left: Lease | None) -> None:
        """Record in the running work that an elastic lease of the reservation `holder` is revoked. `left`: the lease as
        it is until its grace period ends; None if it ends at once.
        """
        others = (each for each in self.running.runs[holder.id].leases if each.component != lease.component)
        self.running.add(holder, (*others, *([left] if left else ())))

    def reopen(self, slot_infos: Iterable[SlotInfo]) -> None:
        """Add these slots to the idle slots of this pass if they can take a lease again."""
        for slot_info in slot_infos:
            if slot_info.has_place and serves_quota(self.cycle, slot_info):
                at = bisect_left(self.idle, slot_info.order, key=_ORDER)
                if at == len(self.idle) or self.idle[at] is not slot_info:
                    self.idle.insert(at, slot_info)

    def drop_full(self) -> None:
        """Remove slots that can take no more leases from the idle slots of this pass."""
        if self._has_filled:  # speed: without a new lease no slot became full
            self.idle = [slot_info for slot_info in self.idle if slot_info.has_place]
            self._has_filled = False


class QuotaSpace(Space):
    """Slots under `quota` as a space for one reservation: the first one of a group."""

    quota_run: QuotaRun
    group: PendingGroup

    @override
    def list_shareable(self, need: InstanceRequest) -> Iterable[Shareable]:
        for slot_info in self.quota_run.slot_infos:
            if could_serve(self.group.demand, need, slot_info):
                yield slot_info.slot.pool, slot_info.capacity, 1

    @override
    def find_limits(self, placed: Iterable[SlotInfo]) -> Callable[[SlotInfo], bool] | None:
        return self.quota_run.limits.find_test(self.group.account, placed)

    @override
    def may_backtrack(self) -> bool:
        return self.quota_run.cycle.turns.may_backtrack(self.group.first)

    @override
    def charge(self, steps: int) -> None:
        self.quota_run.cycle.turns.charge_backtracking(self.group.first, steps)

    def find_remaining(
        self, capacities: RemainingCapacities, slot_info: SlotInfo, leases: Collection[Lease], moment: Moment
    ) -> RemainingCapacity:
        """Return what a slot has left beside these leases and the new ones of this cycle."""
        count, free = self.quota_run.find_free(slot_info, leases, moment)
        mark = (None if free is None else tuple(free.items()), count, slot_info.uses_left, slot_info.pool.lease_limit)
        return capacities.find(mark, free)


def could_serve(demand: Demand, need: InstanceRequest, slot_info: SlotInfo) -> bool:
    """Return whether a slot that was not declined could hold an instance if the slot were empty."""
    if slot_info.slot.pool not in need.given or slot_info.slot.id in demand.declined:
        return False
    return need.could_hold(slot_info.slot.pool, slot_info.capacity, slot_info.labels)


def fits_beside(
    slot_info: SlotInfo,
    staying: Collection[Lease],
    given: Iterable[Resources],
    wanted: Sequence[Resources],
    *,
    at_once: bool,
) -> bool:
    """Return whether leases with the amounts `wanted` fit on a slot if only `staying` remains of its present leases.

    `given`: the amounts that this cycle has assigned on the slot. `at_once`: whether the new leases begin now. If
    False, the new leases are claims until the revoking leases on the slot have ended, so revoking leases do not count.
    """
    usage = measure(staying, "always" if at_once else "later") if staying else Usage()
    capacity, leases = slot_info.capacity, slot_info.pool.lease_limit - usage.count - slot_info.given
    if capacity is None:  # the slot counts leases only
        return find_obstacle({}, None, leases, slot_info.uses_left, count=len(wanted)) is None
    free = subtract(capacity, total([usage.amounts, *given]))
    return find_obstacle(total(wanted), free, leases, slot_info.uses_left, count=len(wanted)) is None


def describe_claim(givers: str, slot_infos: Iterable[SlotInfo]) -> str:
    """Return the sentence for the wait of a reservation that claims slots of preempted reservations. `givers`: their
    ids.
    """
    names = ", ".join(dict.fromkeys(each.slot.id for each in slot_infos))
    return f"takes the place of {givers} on {names}, at the end of the grace at the latest"


def make_leases(cycle: CycleState, demand: Demand, slot_infos: Sequence[SlotInfo], level: int) -> tuple[Lease, ...]:
    """Return a new lease for each essential instance of a reservation, on these slots in the same order. The leases
    begin now, at this quota level and with a cost of 0.
    """
    return tuple(
        Lease(
            component=instance.name,
            slot=slot_info.slot.id,
            epoch=slot_info.slot.epoch,
            token=0,
            resources=need.given[slot_info.slot.pool],
            level=level,
            charged_at=cycle.now,
            weight=weigh(need.given[slot_info.slot.pool], slot_info.slot, slot_info.pool, demand.settings),
            assigned_at=cycle.now,
        )
        for instance, need, slot_info in zip(demand.shape.essential, demand.needs, slot_infos, strict=True)
    )
