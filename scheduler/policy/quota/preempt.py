"""Running work under quota: it moves to the level that its account can pay, and work at worse levels is preempted.

A reservation with several leases moves as a whole and is ordered by the cost of all its leases. If `charge_by` is not
`lease`, a lease counts by its cost per second.

A preemption refunds the whole cost of the victim to the victim's account. The account of the newcomer (the reservation
that gets the slot) pays this cost, and the `cost` of the newcomer's lease starts at this amount. So the sum of all
balances stays the same. For example, B preempts A, which has cost 10: A's account gets 10 back, B's account pays 10,
and B's lease starts at 10. If C preempts B later, B's account gets back these 10 and what B's lease has cost since.

The victims on a slot are the fewest and cheapest ones that free enough capacity, and of these the ones with the fewest
leases. A victim is the work of a reservation as a whole, if an essential lease has to end, or else one elastic lease.
The reservation of such a lease goes on, and the lease's share of its cost is paid. The other slots of the victims are
offered to pending reservations of the same level at once. So no further work ends for a reservation that fits there.
Source: qscheduler, where a slot has one lease and a reservation one slot; the rule for elastic leases is new here.
"""

from collections.abc import Callable, Collection, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from heapq import heappop, heappush
from itertools import combinations
from math import comb
from operator import itemgetter
from typing import Any, Final

import msgspec

from scheduler.model.accounts import NOTHING, Account, Levels, add
from scheduler.model.decisions import Preempt, Relevel
from scheduler.model.reservations import Lease
from scheduler.model.resources import Resources, has_labels, shape_of
from scheduler.policy.capacity.fits import Moment
from scheduler.policy.capacity.gang import Found, OpenSlot, Runs, place
from scheduler.policy.capacity.requests import InstanceRequest
from scheduler.policy.capacity.slot_index import RemainingCapacities
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.state import CycleState, make_revoke, name_placements
from scheduler.policy.elastic.wanted import find_elastic, find_number
from scheduler.policy.quota.group_table import Candidates, PendingGroup, PendingIndex, Requirements
from scheduler.policy.quota.match_idle import offer
from scheduler.policy.quota.run import (
    QuotaRun,
    QuotaSpace,
    could_serve,
    describe_claim,
    fits_beside,
    make_leases,
    serves_quota,
    sort_slots,
)
from scheduler.policy.quota.running import PreemptibleLease, RunningIndex, RunningWork, Victim

OVERDRAWN: Final = -600.0
SAVED: Final = 600.0
"""While a balance is between OVERDRAWN and SAVED (worker-seconds, both included), running leases keep their level."""


def relevel(cycle: CycleState, running: RunningIndex, level: int) -> None:
    """Move running work of each account to or from the paid level `level`.

    There are two cases. Earning and spending are amounts per second at `level`.

    (1) The account's balance at the level is below OVERDRAWN, and its spending is greater than its earning. Then work
    at this level moves one level down, cheapest first, until the spending is at most the earning.

    (2) The balance is above SAVED, and the earning is greater than the spending. Then work at worse levels moves up to
    this level, most expensive first, until the spending is at least the earning or no such work is left.
    """
    for name, account in sorted(cycle.balances.accounts.items()):
        balance = cycle.balances.left[name][level]
        runs, wanted = find_movable(running, account, balance, level)
        if runs and balance < OVERDRAWN:
            _move(running, _choose(runs, lambda run: run.rank, wanted), level + 1)
        elif runs:
            _move(running, _choose(runs, lambda run: (*(-each for each in run.cost), *run.rank[1:]), wanted), level)


