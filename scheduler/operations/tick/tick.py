"""The tick: load the view, plan, commit, publish and dispatch. Only the leader with the lock and the term ticks.

docs/reference/consistency.md, "Decisions" and "Belief", explains the failure that each line prevents.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Any, Final

import msgspec

from scheduler.explain.conditions import is_at_quota
from scheduler.model.accounts import FREE, find_account, level_of
from scheduler.model.decisions import Plan, Preempt, Relevel, Skipped
from scheduler.model.rules import Rules
from scheduler.model.transitions import INACTIVE
from scheduler.model.view import Gone, View
from scheduler.operations.membership import check_membership, keep_record
from scheduler.operations.paused_gc import PausedGC
from scheduler.operations.ports import Ports, announce
from scheduler.operations.tick.commit import commit, reservations_of, slots_of
from scheduler.operations.tick.heartbeat_intake import forgive_outage, hear_before_judging
from scheduler.operations.tick.view_repair import LOOK_BACK_SECONDS, RepairResult, audit, look, read_fresh, repair_keys
from scheduler.operations.unit_of_work import ChangeSet
from scheduler.policy.plan import plan
from scheduler.policy.plan_cache import PlanCache
from scheduler.ports import LeaderTerm, ViewUnavailableError

TRUSTED_SHARE = 0.4
"""A plan is discarded when less than this share of the lock's time is left."""
LOAD_PAUSES = (0.1, 0.3, 1.0)
"""Seconds before each further try to load the view. After the last one the tick fails."""
LOAD_FAILURES = "leasehold_view_load_failures_total"
NOT_A_WAIT: Final = frozenset({"booting", "on_hold"})
"""Codes of reservations that have a slot in flight, or were put on hold."""
LEVELS: Final = range(FREE + 1)
"""The paid levels and the free one."""


class PlanTooLateError(Exception):
    """The plan took so long that the lock may have run out. Nothing of it was written."""


@dataclass
class Leader:
    """The state that one scheduler process keeps between its ticks."""

    holder: str
    interval: float = 5.0
    lock_seconds: float = 15.0
    audit_seconds: float = 60.0
    """Seconds between two comparisons of the whole view's counts and versions with SQL."""
    pause: Callable[[float], None] = sleep
    """Waits for a number of seconds."""
    process: str = ""
    """The name of this process in reports: `host:pid`."""
    leader_term: LeaderTerm | None = None
    looked_at: float = 0.0
    """When rows that the view may lack were last read."""
    audited_at: float = 0.0
    lag: float = 0.0
    """`RepairResult.lag` of the last look or audit."""
    plan_cache: PlanCache = field(default_factory=PlanCache)
    lost: set[tuple[str, int]] = field(default_factory=set)
    """(row id, version) of the rows of decisions that were skipped in the last tick. They cause no second kick.
    Version 0: the row was deleted."""

    @property
    def patience(self) -> float:
        """Return the seconds without a tick after which an outage of the scheduler is assumed."""
        return self.lock_seconds + 2 * self.interval


@dataclass
class Ticked:
    """The result of one tick: the plan, skipped decisions, changes, and the duration in seconds."""

    plan: Plan
    rules: Rules
    term: int
    now: float
    view: View
    skipped: list[Skipped] = field(default_factory=list)
    outcomes: list[ChangeSet] = field(default_factory=list)
    seconds: float = 0.0
    mended: list[RepairResult] = field(default_factory=list)
    """The results of the look and the audit, if this tick made them."""


def tick(
    ports: Ports, leader: Leader, keep_lock: Callable[[], AbstractContextManager[object]] = nullcontext
) -> list[Ticked]:
    """Tick once, and once more for every mark that other processes left meanwhile. Do nothing while another one leads.

    `keep_lock` returns the block within which the lock is renewed in the background, one for each tick.
    """
    repair_keys(ports)
    done: list[Ticked] = []
    again = True
    while again and ports.lock.take():
        again = False
        try:
            with keep_lock():
                done.append(_tick_once(ports, leader))
        finally:
            again = ports.lock.release()
    if not done:
        # A tick at the end of the other process's lock replaces a leader that died.
        now = ports.store.now()
        ports.dispatcher.wake_at(now + ports.lock.seconds_until_free(), now)  # promise: dead-leader-followed
    return done


