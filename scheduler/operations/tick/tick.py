"""The tick (one scheduling cycle): load the view, plan, commit, publish and dispatch. Only the leader runs ticks.

The leader is the scheduler process that has the lock in Redis and the newest term in the database. A comment `promise:
NAME` marks a line that prevents a failure. docs/reference/consistency.md, "Decisions" and "Belief", explains which
failure it is.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from math import inf
from types import TracebackType
from typing import Self, TypeVar

import msgspec

from scheduler.model.decisions import Plan, Preempt, Relevel, Skipped
from scheduler.model.history import take_sample
from scheduler.model.rules import Rules
from scheduler.model.view import Gone, View
from scheduler.operations.change_set import ChangeSet
from scheduler.operations.costs import BudgetStatus
from scheduler.operations.membership import check_membership, keep_record
from scheduler.operations.paused_gc import PausedGC, put_many_away
from scheduler.operations.ports import Ports, announce
from scheduler.operations.tick.commit import PlannedRules, commit, reservations_of, slots_of
from scheduler.operations.tick.heartbeat_intake import forgive_outage, hear_before_judging
from scheduler.operations.tick.leader import Leader, take_leader_term
from scheduler.operations.tick.view_repair import LOOK_BACK_SECONDS, RepairResult, audit, look, read_fresh, repair_keys
from scheduler.policy.plan import plan
from scheduler.ports import ClusterRow, LeaderTerm, RulesVersion, ViewUnavailableError

LOAD_PAUSES = (0.1, 0.3, 1.0)
"""Pauses in seconds between the attempts to load the view from Redis. If the attempt after the last pause fails, the
tick fails.
"""
LOAD_FAILURES = "leasehold_view_load_failures_total"
T = TypeVar("T")


class PlanTooLateError(Exception):
    """Raised when planning took so long that the leader lock may have run out. Nothing of the plan was written."""


@dataclass
class Ticked:
    """The result of one tick. `skipped`: the decisions that were not written, because they did not hold any more.
    `seconds`: the duration of the tick. `now`: cluster time of the plan.
    """

    plan: Plan
    rules: Rules
    rules_version: int
    """The version of the stored rules. `rules` are these rules with the values of schedules and budgets."""
    term: int
    now: float
    view: View
    skipped: list[Skipped] = field(default_factory=list)
    cut: int = 0
    """Number of the plan's decisions that were not tried, because the commit had lasted too long."""
    outdated: int = 0
    """Number of the plan's decisions that were not tried, because other rules came into force since the plan."""
    seconds: float = 0.0
    mended: list[RepairResult] = field(default_factory=list)
    """The results of the comparisons of the view with SQL, and of the repairs of the view, that this tick made; empty
    if no comparison was due.
    """
    crossed: list[BudgetStatus] = field(default_factory=list)
    """The budgets that have become exceeded: one of their limits is exceeded now and was not exceeded when the amounts
    were last read.
    """


def tick(
    ports: Ports, leader: Leader, keep_lock: Callable[[], AbstractContextManager[object]] = nullcontext
) -> list[Ticked]:
    """Run one tick, and another one for every request for a tick that arrived meanwhile. Return their results; [] if
    another process has the leader lock, in which case nothing is done.

    `keep_lock`: a function that returns a context manager, entered once for each tick, that renews the lock in the
    background. Redis keys of a wrong type are renamed once in each interval, and in the next tick after one that
    failed.
    """
    if leader.must_repair:
        check_membership(ports)
        repair_keys(ports)
        leader.repaired_at = leader.clock()
    try:
        done = _tick_while_asked(ports, leader, keep_lock)
    except Exception:
        leader.repaired_at = None
        raise
    if done and ports.is_observed:
        _sample_in_time(ports, leader, done[-1])
    return done