def find_movable(
    running: RunningIndex, account: Account, balance: float, level: int
) -> tuple[list[RunningWork], float]:
    """Return two things: (1) the running work of an account that may move to or from `level`; (2) how much of this work
    has to move, measured as cost per second. `balance`: the account's balance at `level`.

    If the balance is below OVERDRAWN and the account spends more at the level than it earns, work may move down from
    the level. If the balance is above SAVED and the account earns more than it spends, work at worse levels may move up
    to the level. In all other cases (1) is empty and (2) is 0. Work whose leases are claims or revoking never moves.
    """
    if OVERDRAWN <= balance <= SAVED:
        return [], 0.0
    is_overdrawn, name = balance < OVERDRAWN, account.id
    if not (running.has_work(name, level) if is_overdrawn else running.has_worse(name, level)):
        return [], 0.0  # speed: none of the account's work could move
    runs = [run for run in running.list_paid_by(name) if run.is_metered]
    net = account.charge_rate[level] - sum(run.weight for run in runs if run.level == level)
    movable = [run for run in runs if run.state == "held"]
    if is_overdrawn and net < 0:
        return [run for run in movable if run.level == level], -net
    if balance > SAVED and net > 0:
        return [run for run in movable if run.level > level], net
    return [], 0.0


def _choose(runs: list[RunningWork], rank: Callable[[RunningWork], Any], wanted: float) -> Iterable[RunningWork]:
    """Yield pieces of running work in order of `rank`, until the sum of their costs per second reaches `wanted`."""
    weight = 0.0
    for run in sorted(runs, key=rank):
        if weight >= wanted:
            return
        weight += run.weight
        yield run


def _move(running: RunningIndex, runs: Iterable[RunningWork], to: int) -> None:
    for run in runs:
        running.cycle.decide(Relevel(reservation=run.reservation.id, source=run.level, to=to))
        running.move(run, to)


MOST_SETS: Final = 2_000
"""The greatest number of sets of victims that `choose_victims` compares with each other. The compared sets have the
same number of victims.

If there are more sets of a size, no sets are compared. `choose_victims` then starts with all work on the slot, and
takes the most expensive pieces out again one by one, while the pending reservation still fits.
"""


def choose_victims(
    slot_info: SlotInfo,
    runs: Sequence[Victim],
    given: Sequence[Resources],
    wanted: Sequence[Resources],
    *,
    at_once: bool,
) -> list[Victim] | None:
    """Return the victims to end on a slot so that instances with the amounts `wanted` fit there. Return None if they do
    not fit even if all victims in `runs` end.

    The set with the fewest victims is chosen; of such sets the one with the least total cost, then the one with which
    the fewest leases end, on all slots, then the one with the most elastic leases, then the first in the order of
    `runs` (cheapest first). `given`: the amounts that this cycle has assigned on the slot. `at_once`: the new leases
    begin now; if False there is a grace period, and they begin when the revoking leases have ended.
    """

    def makes_room(victims: Iterable[Victim]) -> bool:
        staying = list_staying(slot_info, {victim.key for victim in victims})
        return fits_beside(slot_info, staying, given, wanted, at_once=at_once)

    if not makes_room(runs):
        return None
    for size in range(1, len(runs)):
        if comb(len(runs), size) > MOST_SETS:
            chosen = list(runs)
            while len(chosen) > 1 and makes_room(chosen[:-1]):
                chosen.pop()
            return merge(chosen)
        sets = [list(each) for each in combinations(runs, size) if makes_room(each)]
        if sets:
            return min(sets, key=_rank_set)
    return list(runs)


def _rank_set(victims: Sequence[Victim]) -> tuple[Levels, int, int]:
    leases = sum(len(victim.leases) for victim in victims)
    return sum_costs(victims), leases, sum(victim.key[1] is None for victim in victims)


def merge(victims: Iterable[Victim]) -> list[Victim]:
    """Return these victims without elastic leases of work that ends as a whole."""
    found = list(victims)
    whole = {victim.reservation.id for victim in found if isinstance(victim, RunningWork)}
    return [each for each in found if isinstance(each, RunningWork) or each.reservation.id not in whole]


def list_staying(slot_info: SlotInfo, gone: Container[tuple[str, str | None]]) -> list[Lease]:
    """Return the leases on a slot that go on if the victims with the keys `gone` end."""
    # Speed: this is `ends` without its calls.
    return [lease for key, lease in slot_info.leases.items() if (key[0], None) not in gone and key not in gone]


