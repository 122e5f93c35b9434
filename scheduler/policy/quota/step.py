"""The steps of a cycle about quota: the charge of the accounts, and the placing under `queue: quota`.

Accounts with a balance come first, and no slot stays idle while a reservation fits. The following is done for each paid
level. Idle slots take reservations that prefer them, then all others. Elastic instances are reclaimed. Running work
moves to the level that its account can pay. Running work at worse levels is preempted. At last the free level takes the
remaining slots. A reservation that cannot be placed blocks no other one, and no idle slot is kept for a better one.
Source: qscheduler.
"""

from collections.abc import Callable, Collection, Iterable
from itertools import repeat
from math import inf

import msgspec

from scheduler.model.accounts import FREE, NOTHING, PAID, Account, Levels, level_of
from scheduler.model.decisions import Plan
from scheduler.model.pending_queue import GroupKey
from scheduler.model.reservations import Lease, Reservation, Shape
from scheduler.model.rules import Rules
from scheduler.model.view import View
from scheduler.model.waits import Reason
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.queue import Queue
from scheduler.policy.cycle.state import Balances, CycleState
from scheduler.policy.plan_cache import PlanCache
from scheduler.policy.queueing.claims import assign_claims
from scheduler.policy.queueing.order import insert, rank_by_level
from scheduler.policy.quota.accounting import charge_all
from scheduler.policy.quota.group_table import PendingGroup, Requirements
from scheduler.policy.quota.match_idle import match_idle
from scheduler.policy.quota.preempt import OVERDRAWN, SAVED, find_movable, preempt, relevel
from scheduler.policy.quota.reclaim import reclaim
from scheduler.policy.quota.run import LimitsOfGrants, QuotaRun, make_limits_of_grants
from scheduler.policy.quota.running import RunningIndex

# The last plan under `queue: quota` if it had no decisions. Later cycles use it again, although accounts earn and pay
# all the time.
#
# Balances are functions of time. While no row changes except by charges, a later cycle makes the same plan. There are
# three exceptions: a balance gives an account another level, moves running work to another level, or pays for a
# preemption. If one of the three may happen, the cycle makes a new plan.
#
# The first two are tested exactly. For the third, the kept plan has the cost of the cheapest work that each account
# could preempt, at the time of the plan. The cost of running work only grows. So an account whose balance is at most
# this amount can pay for no preemption.


class _KeptPlan(msgspec.Struct, frozen=True):
    plan: Plan
    rules: Rules
    since: float
    until: float
    """The kept plan is used only before this time (seconds since the epoch). Later a cycle may have a decision to make,
    whatever the balances are.
    """
    levels: dict[str, int]
    """Account id -> the best level that the account could pay when the plan was made."""
    running: RunningIndex
    """The running work at the time of the plan."""
    contests: dict[str, Levels]
    """Account id -> the cost of the cheapest work that the account's reservations could preempt."""
    moves: dict[tuple[str, int, bool], bool]
    """(account id, level, side) -> whether running work of the account moves to another level in this case. Side True:
    the account's balance at the level is above SAVED. Side False: the balance is below OVERDRAWN. (Both bounds are in
    `quota/preempt.py`.) The answers are computed when they are first needed.
    """

    def moves_work(self, account: Account) -> bool:
        """Return whether the account's balances make running work move to another level."""
        for level, balance in enumerate(account.balance):
            if not OVERDRAWN <= balance <= SAVED:
                case = (account.id, level, balance > SAVED)
                if case not in self.moves:
                    runs, _ = find_movable(self.running, account, balance, level)
                    self.moves[case] = bool(runs)
                if self.moves[case]:
                    return True
        return False