def _tick_once(ports: Ports, leader: Leader) -> Ticked:
    started = monotonic()
    cluster = check_membership(ports)
    ports.notifier.hear()
    leader_term = take_leader_term(ports, leader)
    keep_record(ports, cluster)
    ticked = decide(ports, leader, leader_term)
    if not _is_trusted(ports, leader):
        raise PlanTooLateError(f"the plan of term {leader_term.term} took too long")  # promise: late-plan-dropped
    carry_out(ports, leader, leader_term, ticked)
    ticked.seconds = monotonic() - started
    _audit_in_time(ports, leader, ticked)
    report(ports, leader, ticked)
    return ticked


def _is_trusted(ports: Ports, leader: Leader) -> bool:
    """Return whether enough of the lock's time is left since its last renewal began."""
    return ports.lock.seconds_left() >= leader.lock_seconds * TRUSTED_SHARE


def take_leader_term(ports: Ports, leader: Leader) -> LeaderTerm:
    """Return the term under which this process may write: its last one if no other process led since,
    else a new one.
    """
    present = ports.store.load_leader_term()
    mine = leader.leader_term
    if mine is None or (present.term, present.holder) != (mine.term, mine.holder):
        with ports.store.transaction() as transaction:
            mine = transaction.take_term(leader.holder)  # promise: term-grows
    leader.leader_term = mine
    return msgspec.structs.replace(mine, ticked_at=present.ticked_at)


def decide(ports: Ports, leader: Leader, leader_term: LeaderTerm) -> Ticked:
    """Bring the view up to date and plan on it, outside any transaction.

    If there was no tick for longer than the lock's time and two intervals, the scheduler had an outage: everything
    that fell due meanwhile gets one more period, once.
    """
    view = load_view(ports, leader)
    now = ports.store.now()
    ports.view_cache.publish_time(now)
    mended = _look_in_time(ports, leader, view, now)
    rules = ports.rules()
    hear_before_judging(ports, view, rules, leader_term, now)  # promise: heartbeats-before-verdict
    if now - leader_term.ticked_at > leader.patience and leader_term.ticked_at:
        forgive_outage(ports, view, rules, leader_term, now)  # promise: outage-forgiven
    with PausedGC():
        outcome = plan(view, rules, now, leader.plan_cache)
    return Ticked(outcome, rules, leader_term.term, now, view, mended=mended)


def load_view(ports: Ports, leader: Leader) -> View:
    """Return the process's own copy brought up to date, or a copy of the whole view, or one rebuilt from SQL if there
    is no valid view.

    A failure is counted and tried again with growing pauses, as long as the lock is certain to be this process's.
    """
    for pause in LOAD_PAUSES:
        try:
            return _load_once(ports)
        except ViewUnavailableError:
            ports.meter.count(LOAD_FAILURES, {})
            if not _is_trusted(ports, leader):
                raise
            leader.pause(pause)
    return _load_once(ports)


def _load_once(ports: Ports) -> View:
    # promise: view-rebuilt
    return ports.view_cache.catch_up() or ports.view_cache.load() or ports.view_cache.rebuild(ports.store.read_rows())


def _look_in_time(ports: Ports, leader: Leader, view: View, now: float) -> list[RepairResult]:
    """Once in an interval, repair rows that changed since shortly before the last look. A clock that was set back makes
    a look due.
    """
    if 0 <= now - leader.looked_at < leader.interval:
        return []
    since = min(leader.looked_at, now) if leader.looked_at else now
    mended = look(ports, view, since - LOOK_BACK_SECONDS, now)
    leader.looked_at, leader.lag = now, mended.lag
    return [mended]


def _audit_in_time(ports: Ports, leader: Leader, ticked: Ticked) -> None:
    """Once in `audit_seconds`, audit the view. This comes after the plan is carried out, so that no
    lease waits for it.
    """
    now = ports.store.now()
    if 0 <= now - leader.audited_at < leader.audit_seconds:
        return
    _, mended = audit(ports, load_view(ports, leader), now)
    ticked.mended.append(mended)
    leader.audited_at, leader.lag = now, max(leader.lag, mended.lag)


def carry_out(ports: Ports, leader: Leader, leader_term: LeaderTerm, ticked: Ticked) -> None:
    """Commit the plan in chunks. After each chunk publish and dispatch its changes.

    The current rows of skipped decisions are published and requested to be planned again by a kick, but not twice
    for the same versions.
    """
    decisions, now = ticked.plan.decisions, ticked.now
    charged, seen = ticked.plan.charged, ticked.view.slots
    for skipped, change_set in commit(
        ports.store, decisions, ticked.rules, leader_term, ports.new_id, now, charged, seen
    ):
        ticked.skipped += skipped
        ticked.outcomes.append(change_set)
        announce(ports, change_set, kick=False)
    if not decisions and not charged and now - leader_term.ticked_at >= leader.interval / 2:
        with ports.store.transaction() as transaction:
            transaction.note_tick(leader_term, now)
    _kick_for_losers(ports, leader, ticked)
    ports.dispatcher.wake_at(ticked.plan.wake_at, ticked.now)