def ends(key: tuple[str, str], gone: Container[tuple[str, str | None]]) -> bool:
    """Return whether the lease with this key (reservation id, component) ends if the victims with the keys `gone`
    end.
    """
    return (key[0], None) in gone or key in gone


def sum_costs(victims: Sequence[Victim]) -> Levels:
    """Return the sum of the costs of these victims, as one amount for each paid level. Elastic leases of work that ends
    as a whole cost nothing more.
    """
    if len(victims) == 1:
        return victims[0].cost
    cost, merged = NOTHING, merge(victims)
    for victim in merged:
        if isinstance(victim, RunningWork):
            cost = add(cost, victim.cost)
    for work, leases in _group_parts(merged):
        cost = add(cost, work.share_cost(len(leases)))
    return cost


def preempt(quota_run: QuotaRun, candidates: Candidates, level: int) -> None:
    """Preempt work at worse levels for pending groups of one paid level. Slots are tried in order of their cheapest
    work; of equal cost, the work with the fewest leases is first, then slot order decides.

    A slot goes to the first reservation in order that meets four conditions:

    (1) The slot has the labels that the reservation requires. (2) All instances of the reservation fit on the slot once
    the victims are gone. (3) The account of the reservation has reached no limit. (4) The present balance of this
    account is greater than the cost of the victims. Balance and cost have one amount for each paid level. They are
    compared level by level from level 0 on, and the first level at which they differ decides.

    An account with a lease at a worse level at the beginning of the step preempts nothing. Each slot has at most one
    preemption in a cycle.

    After each preemption, the other slots on which leases of the victims end are offered to all reservations in
    `candidates` that could be matched to an idle slot, in order. They pay nothing. The step looks for further victims
    only for reservations that are left. Gangs on several slots come after them.
    """
    if next(quota_run.running.list_worse(level), None) is None:
        return
    has_worse = quota_run.running.has_worse
    payers = [payer for payer in candidates.payers if payer is not None and not has_worse(payer, level)]
    preemptors = Candidates(
        candidates.table, payers, lambda group: candidates.accept(group) and group.demand.settings.preemption
    )
    if all(group.is_served for group in preemptors):
        return
    targets = _Targets(_find_targets(quota_run, level))
    step = _Preemption(quota_run, candidates, preemptors, level, targets)
    for victims, slot_info in targets:
        if not step.take(slot_info, victims):
            break
    if not quota_run.cycle.decisions:
        _note_contests(quota_run, preemptors, targets.by_slot)
    preempt_for_gangs(quota_run, preemptors, targets.by_slot, step.pass_on, level)


def _note_contests(quota_run: QuotaRun, preemptors: Candidates, targets: Mapping[SlotInfo, list[Victim]]) -> None:
    """Record for each account, in `quota_run.contests`, the cost of the cheapest work that its reservations could
    preempt. A reservation could preempt work on a slot whose labels and capacity meet its requirements.

    `targets`: slot -> possible victims there, cheapest first.
    """
    payers: dict[Requirements, set[str]] = {}
    gangs = {each.account.id for each in preemptors if each.account is not None and len(each.demand.needs) > 1}
    for slot_info, runs in targets.items():
        for name in gangs:  # their other instances may use the slot
            least = quota_run.contests.setdefault(name, runs[0].cost)
            quota_run.contests[name] = min(least, runs[0].cost)
        for requirements in quota_run.requirements_index.list_met(slot_info, slot_info.capacity):
            if requirements not in payers:
                found = preemptors.list_meeting(requirements, preferring=False)
                payers[requirements] = {group.account.id for group in found if group.account is not None}
            for name in payers[requirements]:
                least = quota_run.contests.setdefault(name, runs[0].cost)
                quota_run.contests[name] = min(least, runs[0].cost)


def _find_targets(quota_run: QuotaRun, level: int) -> dict[SlotInfo, list[Victim]]:
    """Return the slots on which work at levels worse than `level` may be preempted, each with the possible victims. Of
    the victims on a slot, the cheapest comes first; of equal ones, the one with the fewest leases, then an elastic
    lease.
    """
    found = dict[SlotInfo, list[Victim]]()
    for run in quota_run.running.list_worse(level):
        for slot_info, victim in _list_victims(quota_run, run):
            found.setdefault(slot_info, []).append(victim)
    for victims in found.values():
        _sort(victims)
    return found


