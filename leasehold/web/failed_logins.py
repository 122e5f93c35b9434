"""Counts failed logins for each peer (network address), so that guesses of keys cannot fill the log or keep the process
busy.
"""

from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import Final

MOST_FAILURES: Final = 10
WINDOW_SECONDS: Final = 60.0
MOST_PEERS: Final = 1000
"""The most peers whose failures are counted. If there are more, the peer that was added first is forgotten."""


class FailedLogins:
    """The times of the last failed logins of each peer. Safe for threads. `monotonic` returns the monotonic time in
    seconds.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic, self._guard = monotonic, Lock()
        self._times: dict[str, deque[float]] = {}

    def note(self, peer: str) -> float | None:
        """Count a failed login of this peer. Return None if the peer had fewer than MOST_FAILURES failures in the last
        WINDOW_SECONDS. Else do not count it, and return the seconds until one more failure is permitted.
        """
        with self._guard:
            now, times = self._drop_old(peer)
            if len(times) >= MOST_FAILURES:
                return WINDOW_SECONDS - (now - times[0])
            self._times[peer] = times
            times.append(now)
            if len(self._times) > MOST_PEERS:
                del self._times[next(iter(self._times))]
        return None

    def is_over(self, peer: str) -> bool:
        """Return whether `note` would not count one more failure of this peer now."""
        with self._guard:
            return len(self._drop_old(peer)[1]) >= MOST_FAILURES

    def _drop_old(self, peer: str) -> tuple[float, deque[float]]:
        now, times = self._monotonic(), self._times.get(peer, deque())
        while times and now - times[0] >= WINDOW_SECONDS:
            times.popleft()
        return now, times
