"""The state that one scheduler process keeps between its ticks, and the term under which it may write."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil
from time import monotonic, sleep
from typing import Final

import msgspec

from scheduler.model.history import SAMPLE_SECONDS
from scheduler.operations.ports import Ports
from scheduler.operations.spending import SpendingReader
from scheduler.operations.tick.wait_figures import WaitFigures
from scheduler.policy.plan_cache import PlanCache
from scheduler.ports import LeaderLock, LeaderTerm

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