def _sort(victims: list[Victim]) -> None:
    if len(victims) > 1:  # speed: most slots have one lease, or few
        victims.sort(key=lambda each: (each.cost, len(each.leases), each.key[1] is None, *each.rank[1:], each.rest))


def _list_victims(quota_run: QuotaRun, run: RunningWork) -> Iterator[tuple[SlotInfo, Victim]]:
    """Yield what may be preempted of running work, each with its slot: the work as a whole on each slot of its
    essential leases, and each of its elastic leases.

    Work may be preempted as a whole when all its leases are at least `min_run_time` seconds old (0: at any time), and
    an elastic lease when it is that old itself. For younger ones a cycle is scheduled.
    """
    if run.state != "held" or not run.reservation.request.preemptible:
        return
    cycle, least = quota_run.cycle, quota_run.cycle.settings_of(run.reservation).min_run_time
    if not least or not cycle.timers.rests_until(max(lease.assigned_at for lease in run.leases) + least):
        for slot in {lease.slot: None for lease in run.leases if lease.kind == "essential"}:
            if (slot_info := _find_target(quota_run, slot)) is not None:
                yield slot_info, run
    if len(run.leases) > 1:  # speed: most work has one lease, which is essential
        cost: Levels | None = None
        for lease in run.leases:
            if lease.kind == "elastic" and lease.state == "held":
                slot_info = _find_target(quota_run, lease.slot)
                if slot_info is not None and (not least or not cycle.timers.rests_until(lease.assigned_at + least)):
                    cost = run.share_cost(1) if cost is None else cost
                    yield slot_info, PreemptibleLease(run, lease, cost, -_find_position(run, lease))


def _find_position(run: RunningWork, lease: Lease) -> int:
    """Return the position of an elastic lease among all instances of its reservation, as they are written."""
    component, before = find_elastic(run.reservation, lease.component), 0
    for each in run.reservation.request.components:
        if each is component:
            return before + (find_number(each, lease.component) or 0)
        before += each.count
    return before


def _find_target(quota_run: QuotaRun, slot: str) -> SlotInfo | None:
    """Return the slot with this id if work on it may be preempted: the slot is in service under `queue: quota`, its
    pool does not have `recycle_unclean`, and this cycle has not preempted work there yet. Else return None.
    """
    slot_info = quota_run.cycle.slot_infos.get(slot)
    if slot_info is None or slot_info in quota_run.preempted or slot_info.pool.recycle_unclean:
        return None
    return slot_info if serves_quota(quota_run.cycle, slot_info) else None


_TargetKey = tuple[Levels, int, int]
"""The sort key of a slot: (cost of its cheapest possible victim, number of leases of this victim, slot order)."""