class SteadyPlan:
    """The last plan of one view under `queue: quota`. It is kept only if it has no decisions."""

    def __init__(self) -> None:
        self._kept: _KeptPlan | None = None
        self._accounts: dict[str, Account] = {}
        """The rows of the accounts at `_revision`."""
        self._revision = 0
        self._found: tuple[CycleState, RunningIndex, dict[str, Levels]] | None = None
        """What `note` recorded in the last cycle: (cycle, running work, `QuotaRun.contests`). None if that cycle had
        made decisions before `note` was called.
        """

    def note(self, quota_run: QuotaRun) -> None:
        """Record the running work, and the costs of work that could be preempted (`contests`), after the placing of a
        cycle.
        """
        cycle = quota_run.cycle
        self._found = None if cycle.decisions else (cycle, quota_run.running, quota_run.contests)

    def keep(self, cycle: CycleState, plan: Plan, next_protection: float) -> Plan:
        """Store the plan of this cycle if it has no decisions, and return the plan in each case. Without `queue: quota`
        nothing is stored here, because the plan cache stores the plan.

        `next_protection`: when the starvation guard begins to protect a further reservation (seconds since the epoch).
        """
        found, self._kept, self._found = self._found, None, None
        if plan.decisions or found is None or found[0] is not cycle:
            return plan
        falls_due = inf if plan.wake_at is None else plan.wake_at
        levels = {name: level_of(account.balance) for name, account in cycle.balances.accounts.items()}
        until = min(falls_due, next_protection)
        self._kept = _KeptPlan(plan, cycle.rules, cycle.now, until, levels, *found[1:], moves={})
        self._accounts, self._revision = dict(cycle.view.accounts), cycle.view.revision
        return plan

    def find(self, view: View, rules: Rules, now: float, cache: PlanCache) -> Plan | None:
        """Return the kept plan if it is valid at `now`; else None. The returned plan contains the charges of the
        present cycle.
        """
        kept = self._kept
        if kept is None or kept.rules is not rules or not kept.since <= now < kept.until:
            return None
        if not self._follow(view):
            self._kept = None
            return None
        accounts = charge_all(view, cache, now)
        if (
            any(level_of(account.balance) != kept.levels[name] for name, account in accounts.items())
            or any(accounts[name].balance > least for name, least in kept.contests.items())
            or any(map(kept.moves_work, accounts.values()))
        ):
            return None
        charged = tuple(name for name in accounts if view.accounts[name].charged_at < now)
        return msgspec.structs.replace(kept.plan, charged=charged)

    def _follow(self, view: View) -> bool:
        """Return whether the view has changed since the last call only by charges of accounts."""
        accounts, known = view.accounts, self._accounts
        if accounts.keys() != known.keys():
            return False
        changed = [name for name, account in accounts.items() if account is not known[name]]
        # Each change of a row counts in the revision. If more was counted, something else changed as well.
        if view.revision - self._revision != len(changed) or not all(
            _make_terms(accounts[name]) == _make_terms(known[name]) for name in changed
        ):
            return False
        self._accounts, self._revision = dict(accounts) if changed else known, view.revision
        return True


def _make_terms(account: Account) -> Account:
    """Return the account with fixed values in the fields that a charge changes, so that two rows can be compared
    without them.
    """
    return msgspec.structs.replace(account, version=0, marked_at=0.0, balance=NOTHING, charged_at=0.0, due=NOTHING)


class LastingRanks:
    """The ranks of reservations under `queue: quota`, for a cycle that is kept. They are valid while the accounts have
    the same levels as in that cycle.
    """

    def __init__(self, cycle: CycleState) -> None:
        self._levels = _find_levels(cycle)
        self._rank = rank_by_level(cycle)
        self._ranks: dict[GroupKey, float] = {}
        """(account name, shape) -> the rank of reservations with both. It contains the ranks that were computed
        so far.
        """
        self._shared: dict[float, float] = {}
        """Rank -> the one object that stands for this rank. Speed: positions are compared faster if equal ranks are the
        same object.
        """

    def find_rank(self, cycle: CycleState) -> Callable[[Reservation], float] | None:
        """Return the rank function of the queue; None if the order of the queue or the waiting reasons may have
        changed.

        They may have changed if an account has reached another level, or if an account has limits that may block
        reservations.
        """
        accounts, is_common = cycle.balances.accounts, not cycle.rules.scheduler.system
        is_plain = is_common and cycle.balances.are_by_name and not cycle.view.special
        may_block = any(each.disable_free_tasks or each.per_label_task_limits for each in accounts.values())
        return self._rank if is_plain and not may_block and _find_levels(cycle) == self._levels else None

    def find_rank_of(self, row: Reservation, shape: Shape) -> float:
        """Return the rank of the reservation `row`. `shape`: its shape."""
        mark = (row.request.account, shape)
        rank = self._ranks.get(mark)
        if rank is None:
            rank = self._rank(row)
            rank = self._ranks[mark] = self._shared.setdefault(rank, rank)
        return rank


