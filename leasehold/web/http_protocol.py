"""uvicorn's HTTP/1.1 connection, with limits: slow, silent and very many connections do not keep the server from
others. uvicorn itself bounds only the idle time between two requests.
"""

import asyncio
import resource
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from leasehold.web.server_sent import Places
from workers.logs import get_logger

HEAD_SECONDS: Final = 10.0
"""Seconds after which a connection is closed whose client has not sent the whole head of a request."""
BODY_SECONDS: Final = 60.0
"""Seconds after its head in which the body of a request must have arrived."""
STUCK_SECONDS: Final = 30.0
"""Seconds after which a connection is closed whose client takes nothing of what was sent."""
SWEEP_SECONDS: Final = 1.0
MOST_FILES: Final = 65_536
"""The most open files that the process asks for: each connection is one."""
MOST_CONNECTIONS: Final = 16_384
BACKLOG: Final = 256
"""The most connections that the event loop accepts before it looks at one of them."""
KEPT_FILES: Final = 512
"""Open files that connections leave to the rest of the process: the backlog, Redis, the database and logs."""
WARN_SECONDS: Final = 60.0

_NEVER: Final = float("inf")

log = get_logger(__name__)


def find_most_connections() -> int:
    """Raise the limit of open files of this process as far as it may, at most to MOST_FILES, and return the most
    connections that a server of this process should have open.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(MOST_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    files = MOST_FILES if soft == resource.RLIM_INFINITY else soft
    return min(MOST_CONNECTIONS, files - min(KEPT_FILES, files // 2))


class Doors:
    """The open connections of one server. They share its places by the address of their peer (`Places`).

    If a peer has no place left, its oldest connection without a whole request is closed for the new one; if it has
    none, the new one is closed. So silent connections keep no request out, and one peer leaves places to the others.
    `is_exempt`: whether a peer is a trusted proxy, whose connections come from many callers. They need no place.
    """

    def __init__(self, most: int, is_exempt: Callable[[str], bool] = lambda _peer: False) -> None:
        self._places, self._is_exempt = Places(most), is_exempt
        self._open: dict[BoundedProtocol, bool] = {}
        """Each connection -> whether it has a place."""
        self._waiting: defaultdict[str, dict[BoundedProtocol, None]] = defaultdict(dict)
        """Peer -> its connections whose next request is not complete, oldest first."""
        self._timer: asyncio.TimerHandle | None = None
        self._closed, self._warned_at = 0, -_NEVER

    def enter(self, connection: "BoundedProtocol") -> bool:
        """Add a new connection. Return False if there is no place for it."""
        needs_place = not self._is_exempt(connection.peer)
        if needs_place and not self._places.take(connection.peer):
            self._closed += 1
            now = connection.loop.time()
            if now - self._warned_at >= WARN_SECONDS:
                log.warning(
                    "A peer has as many connections as it may have; the oldest without a request, or new ones, close.",
                    action="console.connections_full",
                    peer=connection.peer,
                    closed=self._closed,
                )
                self._closed, self._warned_at = 0, now
            oldest = next(iter(self._waiting.get(connection.peer, ())), None)
            if oldest is not None:
                oldest.abort()
                self.leave(oldest)
            if oldest is None or not self._places.take(connection.peer):
                return False
        self._open[connection] = needs_place
        self.note_waiting(connection)
        if self._timer is None:
            self._timer = connection.loop.call_later(SWEEP_SECONDS, self._sweep, connection.loop)
        return True

    def leave(self, connection: "BoundedProtocol") -> None:
        """Remove a connection that was closed; do nothing if it was removed before."""
        if (has_place := self._open.pop(connection, None)) is None:
            return
        self.note_busy(connection)
        if has_place:
            self._places.give_back(connection.peer)

    def note_waiting(self, connection: "BoundedProtocol") -> None:
        """Record that the server waits for a request, or for the rest of one, on this connection."""
        if connection in self._open:
            self._waiting[connection.peer][connection] = None

    def note_busy(self, connection: "BoundedProtocol") -> None:
        """Record that a whole request has arrived on this connection."""
        waiting = self._waiting.get(connection.peer)
        if waiting is not None:
            waiting.pop(connection, None)
            if not waiting:
                del self._waiting[connection.peer]

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close the connections whose time is over. Called every SWEEP_SECONDS while there are connections, so that no
        request needs a timer of its own.
        """
        now = loop.time()
        for connection in [each for each in self._open if each.is_late(now)]:
            connection.abort()
            self.leave(connection)
        self._timer = loop.call_later(SWEEP_SECONDS, self._sweep, loop) if self._open else None


class BoundedProtocol(H11Protocol):
    """uvicorn's protocol, which closes connections that are too slow. `doors`: the open connections of the server."""

    def __init__(self, doors: Doors, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._doors = doors
        self._deadline = _NEVER
        """Time by which the head or the body of the next request must have arrived."""
        self._left, self._stuck_at = 0, _NEVER
        """Bytes that wait for the client, and the time at which the connection is closed if they do not get fewer."""

    @property
    def peer(self) -> str:
        """The address of the client; "" if it has none."""
        return self.client[0] if self.client else ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        """Begin to serve a new connection. asyncio calls this method."""
        super().connection_made(transport)
        self._deadline = self.loop.time() + HEAD_SECONDS
        if not self._doors.enter(self):
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection that was closed. asyncio calls this method."""
        self._doors.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what the client has sent. asyncio calls this method."""
        before = self.conn.their_state
        super().data_received(data)
        found = self.conn.their_state
        if found is h11.IDLE and (before is not h11.IDLE or self._deadline == _NEVER):
            self._deadline = self.loop.time() + HEAD_SECONDS
        elif found is h11.SEND_BODY and before is not h11.SEND_BODY:
            self._deadline = self.loop.time() + BODY_SECONDS
        elif found is not h11.IDLE and found is not h11.SEND_BODY:
            self._deadline = _NEVER
            self._doors.note_busy(self)

    def on_response_complete(self) -> None:
        """Serve the next request of the connection. uvicorn calls this method."""
        super().on_response_complete()
        # The next request, or a part of it, may have arrived together with this one.
        if self.conn.their_state is not h11.DONE:
            self._doors.note_waiting(self)
            if self.conn.trailing_data[0]:
                self._deadline = self.loop.time() + HEAD_SECONDS

    def pause_writing(self) -> None:
        """Wait until the client has taken what was sent. asyncio calls this method."""
        super().pause_writing()
        self._left, self._stuck_at = self.transport.get_write_buffer_size(), self.loop.time() + STUCK_SECONDS

    def resume_writing(self) -> None:
        """Send on. asyncio calls this method."""
        super().resume_writing()
        self._stuck_at = _NEVER

    def is_late(self, now: float) -> bool:
        """Return whether the client is too slow to keep its connection."""
        if self._stuck_at != _NEVER and (left := self.transport.get_write_buffer_size()) < self._left:
            self._left, self._stuck_at = left, now + STUCK_SECONDS
        return now >= min(self._deadline, self._stuck_at)

    def abort(self) -> None:
        """Close the connection at once, without the bytes that still wait."""
        self.transport.abort()
