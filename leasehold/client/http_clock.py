"""The clock of a client over HTTP. It shows cluster time: a header of each response has the time at which the response
was made.
"""

import threading
import time
from collections.abc import Callable

from leasehold.errors import LeaseholdError
from scheduler.protocol.clock import ClusterClock, read_monotonic

LOOK_SECONDS = 30.0
"""Seconds after which any response corrects the clock again, even if its request was slow."""


class HttpClock:
    """A clock that computes cluster time from the headers of responses. Thread-safe. `ask` sends any request; the first
    `now` calls `ask` if there was no response before.
    """

    def __init__(self, ask: Callable[[], object]) -> None:
        self._ask, self._guard = ask, threading.Lock()
        self._clock = ClusterClock(self._find)
        self._found, self._before = 0.0, 0.0
        self._shortest, self._noted_at = float("inf"), float("-inf")

    def now(self) -> float:
        """Return cluster time in seconds since the epoch. If the server has never answered, return the time of this
        host's wall clock.
        """
        if not self._clock.has_looked:
            try:
                self._ask()
            except LeaseholdError:
                return time.time()
        return self._clock.now() if self._clock.has_looked else time.time()

    def note(self, header: str | None, before: float) -> None:
        """Correct the clock by the time in a response whose request was sent at `before` (monotonic). The response of a
        quicker request is more exact, so slow ones are ignored until LOOK_SECONDS have passed.
        """
        try:
            found = float(header or "")
        except ValueError:
            return
        now = read_monotonic()
        with self._guard:
            is_old = now - self._noted_at > LOOK_SECONDS
            if not is_old and now - before > self._shortest:
                return
            self._shortest, self._noted_at = now - before, now
            self._clock.correct(found, before, now)

    def _find(self) -> float:
        raise AssertionError("the clock is corrected by responses only")