class _Targets:
    """The slots on which work may be preempted, in the order in which they are tried. Each slot is tried once.

    A victim with leases on several slots ends on all of them, so the key of a slot may change before the slot is tried.
    """

    def __init__(self, by_slot: dict[SlotInfo, list[Victim]]) -> None:
        """`by_slot`: slot -> possible victims there, cheapest first."""
        self.by_slot = by_slot
        self._tried: set[SlotInfo] = set()
        self._keys: dict[SlotInfo, _TargetKey] = {}
        """The slots whose possible victims changed, each with its present key. The heap `_again` contains the keys."""
        self._changed: dict[int, SlotInfo] = {}
        """Position in slot order -> slot, for the slots in `_keys`."""
        self._again: list[_TargetKey] = []

    def __iter__(self) -> Iterator[tuple[list[Victim], SlotInfo]]:
        """Yield (possible victims, their slot)."""
        for slot_info in sorted(self.by_slot, key=self._find_key):
            if self._again and self._is_as_sorted(slot_info):
                yield from self._take_again(self._find_key(slot_info))
            if self._is_as_sorted(slot_info):
                self._tried.add(slot_info)
                yield self.by_slot[slot_info], slot_info
        yield from self._take_again(None)

    def _find_key(self, slot_info: SlotInfo) -> _TargetKey:
        first = self.by_slot[slot_info][0]
        return first.cost, len(first.leases), slot_info.order

    def _is_as_sorted(self, slot_info: SlotInfo) -> bool:
        return slot_info in self.by_slot and slot_info not in self._keys

    def _take_again(self, end: _TargetKey | None) -> Iterator[tuple[list[Victim], SlotInfo]]:
        """Yield the slots whose keys changed, up to the key `end` (None: all of them)."""
        while self._again and (end is None or self._again[0] < end):
            key = heappop(self._again)
            slot_info = self._changed[key[-1]]
            if slot_info not in self._tried and self._keys.get(slot_info) == key:
                self._tried.add(slot_info)
                yield self.by_slot[slot_info], slot_info

    def update(
        self, slot_infos: Iterable[SlotInfo], running: RunningIndex, again: Mapping[SlotInfo, list[Victim]]
    ) -> None:
        """Remove work that has ended, or is revoking, from the possible victims on these slots. `again`: slot -> what
        may be preempted there of work that has lost only elastic leases.
        """
        for slot_info in slot_infos:
            if slot_info not in self.by_slot or (slot_info in self._tried and slot_info not in again):
                continue
            left = [*filter(running.goes_on, self.by_slot[slot_info]), *again.get(slot_info, ())]
            _sort(left)
            if slot_info in self._tried:
                self.by_slot[slot_info] = left  # for gangs
            elif left:
                self.by_slot[slot_info], self._changed[slot_info.order] = left, slot_info
                self._keys[slot_info] = self._find_key(slot_info)
                heappush(self._again, self._keys[slot_info])
            else:
                del self.by_slot[slot_info]
                self._keys.pop(slot_info, None)


class _Preemption:
    def __init__(
        self, quota_run: QuotaRun, candidates: Candidates, preemptors: Candidates, level: int, targets: _Targets
    ) -> None:
        self._run, self._candidates, self._level, self._targets = quota_run, candidates, level, targets
        self._left = quota_run.cycle.balances.left
        self._pending: PendingIndex[list[Victim]] = PendingIndex(
            partial(preemptors.list_meeting, preferring=False), self._is_out
        )
        self._payers = [payer for payer in preemptors.payers if payer is not None]
        self._least: Levels | None = None
        """The cost of the cheapest victim on the present slot.

        On later slots victims cost at least as much, and no balance of these payers grows in between.
        """

    def take(self, slot_info: SlotInfo, runs: list[Victim]) -> bool:
        """Preempt work on a slot for the first reservation that may do so. Return True if the next slot is to be tried.

        Return False if no account can pay for any victim on this slot or a later one. `runs`: the possible victims.
        """
        self._least = runs[0].cost
        for name in self._payers:
            if self._left[name] > self._least:
                break
        else:
            return False
        if met := self._run.requirements_index.list_met(slot_info, slot_info.capacity):
            found = self._pending.find(met, lambda group: self._find_victims(group, slot_info, runs))
            if found is not None:
                group, victims = found
                slot_infos = [slot_info] * len(group.demand.needs)
                revoke_by = carry_out(self._run, group, slot_infos, victims, self._level)
                self.pass_on((slot_info,), victims, revoke_by)
        return True

    def pass_on(self, slot_infos: Collection[SlotInfo], victims: Sequence[Victim], revoke_by: float | None) -> None:
        """Offer the other slots of the victims, which were preempted on these slots, to pending reservations."""
        freed = self._run.list_slot_infos(lease for victim in victims for lease in victim.leases)
        if revoke_by is None:
            self._run.reopen(freed)
        if len(freed) > 1 or _has_parts(victims):
            # Speed: most victims have one lease.
            others = [each for each in freed if each not in slot_infos]
            self._update_targets(others, victims)
            givers = ", ".join(_list_names(victims))
            offer(self._run, self._candidates, self._level, others, None if revoke_by is None else givers)

    def _update_targets(self, freed: Iterable[SlotInfo], victims: Iterable[Victim]) -> None:
        """Let the possible victims on other slots be those that are left. `freed`: the other slots of `victims`."""
        again, runs = dict[SlotInfo, list[Victim]](), self._run.running.runs
        for name in _list_names([victim for victim in victims if isinstance(victim, PreemptibleLease)]):
            for slot_info, victim in _list_victims(self._run, runs[name]):
                again.setdefault(slot_info, []).append(victim)
        self._targets.update({**dict.fromkeys(freed), **dict.fromkeys(again)}, self._run.running, again)

    def _is_out(self, group: PendingGroup) -> bool:
        if group.account is None or self._least is None:
            return True
        return self._left[group.account.id] <= self._least or self._run.limits.is_fanned_out(group)

    def _find_victims(self, group: PendingGroup, slot_info: SlotInfo, runs: list[Victim]) -> list[Victim] | None:
        demand = group.demand
        if group.account is None or slot_info.slot.id in demand.declined:
            return None
        # The slot meets the requirements of the first instance.
        if not all(has_labels(slot_info.labels, need.component.labels) for need in demand.needs[1:]):
            return None
        if self._run.limits.refuses(group.account, [slot_info] * len(demand.needs)):
            return None
        wanted = [need.given[slot_info.slot.pool] for need in demand.needs]
        given, at_once = self._run.given.get(slot_info, ()), not demand.settings.preemption_grace
        victims = choose_victims(slot_info, runs, given, wanted, at_once=at_once)
        return None if victims is None or sum_costs(victims) >= self._left[group.account.id] else victims


