"""The tick: load, plan, commit, publish and dispatch, by whoever holds the lock and the term.

PROTOCOLS.md, "A tick", says the order and what each line guards against.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from time import monotonic

import msgspec

from scheduler.model.decisions import Plan, Skipped
from scheduler.model.reservations import Reservation, is_over
from scheduler.model.rules import Rules
from scheduler.model.view import Row, View, is_newer
from scheduler.operations.commit import commit
from scheduler.operations.engine import Engine, announce
from scheduler.operations.ledger import Outcome
from scheduler.operations.outage import forgive_outage
from scheduler.policy.plan import plan
from scheduler.ports import Tenure

LOOK_BACK_SECONDS = 35.0
"""Longer than any statement may run: rows are committed in another order than they are stamped."""
TRUSTED_SHARE = 0.4
"""A plan is thrown away when less than this share of the lock's time is left."""


class PlanTooLateError(Exception):
    """The plan took so long that the lock may not be ours any more; nothing of it was written."""


@dataclass
class Leader:
    """What one scheduler process remembers between its ticks."""

    holder: str
    interval: float = 5.0
    lock_seconds: float = 15.0
    tenure: Tenure | None = None
    looked_at: float = 0.0
    """When rows changed behind the view's back were last looked for."""
    lost: set[tuple[str, int]] = field(default_factory=set)
    """(row id, version) of those who lost in the last tick: they raise no second kick."""

    @property
    def patience(self) -> float:
        """Seconds without a tick after which there was an outage of ours."""
        return self.lock_seconds + 2 * self.interval


@dataclass
class Ticked:
    """What one tick did: the plan, who lost, what changed, and how long it took in seconds."""

    plan: Plan
    rules: Rules
    term: int
    now: float
    skipped: list[Skipped] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    seconds: float = 0.0


def tick(
    engine: Engine, leader: Leader, keep_lock: Callable[[], AbstractContextManager[object]] = nullcontext
) -> list[Ticked]:
    """Tick once, and once more for every mark that others left meanwhile; nothing when another one leads.

    `keep_lock` makes the block within which the lock is renewed in the background, one for each tick.
    """
    done: list[Ticked] = []
    again = True
    while again and engine.lock.take():
        again = False
        try:
            with keep_lock():
                done.append(_tick_once(engine, leader))
        finally:
            again = engine.lock.release()
    return done


def _tick_once(engine: Engine, leader: Leader) -> Ticked:
    started = monotonic()
    engine.bell.hear()
    tenure = take_tenure(engine, leader)
    ticked = decide(engine, leader, tenure)
    if engine.lock.seconds_left() < leader.lock_seconds * TRUSTED_SHARE:
        raise PlanTooLateError(f"the plan of term {tenure.term} took too long")
    carry_out(engine, leader, tenure, ticked)
    ticked.seconds = monotonic() - started
    report(engine, ticked)
    return ticked


def take_tenure(engine: Engine, leader: Leader) -> Tenure:
    """The term under which this process may write: its last one if nobody led since, else a new one."""
    present = engine.store.load_tenure()
    mine = leader.tenure
    if mine is None or (present.term, present.holder) != (mine.term, mine.holder):
        with engine.store.transaction() as transaction:
            mine = transaction.take_term(leader.holder)
    leader.tenure = mine
    return msgspec.structs.replace(mine, ticked_at=present.ticked_at)


def decide(engine: Engine, leader: Leader, tenure: Tenure) -> Ticked:
    """Catch up on the view and plan on it, outside any transaction.

    If nobody ticked for longer than the lock's time and two intervals, there was an outage of ours: what fell
    due meanwhile gets one more period, once.
    """
    view = load_view(engine)
    now = engine.store.now()
    if now - leader.looked_at >= leader.interval:
        _mend_view(engine, leader, view, now)
    rules = engine.rules()
    if now - tenure.ticked_at > leader.patience and tenure.ticked_at:
        forgive_outage(engine, view, rules, now)
    return Ticked(plan(view, rules, now), rules, tenure.term, now)


def load_view(engine: Engine) -> View:
    """The warm copy brought up to date, or a whole one, or, when there is no valid view, one made from SQL."""
    return engine.board.catch_up() or engine.board.load() or engine.board.rebuild(engine.store.read_rows())


def _mend_view(engine: Engine, leader: Leader, view: View, now: float) -> None:
    """Publish the rows that changed since the last look and did not reach the view."""
    since = leader.looked_at - LOOK_BACK_SECONDS if leader.looked_at else now - LOOK_BACK_SECONDS
    changed = engine.store.read_changed_since(since)
    missing = [row for row in changed if is_newer(row, known := view.find(row)) and (known or not _is_done(row))]
    if missing:
        engine.board.publish(missing)
        for row in missing:
            view.apply(row)
    leader.looked_at = now


def _is_done(row: Row) -> bool:
    """Whether the view rightly knows nothing of it: a reservation that is over."""
    return isinstance(row, Reservation) and is_over(row)


def carry_out(engine: Engine, leader: Leader, tenure: Tenure, ticked: Ticked) -> None:
    """Commit the plan chunk by chunk; after each chunk publish and dispatch. Losers get their fresh rows
    published and raise a kick, though not a second time for the same versions.
    """
    decisions, now = ticked.plan.decisions, ticked.now
    for skipped, outcome in commit(engine.store, decisions, ticked.rules, tenure, engine.new_id, now):
        ticked.skipped += skipped
        ticked.outcomes.append(outcome)
        announce(engine, outcome, kick=False)
    if not decisions and now - tenure.ticked_at >= leader.interval / 2:
        with engine.store.transaction() as transaction:
            transaction.note_tick(tenure, now)
    _kick_for_losers(engine, leader, ticked)
    engine.dispatcher.wake_at(ticked.plan.wake_at, ticked.now)


def _kick_for_losers(engine: Engine, leader: Leader, ticked: Ticked) -> None:
    names = {getattr(each.decision, "reservation", None) for each in ticked.skipped}
    slots = {getattr(each.decision, "slot", None) for each in ticked.skipped}
    rows: list[Row] = (
        [
            *engine.store.find_reservations(ids=sorted(name for name in names if name)),
            *engine.store.find_slots(ids=sorted(name for name in slots if name)),
        ]
        if ticked.skipped
        else []
    )
    lost = {(row.id, row.version) for row in rows}
    if rows:
        engine.board.publish(rows)
    if lost - leader.lost:
        engine.bell.kick()
    leader.lost = lost


def report(engine: Engine, ticked: Ticked) -> None:
    """Keep what people ask for: who waits and why, when the next thing falls due, how long it took."""
    engine.board.write_report(
        {
            "term": ticked.term,
            "at": ticked.now,
            "seconds": ticked.seconds,
            "wake_at": ticked.plan.wake_at,
            "decisions": len(ticked.plan.decisions),
            "skipped": len(ticked.skipped),
            "waiting": {each.reservation: [each.code, each.detail] for each in ticked.plan.waiting},
        }
    )
