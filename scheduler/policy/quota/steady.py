"""The last plan under `queue: quota` if it had no decisions. Later cycles use it again, although accounts earn and pay
all the time.

Balances are functions of time. While no row changes except by charges, a later cycle makes the same plan. There are
three exceptions: a balance gives an account another level, moves running work to another level, or pays for a
preemption. If one of the three may happen, the cycle makes a new plan.

The first two are tested exactly. For the third, the kept plan has the cost of the cheapest work that each account could
preempt, at the time of the plan. The cost of running work only grows. So an account whose balance is at most this
amount can pay for no preemption.
"""

from collections.abc import Callable
from math import inf

import msgspec

from scheduler.model.accounts import NOTHING, Account, Levels, level_of
from scheduler.model.decisions import Plan
from scheduler.model.pending_queue import GroupKey
from scheduler.model.reservations import Reservation, Shape
from scheduler.model.rules import Rules
from scheduler.model.view import View
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.plan_cache import PlanCache
from scheduler.policy.queueing.order import rank_by_level
from scheduler.policy.quota.accounting import charge_all
from scheduler.policy.quota.preempt import OVERDRAWN, SAVED, find_movable
from scheduler.policy.quota.run import QuotaRun
from scheduler.policy.quota.running import RunningIndex


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
        if any(level_of(account.balance) != kept.levels[name] for name, account in accounts.items()):
            return None
        if any(accounts[name].balance > least for name, least in kept.contests.items()):
            return None
        if any(map(kept.moves_work, accounts.values())):
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
        if view.revision - self._revision != len(changed):
            return False
        if not all(_make_terms(accounts[name]) == _make_terms(known[name]) for name in changed):
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
        if not is_plain or any(map(_may_block, accounts.values())) or _find_levels(cycle) != self._levels:
            return None
        return self._rank

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


def _may_block(account: Account) -> bool:
    return account.disable_free_tasks or bool(account.per_label_task_limits)
