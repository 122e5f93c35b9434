"""The sessions that were logged out. The database has them, so that every process refuses their cookies, also after a
restart and after Redis lost its data.
"""

import threading
from collections.abc import Callable
from typing import Final

from scheduler.ports import Store, StoreUnavailableError
from workers.access import LOOK_SECONDS

_MOST_READS: Final = 4
"""The most reads that wait for the database at the same time, so that a database that hangs does not take all threads
of the process.
"""
_PATIENCE_SECONDS: Final = 0.25


class EndedSessions:
    """The sessions that were logged out. Safe for threads. `monotonic`: the monotonic clock of this process."""

    def __init__(self, store: Store, monotonic: Callable[[], float]) -> None:
        self._store, self._monotonic = store, monotonic
        self._known: dict[str, float] = {}
        """Session that this process ended -> cluster time from which on its cookie is too old."""
        self._unwritten: dict[str, float] = {}
        self._guard = threading.Lock()
        self._reads = threading.BoundedSemaphore(_MOST_READS)
        self._lost_until = float("-inf")

    def is_known(self, session: str) -> bool:
        """Return whether this process knows that the session was logged out. This reads no database."""
        return session in self._known

    def has(self, session: str) -> bool:
        """Return whether the session was logged out in any process. While the database does not answer, only the
        sessions that this process knows count, as for principals that were removed.
        """
        if session in self._known:
            return True
        if self._monotonic() < self._lost_until or not self._reads.acquire(timeout=_PATIENCE_SECONDS):
            return False
        try:
            self._write_late()
            is_ended = self._store.is_session_ended(session)
        except StoreUnavailableError:
            self._lost_until = self._monotonic() + LOOK_SECONDS
            return False
        finally:
            self._reads.release()
        return is_ended

    def end(self, session: str, until: float) -> None:
        """Log a session out, whose cookie is too old from `until` on (cluster time). Raises StoreUnavailableError if
        the database does not answer; then this process alone refuses the session, and writes it to the database when
        that answers again.
        """
        with self._guard:
            self._known[session] = self._unwritten[session] = until
        self._write_late()

    def _write_late(self) -> None:
        for session, until in tuple(self._unwritten.items()):
            with self._store.transaction() as transaction:
                transaction.end_session(session, until)
                now = transaction.now()
            with self._guard:
                self._unwritten.pop(session, None)
                self._known = {each: late for each, late in self._known.items() if late >= now}
