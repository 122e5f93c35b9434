"""The state that one scheduler process keeps between its ticks, and the term under which it may write."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil, inf
from time import monotonic, sleep
from typing import Any, Final

import msgspec

from scheduler.model.accounts import FREE, find_account, level_of
from scheduler.model.decisions import Plan
from scheduler.model.history import SAMPLE_SECONDS
from scheduler.model.rules import Rules
from scheduler.model.transitions import INACTIVE
from scheduler.model.view import View
from scheduler.model.waiting_codes import NOT_A_WAIT
from scheduler.model.waits import WaitBlock
from scheduler.operations.costs import SpendingReader
from scheduler.operations.ports import Ports
from scheduler.policy.plan_cache import PlanCache
from scheduler.ports import LeaderLock, LeaderTerm

# Numbers about the waiting reservations of a plan, for the report of a tick. They are counted for each `WaitBlock`:
# some reservations that follow each other in the queue. A block never changes; if a reservation leaves the queue,
# another block takes its place. So only blocks that are new since the last plan are examined.


LEVELS: Final = range(FREE + 1)
"""All levels of service of a quota account: the paid ones and the free one."""


@dataclass(slots=True)
class _BlockFigures:
    """What was counted for the reservations of one `WaitBlock` (a part of the queue). The report contains the sums of
    all blocks. `codes`: waiting code -> number of reservations.
    """

    codes: Counter[str]
    oldest: float
    """The earliest submission of a reservation that counts for the longest wait; infinity if none counts."""
    accounts: Counter[str] | None
    """Account -> number of its reservations in this `WaitBlock`. None if no account exists at all."""


@dataclass
class WaitFigures:
    """Counts the waiting reservations of the last plan by waiting code and by account. The counts are kept for each
    `WaitBlock` (a part of the queue), so that only new blocks are examined. One process keeps this object between its
    ticks.
    """

    _known: dict[WaitBlock, _BlockFigures] = field(default_factory=dict)
    """For each part of the last plan's queue (`WaitBlock`): the figures of its reservations. The parts stand in the
    order of the queue. Two blocks are equal only if they are the same object.
    """
    _codes: Counter[str] = field(default_factory=Counter)
    _accounts: Counter[str] = field(default_factory=Counter)
    _payers: Mapping[str, tuple[bool, int]] = field(default_factory=dict)
    """Id of each existing account -> (whether the account was forgotten, its `forgotten_upto`). An account pays only
    for reservations whose `sequence` is above its `forgotten_upto`.
    """

    def describe(self, plan: Plan, view: View, rules: Rules, now: float) -> dict[str, Any]:
        """Return numbers about the waiting reservations of a plan.

        `codes`: the number of reservations by waiting code. `longest_wait`: seconds since the oldest submission,
        without reservations whose code is in NOT_A_WAIT. `at_quota`: pools whose launches an EC2 quota holds back.
        `accounts`: for each account the number of its waiting reservations by level of service, the free level last.
        All are counted at the level that the account could pay now, by its present balance. Accounts without waiting
        reservations are missing.
        """
        self._follow(plan, view)
        levels = {name: level_of(view.accounts[name].balance) for name in self._accounts}
        return {
            "codes": dict(self._codes),
            "longest_wait": self.find_longest_wait(now),
            "at_quota": [name for name in rules.pools if _is_at_quota(view, name, now)],
            "accounts": {
                name: [count if level == levels[name] else 0 for level in LEVELS]
                for name, count in self._accounts.items()
            },
        }

    def find_longest_wait(self, now: float) -> float:
        """Return the longest wait in seconds at the last plan, as the report has it; 0 if no reservation waits."""
        return max(0.0, now - min((each.oldest for each in self._known.values()), default=inf))

    def _follow(self, plan: Plan, view: View) -> None:
        """Update `_codes` and `_accounts`, the sums of all blocks: add the counts of each block that is new in this
        plan, and subtract the counts of each block that the plan no longer has. If the accounts changed (`_payers`),
        count all blocks again.
        """
        payers = {name: (each.forgotten, each.forgotten_upto) for name, each in view.accounts.items()}
        if payers != self._payers:
            self._known, self._payers = {}, payers
            self._codes, self._accounts = Counter(), Counter()
        before, self._known = self._known, {}
        for block in plan.waiting.cut(tuple(before)):
            figures = before.pop(block, None)
            if figures is None:
                figures = _examine(block, view)
                self._codes.update(figures.codes)
                self._accounts.update(figures.accounts or ())
            self._known[block] = figures
        for figures in before.values():
            self._codes.subtract(figures.codes)
            self._accounts.subtract(figures.accounts or ())
        self._codes, self._accounts = +self._codes, +self._accounts


def _examine(block: WaitBlock, view: View) -> _BlockFigures:
    rows = [view.reservations.get(name) for name in block.names]
    counted = (
        row.created_at
        for row, (code, _) in zip(rows, block.reasons, strict=True)
        if row is not None and code not in NOT_A_WAIT
    )
    accounts = None
    if view.accounts:
        payers = (find_account(view.accounts, row.request.account, row.sequence) for row in rows if row is not None)
        accounts = Counter(payer.id for payer in payers if payer is not None)
    return _BlockFigures(Counter(code for code, _ in block.reasons), min(counted, default=inf), accounts)


def _is_at_quota(view: View, pool: str, now: float) -> bool:
    """Return whether EC2's quota pauses the launches of a pool at present."""
    holds = [each for each in view.holds.values() if each.pool == pool and each.kind == "quota" and now < each.until]
    if not holds:
        return False
    active = sum(slot.pool == pool and slot.state not in INACTIVE for slot in view.slots.values())
    return any(not each.active or active >= each.active for each in holds)