def _find_levels(cycle: CycleState) -> dict[str, tuple[int, bool]]:
    """Return a table (account id -> (its best level with a balance, whether it was deleted)). While the table is the
    same, account name and shape determine the rank of a reservation.
    """
    accounts = cycle.balances.accounts.items()
    return {name: (level_of(account.balance), account.forgotten) for name, account in accounts}


def charge(cycle: CycleState) -> None:
    """Charge every quota account up to now, if any queue is `quota`. Accounts pay for running leases and earn.

    An account that was already charged at `now` does not change. Leases that this cycle has ended are paid until now.
    The plan uses the balances after the charge. The commit charges the accounts again, on the rows as they are then.
    """
    if not cycle.rules.has_quota:
        return
    accounts = charge_all(cycle.view, cycle.cache, cycle.now)
    cycle.balances = Balances(accounts)
    cycle.charged = tuple(name for name in accounts if cycle.view.accounts[name].charged_at < cycle.now)


def lacks_quota(cycle: CycleState, reservation: Reservation) -> bool:
    """Return whether the account of a reservation has no balance at any level and may not run at the free level. Return
    False if the reservation's queue is not `quota`.
    """
    if cycle.settings_of(reservation).queue != "quota":
        return False
    account = cycle.balances.account_of(reservation)
    return account is not None and account.disable_free_tasks and cycle.balances.level_of(reservation) == FREE


def report_no_quota(cycle: CycleState, reservation: Reservation) -> bool:
    """Return whether `lacks_quota` is true for a reservation. If so, record the waiting code `no_quota` for it."""
    lacks = lacks_quota(cycle, reservation)
    if lacks:
        cycle.wait(reservation.id, *_describe_no_quota(cycle.balances.account_of(reservation)))
    return lacks


def _describe_no_quota(account: Account | None) -> Reason:
    name = account.id if account else ""
    return "no_quota", f"account {name} has nothing left at any level, and may not run at the free level"


class BlockReasons:
    """Finds the reasons why accounts block pending groups: an account may have no balance left, or may have reached a
    limit.
    """

    def __init__(self, quota_run: QuotaRun) -> None:
        self._run = quota_run
        self._idle_by_requirements: dict[Requirements, list[SlotInfo]] = {}
        self._known: dict[tuple[str, Requirements], str | None] = {}
        accounts = quota_run.cycle.balances.accounts.values()
        payers = [account.id for account in accounts if account.disable_free_tasks or account.per_label_task_limits]
        self.groups = [group for group in quota_run.groups.list_of(payers) if not group.is_served]
        """The groups with unplaced reservations whose account has `disable_free_tasks` or `per_label_task_limits`. No
        other account can block a reservation.
        """
        has_limits = any(group.account and group.account.per_label_task_limits for group in self.groups)
        for slot_info in quota_run.idle if has_limits else ():
            for requirements in quota_run.requirements_index.list_met(slot_info, slot_info.free):
                self._idle_by_requirements.setdefault(requirements, []).append(slot_info)

    def find(self, group: PendingGroup) -> Reason | None:
        """Return the waiting code and the sentence for the unplaced reservations of a group, if their account blocks
        them. Return None if it does not.
        """
        account = group.account
        if account is None:
            return None
        if account.disable_free_tasks and group.level == FREE:
            return _describe_no_quota(account)
        if account.disable_free_tasks and self._run.limits.is_fanned_out(group):
            sentence = (
                f"account {account.id} pays for {account.max_fanout} leases of equal reservations, "
                "and may not run at the free level"
            )
            return "account_limit", sentence
        slot = self._find_refused(account, group) if account.per_label_task_limits else None
        if slot is None:
            return None
        return "account_limit", f"account {account.id} has as many leases as it may on slots with a label of {slot}"

    def _find_refused(self, account: Account, group: PendingGroup) -> str | None:
        """Examine the idle slots that meet the requirements of the group's first instance. If the account has reached a
        limit for a label (`per_label_task_limits`) on each of these slots, return the id of the first slot. Return None
        if the account may have a lease on one of them, or if there are no such slots.
        """
        key = (account.id, group.required)
        if key not in self._known:
            idle = self._idle_by_requirements.get(group.required, [])
            refused = bool(idle) and all(self._run.limits.refuses(account, [slot_info]) for slot_info in idle)
            self._known[key] = idle[0].slot.id if refused else None
        return self._known[key]


