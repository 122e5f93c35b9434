"""Notices over HTTP for all watches of one event loop. A notice reports that the row of a watched reservation has
changed. One thread asks for the changes of all watched reservations at once.

For each watched reservation, a request contains a mark: a text that identifies the row that was read last. The server
responds as soon as one of the rows differs from its mark, so no change is missed between two requests.
"""

import asyncio
import threading
from typing import Final

from leasehold.client.http_channel import HttpChannel, Interrupt
from leasehold.client.http_hints import PAUSE_SECONDS, POLL_SECONDS, mark_row
from leasehold.client.ports import Joined
from leasehold.errors import LeaseholdError
from scheduler.protocol.http_routes import MOST_MARKS

TURN_SECONDS: Final = 0.2
"""The most seconds for which the server may delay its response if more than MOST_MARKS reservations are watched. Each
request then asks about a part of them, and the next parts wait for its end. So the limit is short.
"""
GATHER_SECONDS: Final = 0.02
"""Seconds for which new watches are gathered before the request is sent again with them."""


class HttpNotices:
    """The receiver of the notices for all watches of one event loop. Its thread starts with the first watch."""

    def __init__(self, channel: HttpChannel) -> None:
        self._channel = channel
        self._loop: asyncio.AbstractEventLoop | None = None
        self._events: dict[str, set[asyncio.Event]] = {}
        """Reservation -> events to set when it changes. Only the thread of the event loop uses this table."""
        self._guard = threading.Lock()
        self._marks: dict[str, str] = {}
        """Reservation -> mark of its row that was read last. A mark is a text that differs after each change of the row
        (http_hints.mark_row).
        """
        self._is_wanted = threading.Event()
        self._stop = threading.Event()
        self._interrupt = Interrupt()
        """Ends the present request when a new watch begins, so that the next request is sent at once and contains the
        new watch.
        """
        self._thread: threading.Thread | None = None
        self._turn = 0

    def add(self, name: str, event: asyncio.Event) -> None:
        """Set `event` at each notice about the reservation `name`, until `remove` is called."""
        self._loop = asyncio.get_running_loop()
        self._events.setdefault(name, set()).add(event)
        if self._thread is None:
            self._thread = threading.Thread(target=self._hear, name="leasehold-notices", daemon=True)
            self._thread.start()

    def remove(self, name: str, event: asyncio.Event) -> None:
        """No longer set `event` at notices about the reservation `name`."""
        events = self._events.get(name, set())
        events.discard(event)
        if not events:
            self._events.pop(name, None)
            with self._guard:
                self._marks.pop(name, None)
                if not self._marks:
                    self._is_wanted.clear()

    def note(self, name: str, seen: Joined) -> None:
        """Record the row of the reservation `name` that was read last (`seen`). Each later change of the row sets the
        events of this reservation.
        """
        if name not in self._events:
            return
        mark = mark_row(seen)
        with self._guard:
            known = self._marks.get(name)
            self._marks[name] = mark
            self._is_wanted.set()
            if known is None:
                self._interrupt.set()
        if known not in {None, mark}:
            # Another watch of this reservation has not read the new row yet.
            self._set({name})

    def close(self) -> None:
        """End the thread that receives notices. The channel must be closed before."""
        self._stop.set()
        self._is_wanted.set()
        if self._thread is not None:
            self._thread.join()

    def _hear(self) -> None:
        while not self._stop.is_set():
            self._is_wanted.wait()
            if self._stop.wait(GATHER_SECONDS):
                return
            with self._guard:
                marks, interrupt = dict(self._marks), Interrupt()
                self._interrupt = interrupt
            if not marks:
                continue
            try:
                self._pass_on(self._ask(*self._choose(marks), interrupt))
            except LeaseholdError:
                if not interrupt.is_set:
                    self._stop.wait(PAUSE_SECONDS)

    def _choose(self, marks: dict[str, str]) -> tuple[dict[str, str], float]:
        """Choose the watched reservations that the next request asks about. Return their marks (reservation -> mark of
        the row that was read last), and the seconds for which the request may wait.

        If there are more watched reservations than fit into one request, each request asks about the next part of them.
        """
        if len(marks) <= MOST_MARKS:
            return marks, POLL_SECONDS
        names = [*marks, *marks][self._turn % len(marks) :][:MOST_MARKS]
        self._turn += MOST_MARKS
        return {name: marks[name] for name in names}, TURN_SECONDS

    def _ask(self, marks: dict[str, str], seconds: float, interrupt: Interrupt) -> dict[str, str]:
        """Ask the server for the reservations whose row differs from its mark, and wait for the first one, at most
        `seconds`. Return reservation -> new mark for each of them; {} if none differs. Raise LeaseholdError if the
        request fails.
        """
        body = {"marks": marks, "wait": seconds}
        reply = self._channel.call("POST", "/reservations/changes", body=body, wait=seconds, interrupt=interrupt)
        if not reply.is_ok:
            raise self._channel.explain(reply)
        changed: dict[str, str] = reply.content["marks"]
        return changed

    def _pass_on(self, changed: dict[str, str]) -> None:
        with self._guard:
            # A watch that does not read again soon must not make the server respond at once each time.
            self._marks.update((name, mark) for name, mark in changed.items() if name in self._marks)
        if changed and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._set, set(changed))

    def _set(self, names: set[str]) -> None:
        for name in names:
            for event in self._events.get(name, ()):
                event.set()
