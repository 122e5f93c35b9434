"""The newest events of the history, for streams of the API and for pages: each event is read and encoded once for all
of its readers.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
from starlette.concurrency import run_in_threadpool

from leasehold.errors import Unavailable
from leasehold.web.server_sent import KEEP_ALIVE, encode_event
from scheduler.model.events import Event
from scheduler.ports import EventFilter
from workers.logs import get_logger

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
            if event.number > position and _matches(event, which):
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


def _matches(event: Event, which: EventFilter) -> bool:
    return (
        which.reservation in {None, event.reservation}
        and which.slot in {None, event.slot}
        and which.name in {None, event.name}
    )