def name_victims(
    quota_run: QuotaRun, slot_infos: Sequence[SlotInfo], victims: Sequence[Victim]
) -> Mapping[SlotInfo, Sequence[Victim]]:
    """Return the slots among `slot_infos` that have a line, in slot order, each with the victims that are named on it:
    those that have no lease on an earlier one of these slots.
    """
    if len(slot_infos) == 1:  # speed: most reservations have one instance
        return {slot_infos[0]: victims}
    used, named = set(slot_infos), dict[SlotInfo, list[Victim]]()
    for victim in victims:
        there = [each for each in sort_slots(quota_run.list_slot_infos(victim.leases)) if each in used]
        named.setdefault(there[0], []).append(victim)
    return {slot_info: named[slot_info] for slot_info in sort_slots(named)}


def carry_out(
    quota_run: QuotaRun, group: PendingGroup, slot_infos: Sequence[SlotInfo], victims: Sequence[Victim], level: int
) -> float | None:
    """Decide the preemptions for the first unplaced reservation of a group, and charge the cost of the victims to the
    group's account, once for each. With a grace period the reservation claims its slots; without one it is leased at
    once. The commit adds the cost of the victims to its lease. No later step of this cycle reads this cost, because
    only work at worse levels is preempted. Return the end of the grace period; None: there is none.

    `slot_infos`: a slot for each instance.
    """
    cycle = quota_run.cycle
    revoke_by = cycle.find_revoke_by(group.demand.settings)
    reservation = quota_run.serve(group)
    quota_run.limits.note(group, slot_infos)
    leases = make_leases(cycle, group.demand, slot_infos, level)
    placements = name_placements(leases)
    has_parts = _has_parts(victims)
    for slot_info, named in name_victims(quota_run, slot_infos, victims).items():
        quota_run.preempted.add(slot_info)
        parts = [victim for victim in named if isinstance(victim, PreemptibleLease)] if has_parts else ()
        decision = Preempt(
            reservation=reservation.id,
            slot=slot_info.slot.id,
            victims=_list_names(named),
            level=level,
            leases=placements,
            revoke_by=revoke_by,
            partial=_list_names(parts) if parts else (),
        )
        cycle.decide(decision)
        for part in parts:
            cycle.decide(make_revoke(part.reservation.id, part.lease, "preempted", revoke_by, reservation.id))
    if len(slot_infos) > 1:
        ended = {lease.slot for victim in victims for lease in victim.leases}
        quota_run.preempted.update(each for each in slot_infos if each.slot.id in ended)
    _end_all(quota_run, group.account, victims, revoke_by)
    if revoke_by is None:
        quota_run.hold(reservation, leases)
        cycle.place(reservation, placements, level)
    else:
        quota_run.hold(reservation, tuple(msgspec.structs.replace(lease, state="claimed") for lease in leases))
        givers = ", ".join(_list_names(victims))
        cycle.wait(reservation.id, "no_capacity", describe_claim(givers, slot_infos))
    return revoke_by


