"""Server-sent events: their encoding, and the queue of one open stream."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final

import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from leasehold.web.places import Places
from leasehold.web.problems import make_problem, respond
from scheduler.protocol.http_routes import STREAM_TYPE
from scheduler.protocol.visible import escape_json_bytes

KEEP_ALIVE: Final = b": alive\n\n"
"""A comment in a stream of server-sent events. It is sent while there are no events, so that both sides notice a dead
connection.
"""
MOST_WAITING: Final = 64
"""The most events that wait for a reader. The stream of a slower reader is ended; the reader then connects again and
loads all rows.
"""


def encode_event(name: str, data: object, *, identifier: str | None = None) -> bytes:
    """Return an event whose data is `data` as JSON, or the text itself if `data` is a text (a fragment of a page).
    `identifier`: the id of the event, from which a reader that connects again continues; None: the event has no id.
    """
    body = data.encode() if isinstance(data, str) else escape_json_bytes(msgspec.json.encode(data))
    head = b"" if identifier is None else b"id: %s\n" % identifier.encode()
    # A line feed would end the data, and JSON has none.
    lines = b"\n".join(b"data: " + line for line in body.splitlines() or [b""])
    return b"%sevent: %s\n%s\n\n" % (head, name.encode(), lines)


MOST_STREAMS: Final = 2048
"""The most open streams of a server. A caller gets a quarter of them at the most (`Places`)."""
STREAM_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class EventStream(StreamingResponse):
    """The response with a stream of server-sent events, which takes one of the `places` of this caller as long as it is
    open. A caller that has none left gets status 429.
    """

    def __init__(self, blocks: AsyncIterator[bytes], places: Places, caller: str) -> None:
        # GZip would hold events back: the content type excludes it.
        super().__init__(blocks, headers=STREAM_HEADERS, media_type=STREAM_TYPE)
        self._places, self._caller = places, caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream, or the refusal if the caller has as many streams as it may have."""
        with self._places.using(self._caller) as has_place:
            if has_place:
                await super().__call__(scope, receive, send)
                return
        count = self._places.count(self._caller)
        problem = make_problem(429, f"{self._caller} has {count} open streams already: close one")
        await respond(problem)(scope, receive, send)


class Subscriber:
    """The events that wait for one open stream. `put` and `end` may be called by any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[bytes] = deque()
        self._wakes = asyncio.Event()
        self._ended = False

    def put(self, block: bytes) -> None:
        """Add an event. If more than MOST_WAITING events then wait, end the stream."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._add, block)

    def end(self) -> None:
        """End the stream after the events that still wait were sent."""
        with suppress(RuntimeError):  # as above
            self._loop.call_soon_threadsafe(self._add, None)

    async def read(self, pause_seconds: float, keep_alive: bytes) -> AsyncIterator[bytes]:
        """Yield the events, and `keep_alive` after each `pause_seconds` without an event."""
        while True:
            while self._waiting:
                yield self._waiting.popleft()
            if self._ended:
                return
            self._wakes.clear()
            try:
                async with asyncio.timeout(pause_seconds):
                    await self._wakes.wait()
            except TimeoutError:
                yield keep_alive

    def _add(self, block: bytes | None) -> None:
        if block is None or len(self._waiting) >= MOST_WAITING:
            self._ended = True
        elif not self._ended:
            self._waiting.append(block)
        self._wakes.set()
