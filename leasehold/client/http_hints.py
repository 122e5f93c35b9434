"""Hints over HTTP. A hint reports that a row has changed: the server responds to a request when the row has changed, or
when the waiting time of the request is over.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from leasehold.client.http_channel import HttpChannel, Interrupt
from leasehold.client.ports import Joined
from leasehold.errors import LeaseholdError
from scheduler.protocol.http_routes import quote_id

POLL_SECONDS: Final = 20.0
"""The most seconds for which one HTTP request waits for a change."""
LISTEN_SECONDS: Final = 2.0
"""The most seconds for which a new subscription to the hints of a host waits for its first hint."""
PAUSE_SECONDS: Final = 0.2
"""Seconds before the next request for hints if the server does not answer."""
NOTHING: Final = "none"
"""The mark (see `mark_row`) of a reservation that the view does not have."""


def mark_row(seen: Joined) -> str:
    """Return the mark of a row that was read. The mark is a text that differs after each change of the row, and when a
    machine of the row's leases becomes known. By the mark the server finds out whether a client has the newest row.
    """
    if seen.row is None:
        return NOTHING
    return f"{seen.row.version}" + (f"-{len(seen.missing)}" if seen.missing else "")


class HttpRowHints:
    """Hints over HTTP, for one thread. A hint reports that the row of one reservation has changed. Each change after
    the last read of the row is reported.
    """

    def __init__(self, channel: HttpChannel, reservation: str) -> None:
        self._channel, self._path = channel, f"/reservations/{quote_id(reservation)}"
        self._mark = NOTHING
        self.expected: frozenset[str] = frozenset()

    def listen(self) -> None:
        """Begin the subscription to hints. Here: do nothing, because there is no subscription; each `wait` is a request
        of its own.
        """

    def note(self, seen: Joined) -> None:
        """Record the row that was read last. `wait` returns when the row differs from it."""
        self._mark = mark_row(seen)

    def wait(self, seconds: float) -> bool:
        """Wait until the row differs from the one that was read last, for `seconds` at most. Return True if the row
        differs, else False.
        """
        return _wait(self._channel, seconds, self._has_changed)

    def forget(self) -> None:
        """Drop the hints that have arrived so far. Here: do nothing, because no hints are collected; each `wait`
        compares the present row with the one that was read last.
        """

    def close(self) -> None:
        """End the subscription to hints. Here: do nothing, because there is no subscription, and the connections belong
        to the client.
        """

    def _has_changed(self, seconds: float) -> bool:
        query = {"after": self._mark, "wait": f"{seconds:.3f}"}
        reply = self._channel.call("GET", self._path, query, wait=seconds)
        if reply.status == 404:  # noqa: PLR2004 - no such reservation
            return self._mark != NOTHING
        if not reply.is_ok:
            raise self._channel.explain(reply)
        return bool(_read(reply.content, "mark") != self._mark)


class HttpHostHints:
    """Hints over HTTP, for one thread. A hint reports that the slot of one host has changed. A thread of this object
    asks the server for hints in long requests, so that a short `wait` needs no request.
    """

    def __init__(self, channel: HttpChannel, slot: str) -> None:
        self._channel, self._path = channel, f"/slots/{quote_id(slot)}/hint"
        self._hinted, self._ends = threading.Event(), threading.Event()
        self._interrupt = Interrupt()
        self._thread: threading.Thread | None = None
        self.expected: frozenset[str] = frozenset()

    def listen(self) -> None:
        """Begin to listen. From now on the server keeps hints between two requests."""
        with suppress(LeaseholdError):
            # A new subscription begins with a hint, because earlier ones were missed.
            self._is_hinted(LISTEN_SECONDS)
        if self._thread is None:
            self._thread = threading.Thread(target=self._hear, name="leasehold-hints", daemon=True)
            self._thread.start()

    def note(self, seen: Joined) -> None:
        """Record the row of a reservation that was read last (`seen`). Here: do nothing, because these hints are about
        a slot, and a host reads no reservation's row.
        """

    def wait(self, seconds: float) -> bool:
        """Wait for a hint, for `seconds` at most. Return whether a hint arrived."""
        if self._thread is None:
            self.listen()
        is_hinted = self._hinted.wait(seconds)
        self._hinted.clear()
        return is_hinted

    def forget(self) -> None:
        """Drop the hints that have arrived so far."""
        self._hinted.clear()

    def close(self) -> None:
        """End the thread that asks the server for hints."""
        self._ends.set()
        self._interrupt.set()
        if self._thread is not None:
            self._thread.join()

    def _hear(self) -> None:
        while not self._ends.is_set() and not self._channel.is_closed:
            try:
                if self._is_hinted(POLL_SECONDS):
                    self._hinted.set()
            except LeaseholdError:
                self._ends.wait(PAUSE_SECONDS)

    def _is_hinted(self, seconds: float) -> bool:
        query = {"wait": f"{seconds:.3f}"}
        reply = self._channel.call("GET", self._path, query, wait=seconds, interrupt=self._interrupt)
        if not reply.is_ok:
            raise self._channel.explain(reply)
        return bool(_read(reply.content, "changed"))


def _wait(channel: HttpChannel, seconds: float, ask: Callable[[float], bool]) -> bool:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0 and not channel.is_closed:
        try:
            if ask(min(left, POLL_SECONDS)):
                return True
        except LeaseholdError:
            channel.pause(min(PAUSE_SECONDS, left))
    return False


def _read(content: Any, name: str) -> Any:
    return content.get(name) if isinstance(content, dict) else None