def _end_all(quota_run: QuotaRun, payer: Account | None, victims: Sequence[Victim], revoke_by: float | None) -> None:
    """End the victims, at once or with a grace period until `revoke_by`, and let the account `payer` pay for each."""
    cycle = quota_run.cycle
    for victim in victims:
        if isinstance(victim, PreemptibleLease):
            continue
        if payer is not None:
            cycle.balances.move(victim.cost, payer, victim.account)
        if revoke_by is None:
            quota_run.end(victim)
        else:  # the victim keeps its leases until the grace ends, and is not charged any more
            leaving = (msgspec.structs.replace(each, state="revoking", charged_at=None) for each in victim.leases)
            cycle.returning[victim.reservation.id] = victim.reservation
            quota_run.hold(victim.reservation, tuple(leaving))
    for work, partings in _group_parts(victims) if _has_parts(victims) else ():
        if payer is not None:
            cycle.balances.move(work.share_cost(len(partings)), payer, work.account)
        quota_run.end_parts(work, partings, revoke_by)


def _has_parts(victims: Sequence[Victim]) -> bool:
    """Return whether elastic leases end alone. Speed: mostly none does, so their lists are not made."""
    return PreemptibleLease in map(type, victims)


def _list_names(victims: Sequence[Victim]) -> tuple[str, ...]:
    """Return the ids of the victims' reservations, each once."""
    if len(victims) == 1:  # speed
        return (victims[0].reservation.id,)
    return tuple(dict.fromkeys(victim.reservation.id for victim in victims))


def _group_parts(victims: Iterable[Victim]) -> list[tuple[RunningWork, list[Lease]]]:
    """Return the elastic leases that end alone, each group with the work of its reservation."""
    parts: dict[str, tuple[RunningWork, list[Lease]]] = {}
    for victim in victims:
        if isinstance(victim, PreemptibleLease):
            parts.setdefault(victim.reservation.id, (victim.work, []))[1].append(victim.lease)
    return list(parts.values())


# Preemption for gangs: work at worse levels is preempted on several slots for one reservation, all or nothing.
#
# It comes after the preemption for reservations that fit on one slot, whose conditions hold here too. What fits on idle
# slots is placed there. For other instances slots with victims are taken, in the order of that step. Slots that a
# chosen victim frees elsewhere count as free for the same gang. Source: qscheduler for the conditions; the rest is new
# here.


Victims = Mapping[SlotInfo, Sequence[Victim]]
"""Slot -> what may be preempted there, cheapest first."""
Keys = Container[tuple[str, str | None]]
"""The keys of victims (`PreemptibleLease.key`)."""


def preempt_for_gangs(
    quota_run: QuotaRun,
    preemptors: Candidates,
    victims: Victims,
    pass_on: Callable[[Collection[SlotInfo], Sequence[Victim], float | None], object],
    level: int,
) -> None:
    """Preempt work for reservations with several instances, in order, at most for one of each account in a cycle.

    `victims`: some of them may have ended in the preemption for reservations on one slot. `pass_on`: offers the slots
    on which preempted leases end to pending reservations (`_Preemption.pass_on`).
    """
    groups = [group for group in preemptors if not group.is_served and len(group.demand.needs) > 1]
    targets = _GangTargets(quota_run, victims)
    for group in sorted(groups, key=lambda group: group.rank):
        account = group.account
        if group.is_served or account is None or account.id in quota_run.gang_preemptors:
            continue
        is_fanned_out = quota_run.limits.is_fanned_out(group)
        if not is_fanned_out and (found := _GangSpace(quota_run, group, account, targets).run()) is not None:
            quota_run.gang_preemptors.add(account.id)
            slot_infos, chosen = found
            revoke_by = carry_out(quota_run, group, slot_infos, chosen, level)
            pass_on(slot_infos, chosen, revoke_by)
            quota_run.drop_full()  # idle slots of the gang
            targets = _GangTargets(quota_run, victims)


