"""Server-sent events: their encoding, the queue of one open stream, the newest events of the history, read and
encoded once for all readers, and the places that callers share.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from leasehold.errors import Unavailable
from leasehold.web.problems import make_problem, respond
from scheduler.model.events import Event
from scheduler.ports import EventFilter
from scheduler.protocol.http_routes import STREAM_TYPE
from scheduler.protocol.visible import escape_json_bytes
from workers.logs import get_logger


class Places:
    """A number of places. A caller may take one while it has fewer than a third of the places that are free.

    So one caller alone gets a quarter of all places. Each further caller that takes all it can leaves three quarters of
    the free places to others. An object may be used on one event loop only.
    """

    def __init__(self, most: int) -> None:
        self._free = most
        self._taken: Counter[str] = Counter()

    def count(self, caller: str) -> int:
        return self._taken.get(caller, 0)

    def take(self, caller: str) -> bool:
        """Take a place for this caller, and return whether it got one."""
        if self.count(caller) * 3 >= self._free:
            return False
        self._taken[caller] += 1
        self._free -= 1
        return True

    def give_back(self, caller: str) -> None:
        self._free += 1
        self._taken[caller] -= 1
        if not self._taken[caller]:
            del self._taken[caller]

    @contextmanager
    def using(self, caller: str) -> Iterator[bool]:
        """Take a place for the `with` block. Yield whether the caller got one."""
        has_place = self.take(caller)
        try:
            yield has_place
        finally:
            if has_place:
                self.give_back(caller)


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


class EventStream(StreamingResponse):
    """The response with a stream of server-sent events, which takes one of the `places` of this caller as long as it is
    open. A caller that has none left gets status 429.
    """

    def __init__(self, blocks: AsyncIterator[bytes], places: Places, caller: str) -> None:
        # GZip would hold events back: the content type excludes it.
        super().__init__(
            blocks, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}, media_type=STREAM_TYPE
        )
        self._places, self._caller = places, caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream, or the refusal if the caller has as many streams as it may have."""
        if scope["method"] == "HEAD":
            # The stream has no end: the next request on the connection would wait for it.
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body"})
            return
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


LOOK_SECONDS: Final = 0.5
"""Seconds between two reads of new events from the database while a stream or a page is open."""
KEEP_ALIVE_SECONDS: Final = 15.0
EVENTS_KEPT: Final = 5000
"""Number of the newest events that are kept in encoded form, so that each event is encoded once for all streams."""
EVENTS_A_READ: Final = 1000

log = get_logger(__name__)


def write_event(event: Event) -> dict[str, Any]:
    """Return all fields of an event as values that JSON can represent."""
    return {name: msgspec.to_builtins(getattr(event, name)) for name in event.__struct_fields__}


class EventTail:
    """The newest events of the history, read from the database by one task for all open streams and pages.

    `read` is called to read events from the database, and raises Unavailable if the database does not answer. The
    object may be used on one event loop only.
    """

    def __init__(self, read: Callable[[EventFilter], Coroutine[Any, Any, list[Event]]]) -> None:
        self._read = read
        self._tail: deque[tuple[Event, bytes]] = deque(maxlen=EVENTS_KEPT)
        self._last = 0
        self._news = asyncio.Event()
        self._listeners = 0
        self._task: asyncio.Task[None] | None = None
        self._watchers: list[Callable[[list[Event]], None]] = []

    def watch(self, note: Callable[[list[Event]], None]) -> None:
        """Register the function `note`. It is called in a thread with each list of new events that was read.
        Events are read only while a `with` block of `listening` or an iteration of `follow` is active.
        """
        self._watchers.append(note)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Read new events within the block, for the functions that were registered by `watch`. Events that were stored
        before the block began, or before the database first answered within the block, are not passed on.
        """
        self._listeners += 1
        starting = asyncio.create_task(self._start())
        try:
            # The block may begin while the database is lost.
            await asyncio.wait([starting], timeout=LOOK_SECONDS)
            yield
        finally:
            self._listeners -= 1
            starting.cancel()

    async def _start(self) -> None:
        while True:
            try:
                await self._run()
                return
            except Unavailable:
                await asyncio.sleep(LOOK_SECONDS)

    async def follow(self, which: EventFilter) -> AsyncIterator[bytes]:
        """Yield the events that match `which`, encoded as server-sent events: first the stored ones from number
        `which.after` + 1 on, then each new one. After KEEP_ALIVE_SECONDS without new events, yield KEEP_ALIVE.
        """
        self._listeners += 1
        try:
            position = which.after
            while True:
                news = self._news
                try:
                    await self._run()
                    async for number, block in self._read_after(position, which):
                        position = number
                        if block:
                            yield block
                except Unavailable:
                    # The database is lost: the stream continues when it is back.
                    await asyncio.sleep(LOOK_SECONDS)
                    continue
                try:
                    async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                        await news.wait()
                except TimeoutError:
                    yield KEEP_ALIVE
        finally:
            self._listeners -= 1

    async def _read_after(self, position: int, which: EventFilter) -> AsyncIterator[tuple[int, bytes]]:
        """Yield the number and the encoded form of each matching event after the number `position`. At the end yield
        the number up to which all events were read, with an empty text in place of an event.
        """
        while not self._tail or self._tail[0][0].number > position + 1:
            last = self._last
            if position >= last:
                return
            found = await self._read(msgspec.structs.replace(which, after=position, limit=EVENTS_A_READ))
            for event in found:
                yield event.number, _encode(event)
            read_upto = found[-1].number if found else 0
            position = read_upto if len(found) == EVENTS_A_READ else max(position, last, read_upto)
            yield position, b""
        for event, block in list(self._tail):
            if event.number > position and (
                which.reservation in {None, event.reservation}
                and which.slot in {None, event.slot}
                and which.name in {None, event.name}
            ):
                yield event.number, block
        yield max(position, self._last), b""

    async def _run(self) -> None:
        """Start the task that reads new events, unless the task runs already. Before the start, drop the kept events,
        because events that this process did not read may have been stored since the last stream was closed.
        """
        if self._task is not None and not self._task.done():
            return
        newest = await self._read(EventFilter(newest=True, limit=1))
        if self._task is None or self._task.done():
            self._tail.clear()
            self._last = newest[-1].number if newest else 0
            self._task = asyncio.create_task(self._look())

    async def _look(self) -> None:
        while self._listeners:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                found = await self._read(EventFilter(after=self._last, limit=EVENTS_A_READ))
            except Unavailable:
                continue
            if found:
                await run_in_threadpool(self._pass_on, found)
                self._tail.extend((event, _encode(event)) for event in found)
                self._last = found[-1].number
                news, self._news = self._news, asyncio.Event()
                news.set()

    def _pass_on(self, events: list[Event]) -> None:
        for note in self._watchers:
            try:
                note(events)
            except Exception:
                # An error of one page must not end the streams of the others.
                log.exception("New events could not be shown.", action="console.feed_failed")


def _encode(event: Event) -> bytes:
    return encode_event(event.name, write_event(event), identifier=str(event.number))