def _sample_in_time(ports: Ports, leader: Leader, ticked: Ticked) -> None:
    """Write a sample of the history if there is none of this time. Speed: the lock is released already, so neither this
    tick nor the next one of another process waits for it.
    """
    seconds = leader.sample_seconds
    span = int(ticked.now // seconds)
    if span == leader.sampled:
        return
    longest = leader.wait_figures.find_longest_wait(ticked.now)
    sample = take_sample(ticked.view, len(ticked.plan.waiting), longest, ticked.now, seconds)
    # The next tick writes a sample that Redis did not take.
    with suppress(ViewUnavailableError):
        ports.view_cache.write_sample(sample)
        leader.sampled = span


def _tick_while_asked(
    ports: Ports, leader: Leader, keep_lock: Callable[[], AbstractContextManager[object]]
) -> list[Ticked]:
    done: list[Ticked] = []
    again = True
    while again and ports.lock.take():
        again = False
        try:
            with keep_lock(), PausedGC():
                done.append(_tick_once(ports, leader))
        finally:
            again = ports.lock.release()
    if not done:
        # Another process has the lock. A tick when its lock ends replaces it if it died.
        now = ports.store.now()
        ports.dispatcher.wake_at(now + ports.lock.seconds_until_free(), now)  # promise: dead-leader-followed
    return done


def _tick_once(ports: Ports, leader: Leader) -> Ticked:
    started = leader.clock()
    # In this order: changes that come with requests for a tick after the take of the lock may be missing in the view,
    # and the time and the rules are not older than the view.
    view = _keep_trying(ports, leader, ports.view_cache.catch_up)
    cluster = check_membership(ports)
    leader_term = take_leader_term(ports, leader, cluster.leader_term)
    if view is None:
        keep_record(ports, cluster)
    ticked = decide(ports, leader, leader_term, None if view is None else (view, cluster))
    if not leader.trusts(ports.lock):
        raise PlanTooLateError(  # promise: late-plan-dropped
            f"the plan of term {leader_term.term} took so long that the leader lock may have run out; it was discarded"
        )
    carry_out(ports, leader, leader_term, ticked)
    ticked.seconds = leader.clock() - started
    if view is not None:
        # A view that this process could follow is that of its own cluster, so no lease has to wait for this.
        keep_record(ports, cluster)
    leader.plan_cache.prepare()
    _audit_in_time(ports, leader, ticked)
    report(ports, leader, ticked)
    # A simulation ends before its process, and its plan cache has cycles.
    if view is None and ports.is_observed:
        put_many_away()
    return ticked


def decide(
    ports: Ports, leader: Leader, leader_term: LeaderTerm, known: tuple[View, ClusterRow] | None = None
) -> Ticked:
    """Bring the view (the copy of the rows in Redis) up to date and plan on it, outside any transaction. Return the
    plan with the facts that it is based on. `known`: (view, row about the cluster), if the caller has brought the view
    up to date and then read the row; None: this is done here.

    If there was no tick for longer than `leader.patience`, the scheduler had an outage: ttls and offline timeouts that
    ran out during the outage start again, once.
    """
    view, cluster = known or (load_view(ports, leader), ports.store.read_cluster())
    now = cluster.now
    mended = _look_in_time(ports, leader, view, now)
    rules, until = ports.rules_at(now, RulesVersion(cluster.rules_version, cluster.market_version))
    hear_before_judging(ports, view, rules, leader_term, now)  # promise: heartbeats-before-verdict
    if now - leader_term.ticked_at > leader.patience and leader_term.ticked_at:
        forgive_outage(ports, view, rules, leader_term, now)  # promise: outage-forgiven
    rules, crossed = leader.spending.follow(ports.store, rules, view.slots.values(), now, ports.time_zero)
    outcome = plan(view, rules, now, leader.plan_cache)
    if until < inf:  # the next tick is due when a window of a schedule opens or closes
        outcome = msgspec.structs.replace(
            outcome, wake_at=min(until, inf if outcome.wake_at is None else outcome.wake_at)
        )
    return Ticked(outcome, rules, cluster.rules_version, leader_term.term, now, view, mended=mended, crossed=crossed)


def load_view(ports: Ports, leader: Leader) -> View:
    """Return the current view: this process's own copy brought up to date, else the whole view loaded from Redis, else
    one rebuilt from SQL. Raises ViewUnavailableError after the last attempt.
    """
    cache = ports.view_cache

    def read() -> View:
        return cache.catch_up() or cache.load() or cache.rebuild(ports.store.read_rows())  # promise: view-rebuilt

    return _keep_trying(ports, leader, read)


def _keep_trying(ports: Ports, leader: Leader, read: Callable[[], T]) -> T:
    """Return the result of `read`, a function that reads the view.

    If Redis cannot be read, the failure is counted and the read is tried again after growing pauses, while this process
    certainly still has the leader lock. Raises ViewUnavailableError after the last attempt.
    """
    for pause in LOAD_PAUSES:
        try:
            return read()
        except ViewUnavailableError:
            ports.meter.count(LOAD_FAILURES, {})
            if not leader.trusts(ports.lock):
                raise
            leader.pause(pause)
    return read()


def _look_in_time(ports: Ports, leader: Leader, view: View, now: float) -> list[RepairResult]:
    """Publish cluster time, and the rows that were recently written in SQL and are missing in the view. Do this only if
    `leader.interval` has passed since the last time, or if the clock was set back. Return a list with the result; [] if
    nothing was due.
    """
    if 0 <= now - leader.looked_at < leader.interval:
        return []
    ports.view_cache.publish_time(now)
    since = min(leader.looked_at, now) if leader.looked_at else now
    mended = look(ports, view, since - LOOK_BACK_SECONDS, now)
    leader.looked_at, leader.lag = now, mended.lag
    return [mended]


def _audit_in_time(ports: Ports, leader: Leader, ticked: Ticked) -> None:
    """Compare the whole view with SQL and repair it, if `leader.audit_seconds` have passed since the last audit. This
    comes after the plan is carried out, so that no lease waits for it.
    """
    if 0 <= ticked.now - leader.audited_at < leader.audit_seconds:
        return
    now = ports.store.now()
    _, mended = audit(ports, load_view(ports, leader), now)
    ticked.mended.append(mended)
    leader.audited_at, leader.lag = now, max(leader.lag, mended.lag)


def carry_out(ports: Ports, leader: Leader, leader_term: LeaderTerm, ticked: Ticked) -> None:
    """Commit a tick's plan in chunks. After each chunk announce it: publish its changes to the view, and send its
    notices and its tasks for workers, e.g. launches. The next chunk is written meanwhile.

    The commit ends early in three cases: (1) it has lasted as long as the leader lock (`Leader.lock_seconds`); (2) the
    lock may run out; (3) other rules came into force since the plan. A chunk that was begun is completed. Then another
    tick is requested. That tick plans the rest again, together with newer changes, and handles interruptions first.

    If decisions were skipped, publish the current rows that these decisions name, and request another tick. If all
    these rows have the same versions as after the last tick, request none (see `_kick_for_losers`).
    """
    decisions, now, began = ticked.plan.decisions, ticked.now, leader.clock()
    charged, seen = ticked.plan.charged, ticked.view.slots
    planned_under = PlannedRules(ticked.rules, ticked.rules_version)
    left = len(decisions)
    with _Announcer(ports) as announcer:
        for skipped, change_set, left in commit(
            ports.store, decisions, planned_under, leader_term, ports.new_id, now, charged, seen
        ):
            ticked.skipped += skipped
            announcer.announce(change_set, is_last=not left)
            if left and (leader.clock() - began >= leader.lock_seconds or not leader.trusts(ports.lock)):
                ticked.cut = left
                break
    ticked.outdated = left - ticked.cut
    if left:
        ports.notifier.kick()  # promise: long-commit-cut
    if not decisions and not charged and now - leader_term.ticked_at >= leader.interval / 2:
        with ports.store.transaction() as transaction:
            transaction.note_tick(leader_term, now)
    _kick_for_losers(ports, leader, ticked)
    ports.dispatcher.wake_at(ticked.plan.wake_at, ticked.now)


class _Announcer:
    """Announces the committed chunks of a plan one after the other, in the order of their commits. It is a context
    manager; when its block ends, all announcements have ended.

    Speed: a thread announces a chunk while the caller writes the next one, because both mostly wait for Redis and for
    the database. The last chunk, which is the only one of most plans, needs no thread.
    """

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._executor: ThreadPoolExecutor | None = None
        self._running: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            # The error of the caller is raised, not that of an announcement.
            with suppress(*([] if error is None else [Exception])):
                self._wait()
        finally:
            if self._executor is not None:
                self._executor.shutdown()

    def announce(self, change_set: ChangeSet, *, is_last: bool) -> None:
        """Announce a committed chunk when the one before it is announced. `is_last`: no other chunk follows; then
        return only after this chunk is announced. Raises the error of an earlier announcement.
        """
        self._wait()
        # A simulation has no Redis to wait for, and its steps have one order.
        if is_last or not self._ports.is_observed:
            announce(self._ports, change_set, kick=False)
            return
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="leasehold-announce")
        # In a copy of the context, so that metrics are collected and log lines have the id of the task.
        self._running = self._executor.submit(copy_context().run, announce, self._ports, change_set, kick=False)

    def _wait(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.result()


def _kick_for_losers(ports: Ports, leader: Leader, ticked: Ticked) -> None:
    """Publish the current rows that the tick's skipped decisions name, and request another tick.

    Rows that were deleted are published as deleted. Reservations with leases on the slots of these decisions are
    published too. If all these rows have the same versions as after the last tick, no tick is requested: the next
    periodic tick plans again.
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
    changes = read_fresh(ports, ticked.view, {"reservations": names, "slots": slots, "accounts": accounts})
    if changes:
        ports.view_cache.publish(changes)
    met = {(each.id, 0 if isinstance(each, Gone) else each.version) for each in changes}
    if met - leader.lost:
        ports.notifier.kick()
    leader.lost = met


def _find_holders(ports: Ports, slots: set[str]) -> set[str]:
    """Return the ids of the reservations with leases on these slots, so that they are published with the slots.
    Otherwise the view would show the slots as free.
    """
    if not slots:
        return set()
    with ports.store.transaction() as transaction:
        # promise: losers-planned-again
        return {owner for leases in transaction.load_leases(slots).values() for owner, _ in leases}


def report(ports: Ports, leader: Leader, ticked: Ticked) -> None:
    """Store the report of a tick in Redis: the reservations that wait, with their waiting codes; when the next tick is
    due; and how long the steps of this tick took.

    In the report, `pools` has the system of each pool of the rules. `view_lag` is the age in seconds of the oldest
    committed change that the view lacked when it was last compared with SQL.
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
            "pools": {name: pool.system for name, pool in ticked.rules.pools.items()},
            "budgets": [msgspec.to_builtins(each) for each in leader.spending.status],
            **leader.wait_figures.describe(ticked.plan, ticked.view, ticked.rules, ticked.now),
        },
        ticked.plan.waiting,
    )
