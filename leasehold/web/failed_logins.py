"""Counts failed logins for each peer, so that guesses cannot fill the log or keep the process busy."""

from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import Final

MOST_FAILURES: Final = 10
WINDOW_SECONDS: Final = 60.0
MOST_PEERS: Final = 1000
"""The most peers that are counted. Beyond it, the peer whose failures began first is forgotten."""


class FailedLogins:
    """The times of the last failed logins of each peer. Safe for threads. `monotonic`: a clock in seconds."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic, self._guard = monotonic, Lock()
        self._times: dict[str, deque[float]] = {}

    def note(self, peer: str) -> float | None:
        """Count a failure of this peer. Return None for the first MOST_FAILURES within WINDOW_SECONDS, then the seconds
        until the peer may fail again.
        """
        now = self._monotonic()
        with self._guard:
            times = self._times.setdefault(peer, deque())
            while times and now - times[0] >= WINDOW_SECONDS:
                times.popleft()
            if len(times) >= MOST_FAILURES:
                return WINDOW_SECONDS - (now - times[0])
            times.append(now)
            if len(self._times) > MOST_PEERS:
                del self._times[next(iter(self._times))]
        return None
