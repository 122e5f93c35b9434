"""The clock of a client over HTTP. It shows cluster time: a header of each response has the time at which the response
was made.
"""

import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import httpx

from scheduler.protocol.clock import ClusterClock, read_monotonic
from scheduler.protocol.http_routes import TIME_HEADER

LOOK_SECONDS = 30.0
"""Seconds after which any response corrects the clock again, even if its request was slow."""
FIRST_SECONDS: Final = 10.0
"""The most seconds that the first `now` waits for the server, if there was no response before."""


class HttpClock:
    """A clock that computes cluster time from the headers of responses. Thread-safe. `base`, `headers`: the URL of the
    API and the headers of a request, for the first `now` if there was no response before.
    """

    def __init__(self, base: str, headers: Mapping[str, str]) -> None:
        self._base, self._headers = base, headers
        self._guard = threading.Lock()
        self._clock = ClusterClock(self._find)
        self._shortest, self._noted_at = float("inf"), float("-inf")

    def now(self) -> float:
        """Return cluster time in seconds since the epoch. If the server has never answered, return the time of this
        host's wall clock.
        """
        if not self._clock.has_looked:
            self._ask()
        return self._clock.now() if self._clock.has_looked else time.time()

    def _ask(self) -> None:
        """Read the time with a connection of its own: the caller may be on the event loop, and does not await."""
        context = ssl.create_default_context()
        before = read_monotonic()
        with suppress(httpx.HTTPError):
            # A redirect is not followed, as it would carry the login to another host.
            response = httpx.get(
                f"{self._base}/status",
                headers=self._headers,
                verify=context,
                trust_env=False,
                follow_redirects=False,
                timeout=FIRST_SECONDS,
            )
            self.note(response.headers.get(TIME_HEADER), before)

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
