"""Preemption for gangs: work at worse levels is preempted on several slots for one reservation, all or nothing.

It comes after the preemption for reservations that fit on one slot (`quota/preempt.py`), whose conditions hold here
too. What fits on idle slots is placed there. For other instances slots with victims are taken, in the order of that
step. Slots that a chosen victim frees elsewhere count as free for the same gang. Source: qscheduler for the conditions;
the rest is new here.
"""

from collections.abc import Callable, Collection, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from operator import itemgetter

from scheduler.model.accounts import NOTHING, Account, Levels, add
from scheduler.model.resources import Resources, shape_of, subtract, total
from scheduler.policy.capacity.backtracking import OpenSlot
from scheduler.policy.capacity.candidate_queue import RemainingCapacities
from scheduler.policy.capacity.fits import Moment, measure
from scheduler.policy.capacity.gang import Found, Runs, Shareable, place, take_each
from scheduler.policy.capacity.requests import Demand, InstanceRequest
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.quota.pending_groups import PendingGroup
from scheduler.policy.quota.preempt import Remaining, carry_out, choose_victims, ends, list_staying, merge, sum_costs
from scheduler.policy.quota.run import QuotaRun, fits_beside, serves_quota, sort_slots
from scheduler.policy.quota.running import Victim

Victims = Mapping[SlotInfo, Sequence[Victim]]
"""Slot -> what may be preempted there, cheapest first."""
Keys = Container[tuple[str, str | None]]
"""The keys of victims (`PreemptibleLease.key`)."""


def preempt_for_gangs(quota_run: QuotaRun, remaining: Remaining, level: int) -> None:
    """Preempt work for reservations with several instances, in order, at most for one of each account in a cycle.
    `remaining`: what the preemption for reservations on one slot has left.
    """
    groups = [group for group in remaining.preemptors if not group.is_served and len(group.demand.needs) > 1]
    targets = _Targets(quota_run, remaining.victims)
    for group in sorted(groups, key=lambda group: group.rank):
        account = group.account
        if group.is_served or account is None or account.id in quota_run.gang_preemptors:
            continue
        if quota_run.limits.is_fanned_out(group):
            continue
        found = _GangSpace(quota_run, group, account, targets).run()
        if found is not None:
            quota_run.gang_preemptors.add(account.id)
            slot_infos, chosen = found
            revoke_by = carry_out(quota_run, group, slot_infos, chosen, level)
            remaining.pass_on(slot_infos, chosen, revoke_by)
            quota_run.drop_full()  # idle slots of the gang
            targets = _Targets(quota_run, remaining.victims)


class _Targets:
    """The slots on which work may be preempted, in the order of the step: by the cost of the cheapest work, then by the
    number of leases that end with it, then in slot order.
    """

    def __init__(self, quota_run: QuotaRun, victims: Victims) -> None:
        self._run, self._victims = quota_run, victims
        self.slot_infos = self.sort({})

    def sort(self, chosen: Keys) -> list[SlotInfo]:
        """Return the slots in order if the victims `chosen` have ended."""
        keys: list[tuple[Levels, int, int, SlotInfo]] = []
        for slot_info in self._victims:
            runs = self.list_runs(slot_info, chosen)
            if runs and slot_info not in self._run.preempted:
                keys.append((runs[0].cost, len(runs[0].leases), slot_info.order, slot_info))
        keys.sort(key=itemgetter(0, 1, 2))
        return [slot_info for *_, slot_info in keys]

    def list_runs(self, slot_info: SlotInfo, chosen: Keys) -> list[Victim]:
        """Return what may still be preempted on a slot, cheapest first, without the victims `chosen`."""
        goes_on = self._run.running.goes_on
        return [
            each
            for each in self._victims[slot_info]
            if each.key not in chosen and (each.reservation.id, None) not in chosen and goes_on(each)
        ]