def _kick_for_losers(ports: Ports, leader: Leader, ticked: Ticked) -> None:
    """Publish the present rows that skipped decisions concern, and request another tick.

    Rows that were deleted are published as gone. Reservations with leases on the decisions' slots are published,
    too. No tick is requested if all rows are the same as after the last tick: then the periodic tick plans again.
    """
    if not ticked.skipped:
        leader.lost = set()
        return
    lost = [each.decision for each in ticked.skipped]
    slots = {name for each in lost for name in slots_of(each)}
    names = {name for each in lost for name in reservations_of(each)} | _find_holders(ports, slots)
    paid = {name for each in lost if isinstance(each, Preempt | Relevel) for name in reservations_of(each)}
    rows = [row for name in paid if (row := ticked.view.reservations.get(name)) is not None]
    accounts = {row.request.account for row in rows if row.request.account is not None}
    names_of_rows = {"reservations": names, "slots": slots, "accounts": accounts}
    changes = read_fresh(ports, ticked.view, names_of_rows)
    if changes:
        ports.view_cache.publish(changes)
    met = {(each.id, 0 if isinstance(each, Gone) else each.version) for each in changes}
    if met - leader.lost:
        ports.notifier.kick()
    leader.lost = met


def _find_holders(ports: Ports, slots: set[str]) -> set[str]:
    """Return the reservations with leases on these slots. A view that has only the slots would take them for free."""
    if not slots:
        return set()
    with ports.store.transaction() as transaction:
        # promise: losers-planned-again
        return {owner for leases in transaction.load_leases(slots).values() for owner, _ in leases}


def report(ports: Ports, leader: Leader, ticked: Ticked) -> None:
    """Store the report of this tick: waiting reservations with codes, the next due time, durations.

    `view_lag`: the age of the oldest committed change that the view lacked at the last look or audit, in seconds.
    """
    ports.view_cache.write_report(
        {
            "term": ticked.term,
            "leader": leader.process,
            "at": ticked.now,
            "seconds": ticked.seconds,
            "wake_at": ticked.plan.wake_at,
            "decisions": len(ticked.plan.decisions),
            "skipped": len(ticked.skipped),
            "view_lag": leader.lag,
            **describe_waits(ticked.plan, ticked.view, ticked.rules, ticked.now),
            "accounts": describe_account_waits(ticked.plan, ticked.view),
            "waiting": {name: list(reason) for name, reason in ticked.plan.waiting.items()},
        }
    )


def describe_waits(plan: Plan, view: View, rules: Rules, now: float) -> dict[str, Any]:
    """Return the numbers of waiting reservations.

    `codes`: number by code. `longest_wait`: seconds since the oldest submit, without reservations in NOT_A_WAIT.
    `at_quota`: pools whose launches an EC2 quota holds back.
    """
    begun = (
        row.created_at
        for name, (code, _) in plan.waiting.items()
        if code not in NOT_A_WAIT and (row := view.reservations.get(name)) is not None
    )
    return {
        "codes": Counter(code for code, _ in plan.waiting.reasons),
        "longest_wait": max(0.0, now - min(begun, default=now)),
        "at_quota": [name for name in rules.pools if _is_at_quota(view, name, now)],
    }


def _is_at_quota(view: View, pool: str, now: float) -> bool:
    holds = [each for each in view.holds.values() if each.pool == pool and each.kind == "quota"]
    if not holds:
        return False
    active = sum(slot.pool == pool and slot.state not in INACTIVE for slot in view.slots.values())
    return is_at_quota(holds, pool, active, now)


def describe_account_waits(plan: Plan, view: View) -> Mapping[str, list[int]]:
    """Return for each account how many waiting reservations would be placed at each level, the free one last.

    The level follows from the account's present balance. Accounts without waiting reservations are missing.
    """
    accounts, rows = view.accounts, view.reservations
    if not accounts:
        return {}
    # Find the level once for each account: a hundred thousand reservations of ten accounts may wait.
    counted = Counter(
        account.id
        for name in plan.waiting.names
        if (row := rows.get(name)) is not None
        and (account := find_account(accounts, row.request.account, row.sequence)) is not None
    )
    levels = {name: level_of(accounts[name].balance) for name in counted}
    return {name: [count if level == levels[name] else 0 for level in LEVELS] for name, count in counted.items()}