def place_by_quota(cycle: CycleState, waiters: Queue) -> tuple[Queue, Queue, LimitsOfGrants | None]:
    """Place the reservations whose queue is `quota`. Return three things: (1) the reservations of all other queues; (2)
    in queue order, the reservations of `quota` queues that were not placed and may cause a launch; (3) the limits of
    accounts for elastic instances that are granted later (None: no limits).

    A reservation that its account blocks gets the waiting code of the reason, and causes no launch.
    """
    if not cycle.rules.has_quota:
        return waiters, Queue(), None
    others = Queue()
    if cycle.rules.scheduler.system:  # else every queue is `quota`
        is_by_quota = [demand.settings.queue == "quota" for demand in waiters.demands]
        others, waiters = waiters.filter([not each for each in is_by_quota]), waiters.filter(is_by_quota)
    claimants = [each for each in waiters.reservations if each.leases] if cycle.list_claimants() else []
    newcomers = waiters.filter([not each.leases for each in waiters.reservations]) if claimants else waiters
    quota_run = QuotaRun(cycle, newcomers)
    _assign_claims(quota_run, claimants)
    _place_at_each_level(quota_run)
    unplaced = _list_unplaced(quota_run, newcomers)
    quota_run.running.finish()
    return others, unplaced, make_limits_of_grants(cycle, quota_run.limits)


def place_all_by_quota(cycle: CycleState, left_out: Collection[Shape]) -> None:
    """Place all pending reservations of the view by quota. Only for a view in which account and shape alone determine
    how each reservation is placed.

    `left_out`: shapes that fit on no slot, even an empty one; their reservations are not tried. Reservations that are
    not placed get no waiting code here.
    """
    quota_run = QuotaRun(cycle, left_out)
    _place_at_each_level(quota_run)
    quota_run.running.finish()


def _place_at_each_level(quota_run: QuotaRun) -> None:
    for level in PAID:
        candidates = quota_run.find_candidates(level)
        match_idle(quota_run, candidates, level, preferring=True)
        match_idle(quota_run, candidates, level, preferring=False)
        reclaim(quota_run, candidates, level)
        relevel(quota_run.cycle, quota_run.running, level)
        preempt(quota_run, candidates, level)
    free = quota_run.find_free_candidates()
    match_idle(quota_run, free, FREE, preferring=True)
    match_idle(quota_run, free, FREE, preferring=False)
    reclaim(quota_run, free, FREE)
    quota_run.cycle.cache.recall(SteadyPlan).note(quota_run)


def _assign_claims(quota_run: QuotaRun, claimants: Iterable[Reservation]) -> None:
    """Assign to each of the reservations `claimants` the slots that it claims, as soon as they are free. The earliest
    claim comes first. A lease has the level of its claim.
    """

    def hold(reservation: Reservation, leases: tuple[Lease, ...]) -> None:
        quota_run.hold(reservation, leases)
        quota_run.cycle.assign(reservation, leases, leases[0].level)

    ordered = sorted(claimants, key=lambda each: (each.leases[0].assigned_at, each.sequence))
    assign_claims(quota_run.cycle, ordered, hold, "the reservations that it preempted", is_exclusive=True)


def _list_unplaced(quota_run: QuotaRun, waiters: Queue) -> Queue:
    """Return the reservations that may cause a launch: reservations in `waiters` that were neither placed nor blocked
    by their account, and reservations that were preempted in this cycle and whose account does not lack quota.
    """
    cycle, reasons, blocked = quota_run.cycle, BlockReasons(quota_run), set[str]()
    for group in reasons.groups:
        reason = reasons.find(group)
        if reason is not None:
            names = [each.id for each in group.reservations[group.served :]]
            cycle.waits.add_all(names, repeat(reason))
            blocked.update(names)
    done = quota_run.served | blocked
    unplaced = waiters.filter([name not in done for name in waiters.ids]) if done else waiters
    preempted = [each for each in cycle.preempted if not report_no_quota(cycle, each)]
    return insert(cycle, unplaced, preempted) if preempted else unplaced