class _GangTargets:
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


class _GangSpace(QuotaSpace):
    """The slots for one gang, as a space (`Space` in `capacity/gang.py`): idle ones first, then slots on which work is
    preempted. Nothing is decided.
    """

    def __init__(self, quota_run: QuotaRun, group: PendingGroup, account: Account, targets: _GangTargets) -> None:
        self.quota_run, self.group, self._account, self._targets = quota_run, group, account, targets
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
        self._trial = self.quota_run.limits.try_leases(self._account)

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
        idle, position = self.quota_run.idle, self._passed.get(need, 0)
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
                if any(len(victim.leases) > 1 for victim in self._chosen.values()):
                    self._order, position = self._targets.sort(self._chosen), 0
                    self._tried.clear()
                self._tried[need] = position
                return slot_info
        self._tried[need] = position
        return None

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
        given = [*self.quota_run.given.get(slot_info, ()), *taken]
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
        freed = self.quota_run.list_slot_infos(lease for each in victims for lease in each.leases)
        self._freed.update(dict.fromkeys(freed))
        return True

    def _could_serve(self, need: InstanceRequest, slot_info: SlotInfo) -> bool:
        is_lost = slot_info in self._freed and (
            slot_info.pool.recycle_unclean or not serves_quota(self.quota_run.cycle, slot_info)
        )
        is_allowed = not is_lost and (self._trial is None or self._trial.allows(slot_info))
        return is_allowed and could_serve(self._demand, need, slot_info)

    def _fits(self, slot_info: SlotInfo, need: InstanceRequest | None = None) -> bool:
        """Return whether the gang's instances on a slot, and one more, fit beside the leases that go on."""
        wanted = [*self._taken.get(slot_info, ()), *([need.given[slot_info.slot.pool]] if need else ())]
        staying, given = list_staying(slot_info, self._chosen), self.quota_run.given.get(slot_info, ())
        return fits_beside(slot_info, staying, given, wanted, at_once=self._at_once)

    def take(self, slot_info: SlotInfo, need: InstanceRequest, most: int) -> int:  # noqa: ARG002  one at a time
        self._taken.setdefault(slot_info, []).append(need.given[slot_info.slot.pool])
        if self._trial is not None:
            self._trial.take(slot_info)
        return 1

    def settle(self, runs: Runs, found: Found) -> Found | None:  # noqa: ARG002  instances stay where they are
        """Leave out the victims that need not end, the last chosen one first."""
        for name, victim in reversed(list(self._chosen.items())):
            del self._chosen[name]
            freed = self.quota_run.list_slot_infos(victim.leases)
            if not all(self._fits(each) for each in freed if each in self._taken):
                self._chosen[name] = victim
        return found

    def widen(self, runs: Runs) -> None:
        """Choose the victims that the order of the shares needs."""
        self.take_all(runs)
        self._forget_instances()

    def list_open(self, needs: Collection[InstanceRequest]) -> Iterator[OpenSlot]:  # noqa: ARG002  of all requests
        capacities = RemainingCapacities()
        moment: Moment = "always" if self._at_once else "later"
        for slot_info in sort_slots({*self.quota_run.idle, *self._freed}):
            kind = (slot_info in self._freed, slot_info.slot.pool, shape_of(slot_info.labels))
            staying = list_staying(slot_info, self._chosen)
            yield kind, slot_info, self.find_remaining(capacities, slot_info, staying, moment)

    def rank(self, need: InstanceRequest, kind: Hashable, slot_info: SlotInfo, load: int) -> tuple[int, ...] | None:  # noqa: ARG002  in slot order
        return (kind[0],) if self._could_serve(need, slot_info) else None  # type: ignore[index]  # see `list_open`