class _GangSpace:
    """The slots for one gang, as a space (`Space` in `capacity/gang.py`): idle ones first, then slots on which work is
    preempted. Nothing is decided.
    """

    def __init__(self, quota_run: QuotaRun, group: PendingGroup, account: Account, targets: _Targets) -> None:
        self._run, self._group, self._account, self._targets = quota_run, group, account, targets
        self._demand = group.demand
        self._balance = quota_run.cycle.balances.left[account.id]
        self._at_once = not group.demand.settings.preemption_grace
        self.undo()

    def undo(self) -> None:
        self._chosen: dict[tuple[str, str | None], Victim] = {}
        """Key -> victim that is to end, in the order in which they were chosen."""
        self._cost = NOTHING
        """The sum of the costs of the chosen victims."""
        self._in_part: set[str] = set()
        """Ids of the reservations of which elastic leases were chosen."""
        self._opened: set[SlotInfo] = set()
        """The slots for which victims were chosen. Each is tried once."""
        self._freed: dict[SlotInfo, None] = {}
        """The slots on which leases of chosen victims end."""
        self._order = self._targets.slot_infos
        self._tried: dict[InstanceRequest, int] = {}
        """Request -> the position in `_order` from which slots were not tried for it."""
        self._forget_instances()

    def _forget_instances(self) -> None:
        self._taken: dict[SlotInfo, list[Resources]] = {}
        """Slot -> the amounts of each instance of the gang there."""
        self._passed: dict[InstanceRequest, int] = {}
        """Request -> the position in the idle slots before which it fits on none that the trial has not changed."""
        self._trial = self._run.limits.try_leases(self._account)

    def run(self) -> tuple[list[SlotInfo], list[Victim]] | None:
        """Return a slot for each instance, and the work to preempt; None if the gang preempts nothing."""
        if not self._order or not self._targets.list_runs(self._order[0], ())[0].cost < self._balance:
            return None
        slot_infos = place(self._demand, self)
        return (slot_infos, list(self._chosen.values())) if slot_infos is not None and self._chosen else None

    def find(self, need: InstanceRequest) -> SlotInfo | None:
        changed = sort_slots({*self._taken, *self._freed})
        first = self._find_unchanged(need)
        for slot_info in changed:
            if first is not None and first.order < slot_info.order:
                break
            if self._could_serve(need, slot_info) and self._fits(slot_info, need):
                return slot_info
        return first or self._open(need)

    def _find_unchanged(self, need: InstanceRequest) -> SlotInfo | None:
        """Return the first idle slot that the trial has not changed, and on which an instance fits."""
        idle, position = self._run.idle, self._passed.get(need, 0)
        while position < len(idle):
            slot_info = idle[position]
            is_changed = slot_info in self._taken or slot_info in self._freed
            if not is_changed and self._could_serve(need, slot_info) and self._fits(slot_info, need):
                break
            position += 1
        self._passed[need] = position
        return idle[position] if position < len(idle) else None

    def _open(self, need: InstanceRequest) -> SlotInfo | None:
        """Choose victims on the first slot in the order of the step on which an instance fits without them. Return the
        slot; None if there is none, or the account cannot pay for it.
        """
        position = self._tried.get(need, 0)
        while position < len(self._order):
            slot_info = self._order[position]
            position += 1
            runs = [] if slot_info in self._opened else self._targets.list_runs(slot_info, self._chosen)
            if runs and not self._can_pay(runs[:1]) and runs[0].reservation.id not in self._in_part:
                return None  # all later ones cost at least as much
            if runs and self._could_serve(need, slot_info) and self._choose(slot_info, need, runs):
                self._tried[need] = 0 if self._sort_again() else position
                return slot_info
        self._tried[need] = position
        return None

    def _sort_again(self) -> bool:
        """Sort the slots again if a victim ends on several. Return whether they were sorted."""
        if all(len(victim.leases) == 1 for victim in self._chosen.values()):
            return False
        self._order = self._targets.sort(self._chosen)
        self._tried.clear()
        return True

    def _can_pay(self, victims: Sequence[Victim]) -> bool:
        """Return whether the account can pay for these victims beside the chosen ones."""
        return self._add_costs(victims) < self._balance

    def _add_costs(self, victims: Sequence[Victim]) -> Levels:
        if self._in_part.isdisjoint(victim.reservation.id for victim in victims):
            return add(self._cost, sum_costs(victims))
        return sum_costs([*self._chosen.values(), *victims])

    def _choose(self, slot_info: SlotInfo, need: InstanceRequest, runs: Sequence[Victim]) -> bool:
        """Choose some of this work on a slot, so that an instance fits there without it. Return False, and choose none,
        if it fits in no case or the account cannot pay for it.
        """
        there, taken = copy(slot_info), self._taken.get(slot_info, ())
        there.leases = {key: lease for key, lease in slot_info.leases.items() if not ends(key, self._chosen)}
        there.given += len(taken)
        given = [*self._run.given.get(slot_info, ()), *taken]
        victims = choose_victims(there, runs, given, [need.given[slot_info.slot.pool]], at_once=self._at_once)
        if victims is None or not self._can_pay(victims):
            return False
        self._opened.add(slot_info)
        self._cost = self._add_costs(victims)
        if self._in_part.isdisjoint(victim.reservation.id for victim in victims):
            self._chosen.update((each.key, each) for each in victims)
        else:
            self._chosen = {each.key: each for each in merge([*self._chosen.values(), *victims])}
        self._in_part.update(name for name, component in (each.key for each in victims) if component is not None)
        freed = self._run.list_slot_infos(lease for each in victims for lease in each.leases)
        self._freed.update(dict.fromkeys(freed))
        return True

    def _could_serve(self, need: InstanceRequest, slot_info: SlotInfo) -> bool:
        pool = slot_info.slot.pool
        if pool not in need.given or slot_info.slot.id in self._demand.declined:
            return False
        if slot_info in self._freed and (
            slot_info.pool.recycle_unclean or not serves_quota(self._run.cycle, slot_info)
        ):
            return False
        if self._trial is not None and not self._trial.allows(slot_info):
            return False
        return need.could_hold(pool, slot_info.capacity, slot_info.labels)

    def _fits(self, slot_info: SlotInfo, need: InstanceRequest | None = None) -> bool:
        """Return whether the gang's instances on a slot, and one more, fit beside the leases that go on."""
        wanted = [*self._taken.get(slot_info, ()), *([need.given[slot_info.slot.pool]] if need else ())]
        staying, given = list_staying(slot_info, self._chosen), self._run.given.get(slot_info, ())
        return fits_beside(slot_info, staying, given, wanted, at_once=self._at_once)

    def take(self, slot_info: SlotInfo, need: InstanceRequest, most: int) -> int:  # noqa: ARG002  one at a time
        self._taken.setdefault(slot_info, []).append(need.given[slot_info.slot.pool])
        if self._trial is not None:
            self._trial.take(slot_info)
        return 1

    def take_all(self, runs: Runs) -> Found | None:
        return take_each(self, runs)

    def settle(self, runs: Runs, found: Found) -> Found | None:  # noqa: ARG002  instances stay where they are
        """Leave out the victims that need not end, the last chosen one first."""
        for name, victim in reversed(list(self._chosen.items())):
            del self._chosen[name]
            freed = self._run.list_slot_infos(victim.leases)
            if not all(self._fits(each) for each in freed if each in self._taken):
                self._chosen[name] = victim
        return found

    def could_hold(self, demand: Demand) -> bool:  # noqa: ARG002  only a search finds it
        return True

    def list_shareable(self, need: InstanceRequest) -> Iterator[Shareable]:
        for slot_info in self._run.slot_infos:
            is_declined = slot_info.slot.id in self._demand.declined
            pool = slot_info.slot.pool
            if pool in need.given and not is_declined and need.could_hold(pool, slot_info.capacity, slot_info.labels):
                yield pool, slot_info.capacity, 1

    def widen(self, runs: Runs) -> None:
        """Choose the victims that the order of the shares needs."""
        self.take_all(runs)
        self._forget_instances()

    def list_open(self, needs: Collection[InstanceRequest]) -> Iterator[OpenSlot]:  # noqa: ARG002  of all requests
        capacities = RemainingCapacities()
        moment: Moment = "always" if self._at_once else "later"
        for slot_info in sort_slots({*self._run.idle, *self._freed}):
            usage = measure(list_staying(slot_info, self._chosen), moment)
            given, capacity = self._run.given.get(slot_info, ()), slot_info.capacity
            free = None if capacity is None else subtract(capacity, total([usage.amounts, *given]))
            count, limit = usage.count + slot_info.given, slot_info.pool.lease_limit
            mark = (None if free is None else tuple(free.items()), count, slot_info.uses_left, limit)
            kind = (slot_info in self._freed, slot_info.slot.pool, shape_of(slot_info.labels))
            yield kind, slot_info, capacities.find(mark, free)

    def rank(self, need: InstanceRequest, kind: Hashable, slot_info: SlotInfo, load: int) -> tuple[int, ...] | None:  # noqa: ARG002  in slot order
        return (kind[0],) if self._could_serve(need, slot_info) else None  # type: ignore[index]  # see `list_open`

    def find_limits(self, placed: Iterable[SlotInfo]) -> Callable[[SlotInfo], bool] | None:
        return self._run.limits.find_test(self._account, placed)

    def may_backtrack(self) -> bool:
        return self._run.cycle.turns.may_backtrack(self._group.first)

    def charge(self, steps: int) -> None:
        self._run.cycle.turns.charge_backtracking(self._group.first, steps)