TRUSTED_SHARE: Final = 0.4
"""A process writes under its leader lock only while more than this fraction of the lock's time is left."""


@dataclass
class Leader:
    """The state that one scheduler process keeps between its ticks. `holder`: the id of the process in the leader term.
    `interval`: seconds between periodic ticks. `lock_seconds`: the duration of the leader lock.
    """

    holder: str
    interval: float = 5.0
    lock_seconds: float = 15.0
    audit_seconds: float = 60.0
    """Seconds between two audits, which compare counts and versions of the whole view with SQL."""
    pause: Callable[[float], None] = sleep
    """Function that waits for a number of seconds."""
    clock: Callable[[], float] = monotonic
    """Function that returns the time of a monotonic clock in seconds. By this time, ticks are measured and repairs of
    Redis keys become due.
    """
    process: str = ""
    """The name of this scheduler process in reports: `host:pid`."""
    leader_term: LeaderTerm | None = None
    ticks: int = 0
    """Number of ticks that this process has begun in its present term."""
    repaired_at: float | None = None
    """When this process last searched Redis for keys of a wrong type, by `clock`. None: there was no search yet, or a
    tick failed since, so the next tick searches.
    """
    looked_at: float = 0.0
    """Time when this process last looked in SQL for recently written rows that the view lacks; 0 if it never did."""
    audited_at: float = 0.0
    sampled: int = 0
    """The number of the last span of `sample_seconds` for which this process wrote a sample of the history."""
    lag: float = 0.0
    """Age in seconds of the oldest committed change that the view lacked when it was last compared with SQL."""
    plan_cache: PlanCache = field(default_factory=PlanCache)
    wait_figures: WaitFigures = field(default_factory=WaitFigures)
    spending: SpendingReader = field(default_factory=SpendingReader)
    lost: set[tuple[str, int]] = field(default_factory=set)
    """The rows that the last tick published because its skipped decisions name them, as (row id, version). Version 0:
    the row was deleted. If the next tick publishes no other rows or versions for this reason, it requests no further
    tick.
    """

    @property
    def patience(self) -> float:
        """Return the number of seconds without a tick after which the scheduler is assumed to have had an outage."""
        return self.lock_seconds + 2 * self.interval

    @property
    def sample_seconds(self) -> int:
        """Return the seconds between two samples of the history: a multiple of SAMPLE_SECONDS, in which there is a
        tick.
        """
        return SAMPLE_SECONDS * ceil(max(1.0, self.interval / SAMPLE_SECONDS))

    @property
    def must_repair(self) -> bool:
        """Return whether the next tick must first search Redis for keys of a wrong type."""
        return self.repaired_at is None or self.clock() - self.repaired_at >= self.interval

    def trusts(self, lock: LeaderLock) -> bool:
        """Return whether more than TRUSTED_SHARE of the leader lock's time is left, so that this process may write.

        The time counts from the start of the last renewal.
        """
        return lock.seconds_left() >= self.lock_seconds * TRUSTED_SHARE


def take_leader_term(ports: Ports, leader: Leader, present: LeaderTerm | None = None) -> LeaderTerm:
    """Return the term under which this process may write: its earlier term if no other process led since, else a new,
    higher one. Call it once in each tick, because it counts the ticks of the term. `present`: the term in the database,
    if the caller has read it already; None: it is read.
    """
    present = present or ports.store.load_leader_term()
    mine = leader.leader_term
    if mine is None or (present.term, present.holder) != (mine.term, mine.holder):
        with ports.store.transaction() as transaction:
            mine = transaction.take_term(leader.holder)  # promise: term-grows
        leader.ticks = 0
    leader.leader_term = mine
    leader.ticks += 1
    return msgspec.structs.replace(mine, ticked_at=present.ticked_at, tick=leader.ticks)
