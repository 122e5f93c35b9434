"""Cluster time on PostgreSQL: the server's clock plus an offset that is stored in the database.

Each process compares the server's clock with its own monotonic clock. A difference of more than a second means that the
server's clock has jumped. The process that notices the jump first corrects the stored offset, once, by compare-and-set.
The other processes then read the corrected offset, so cluster time continues without a jump.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Engine, Select, bindparam, update
from sqlalchemy.exc import SQLAlchemyError

from scheduler.ports import ClusterRow
from scheduler.protocol.clock import LARGEST_STEP, read_monotonic
from scheduler.store import tables
from scheduler.store.cluster import CLUSTER_ID, StoredCluster, find_newest, read_stored

MOST_DRIFT: Final = 0.0005
"""By how many seconds per second two clocks may drift apart without a jump: the highest rate at which NTP adjusts a
clock.
"""
SURE_SECONDS: Final = 5.0
"""Seconds for which a new process waits before it corrects the stored offset itself, if the server's clock is behind
the times of stored rows. A process that started earlier knows the time better and may correct the offset first.
"""

_CLUSTER = tables.cluster.c
_CORRECT: Final = (
    update(tables.cluster)
    .where(_CLUSTER.id == CLUSTER_ID, _CLUSTER.clock_changes == bindparam("seen"))  # promise: clock-corrected-once
    .values(clock_offset=bindparam("corrected"), clock_changes=_CLUSTER.clock_changes + 1)
)


class _Known(NamedTuple):
    """An earlier reading of cluster time. Cluster time was `now` at a moment when the monotonic clock of this process
    was between `before` and `after`. `changes` and `restores`: the stored numbers of corrections of the offset, and of
    restores, at that time.
    """

    now: float
    before: float
    after: float
    changes: int
    restores: int
    sure_from: float
    """Time of the monotonic clock from which on this process may correct the stored offset."""

    def carry(self, before: float, after: float) -> float:
        """Return the present cluster time as this process expects it: the earlier reading plus the time that has passed
        since by the monotonic clock. `before` and `after`: the monotonic clock before and after the present reading.
        """
        return self.now + (before + after - self.before - self.after) / 2

    def has_jumped(self, now: float, before: float, after: float) -> bool:
        """Return whether the server's clock must have jumped since the earlier reading, because the time `now` is too
        far from what this process expects. `before` and `after`: the monotonic clock before and after `now` was read.
        """
        tolerance = LARGEST_STEP + MOST_DRIFT * (after - self.before)
        return not self.now + before - self.after - tolerance <= now <= self.now + after - self.before + tolerance


class ReferenceClock:
    """The clock that gives this process the cluster time of one PostgreSQL database. Thread-safe. `select`: the
    statement that reads the row of the cluster together with the present time of the server.
    """

    def __init__(self, select: Select[Any], monotonic: Callable[[], float] = read_monotonic) -> None:
        self._select, self._monotonic = select, monotonic
        self._guard = threading.Lock()
        self._known: _Known | None = None

    def read(self, connection: Connection) -> ClusterRow:
        """Return the row about the cluster with cluster time. If the server's clock has jumped, correct the stored
        offset through another connection.
        """
        stored, before, after = self._ask(connection)
        if self._has_jumped(stored, before, after):
            return self._correct(connection.engine, stored, before, after)
        return self._adopt(stored, before, after)

    def _ask(self, connection: Connection) -> tuple[StoredCluster, float, float]:
        before = self._monotonic()
        return read_stored(connection, self._select), before, self._monotonic()

    def _has_jumped(self, stored: StoredCluster, before: float, after: float) -> bool:
        known, now = self._known, stored.reference + stored.clock_offset
        if known is None or known.restores != stored.restores:
            # There is no earlier reading. Only a time before that of the last tick shows a jump.
            return now < stored.ticked_at - LARGEST_STEP
        if known.changes < stored.clock_changes:
            # Another process corrected the offset. Its correction holds for all processes.
            return False
        if known.sure_from > after and now >= stored.ticked_at - LARGEST_STEP:
            return False
        return known.has_jumped(now, before, after)

    def _adopt(self, stored: StoredCluster, before: float, after: float) -> ClusterRow:
        """Use the stored offset from now on, and return the row with cluster time. If the new time is before the last
        time that this process read, by less than LARGEST_STEP seconds, the row has the last time, so that time does not
        go back.
        """
        now = stored.reference + stored.clock_offset
        with self._guard:
            known = self._known
            if known is not None and known.restores == stored.restores and known.changes >= stored.clock_changes:
                now = max(now, known.now) if known.now - now < LARGEST_STEP else now
            self._known = _Known(now, before, after, stored.clock_changes, stored.restores, after)
        return stored.at(now, stored.clock_offset)

    def _correct(self, engine: Engine, stored: StoredCluster, before: float, after: float) -> ClusterRow:
        known = self._known
        if known is None or known.restores != stored.restores:
            known = _Known(stored.ticked_at, before, after, stored.clock_changes, stored.restores, after + SURE_SECONDS)
            self._known = known
        now = known.carry(before, after)
        is_stale = known.changes > stored.clock_changes
        if is_stale or after < known.sure_from:
            return stored.at(now, now - stored.reference)
        # If the offset cannot be written (this user may only read), this process continues with its own time.
        with suppress(SQLAlchemyError):
            return self._write(engine, stored, now)
        return stored.at(now, now - stored.reference)

    def _write(self, engine: Engine, stored: StoredCluster, now: float) -> ClusterRow:
        """Correct the stored offset so that cluster time was `now` when `stored` was read, then use the stored offset.

        The stored offset is not changed if another process has corrected it meanwhile, or if rows in the database are
        newer than `now`. Such rows show that this process is behind, because its host was paused.
        """
        with engine.connect() as connection, connection.begin():
            if find_newest(connection) <= now + LARGEST_STEP:
                corrected = now - stored.reference
                connection.execute(_CORRECT, {"seen": stored.clock_changes, "corrected": corrected})
            found, before, after = self._ask(connection)
        self._known = None
        return self._adopt(found, before, after)
