"""Streams of server-sent events: the events of the history, and the changed rows of the view."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from leasehold.api.queries import Query, make_cursor, make_page
from leasehold.api.rows import join_row, write_account, write_joined, write_slot
from leasehold.api.service import Service, check_right, respond
from leasehold.common.http_routes import STREAM_TYPE
from leasehold.errors import Unavailable
from leasehold.web.feed import Changed, Feed
from leasehold.web.server_sent import KEEP_ALIVE, encode_event
from scheduler.model.events import Event
from scheduler.model.faults import Fault, InvalidInputError, show
from scheduler.ports import EventFilter

LOOK_SECONDS: Final = 0.5
"""Interval in which the database is read for new events while a stream is open."""
KEEP_ALIVE_SECONDS: Final = 15.0
EVENTS_KEPT: Final = 5000
"""The newest events that are kept encoded, so that each is encoded once for all streams."""
EVENTS_A_READ: Final = 1000
MOST_ROWS: Final = 2000
"""The most changed rows in one update. Above it, the update only reports that lists must be read again."""
ROWS: Final = "rows"
"""Topic with the changed rows of the view."""
_LAST_EVENT: Final = "last-event-id"


def write_event(event: Event) -> dict[str, Any]:
    """Return an event as JSON values, with all of its fields."""
    return {name: msgspec.to_builtins(getattr(event, name)) for name in event.__struct_fields__}


class EventTail:
    """The newest events of the history, read from the database by one task for all open streams."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._tail: deque[tuple[Event, bytes]] = deque(maxlen=EVENTS_KEPT)
        self._last = 0
        self._news = asyncio.Event()
        self._listeners = 0
        self._task: asyncio.Task[None] | None = None

    async def follow(self, which: EventFilter) -> AsyncIterator[bytes]:
        """Yield the events that match, from number `which.after` + 1 on, as they are stored."""
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
        """Yield the number and the encoded form of each matching event after `position`; at the end the number up to
        which all were read, with an empty text.
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
        """Start the task that reads new events, unless it runs. Forget the kept events: others may have been stored
        since the last stream was closed.
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
                self._tail.extend((event, _encode(event)) for event in found)
                self._last = found[-1].number
                news, self._news = self._news, asyncio.Event()
                news.set()

    async def _read(self, which: EventFilter) -> list[Event]:
        backend = self._service.backend
        return await backend.run(backend.store.read_events, which)


class Streams:
    """The handlers of events and streams."""

    def __init__(self, service: Service) -> None:
        self._service, self._tail = service, EventTail(service)
        feed = service.backend.feed
        feed.topic(ROWS, lambda changed: encode_rows(feed, changed))

    async def events(self, request: Request) -> Response:
        """Respond with one page of events, or with a stream of them if the caller accepts `text/event-stream`."""
        check_right(request, "query")
        query = Query(request)
        after = query.take_number("after")
        which = EventFilter(
            after=after,
            reservation=query.take("reservation"),
            slot=query.take("slot"),
            name=query.take("name"),
            newest=query.take_flag("newest"),
            limit=query.take_limit(),
        )
        cursor = query.take_cursor()
        if cursor is not None:
            which = msgspec.structs.replace(which, after=_read_number(query, cursor))
        query.end()
        await self._service.open_client(request)
        if STREAM_TYPE in request.headers.get("accept", ""):
            return await self._stream_events(request, which)
        backend = self._service.backend
        found = await backend.run(backend.store.read_events, which)
        is_full = len(found) == which.limit and not which.newest
        return respond(make_page([write_event(each) for each in found], _next(found) if is_full else None))

    async def stream(self, request: Request) -> Response:
        """Respond with a stream of the changed rows of the view."""
        check_right(request, "query")
        query = Query(request)
        topics = query.take_choices("topic", self._service.backend.feed.topics) or {ROWS}
        query.end()
        await self._service.open_client(request)
        return _stream(self._service.backend.feed.subscribe(*sorted(topics)))

    async def _stream_events(self, request: Request, which: EventFilter) -> Response:
        resumed = request.headers.get(_LAST_EVENT)
        if resumed is not None:
            if not resumed.isascii() or not resumed.isdigit():
                raise InvalidInputError([Fault("Last-Event-ID", "the number of an event", show(resumed))])
            which = msgspec.structs.replace(which, after=int(resumed))
        elif which.newest:
            backend = self._service.backend
            newest = await backend.run(backend.store.read_events, EventFilter(newest=True, limit=1))
            which = msgspec.structs.replace(which, after=newest[-1].number if newest else 0)
        return _stream(self._tail.follow(msgspec.structs.replace(which, newest=False)))


def encode_rows(feed: Feed, changed: Changed) -> bytes | None:
    """Return the event with the changed rows of the view, and the ids of the rows that are gone."""
    view = feed.view
    head = {"since": changed.since, "revision": changed.revision}
    if changed.is_reset or sum(len(ids) for ids in changed.ids.values()) > MOST_ROWS:
        return encode_event("reset", head)
    found: dict[str, list[Any]] = {"reservations": [], "slots": [], "accounts": []}
    gone: dict[str, list[str]] = {kind: [] for kind in found}
    with view.reading():
        for kind, rows in found.items():
            for name in sorted(changed.of(kind)):
                row = view.rows(kind).get(name) or (view.ended.get(name) if kind == "reservations" else None)
                if row is None:
                    gone[kind].append(name)
                elif kind == "reservations":
                    rows.append(write_joined(join_row(row, view)))  # type: ignore[arg-type]  # of this kind
                else:
                    rows.append(write_slot(row) if kind == "slots" else write_account(row))  # type: ignore[arg-type]
    if not any(found.values()) and not any(gone.values()):
        return None
    return encode_event(ROWS, {**head, **found, "gone": gone})


def _stream(blocks: AsyncIterator[bytes]) -> Response:
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(blocks, headers=headers, media_type=STREAM_TYPE)


def _encode(event: Event) -> bytes:
    return encode_event(event.name, write_event(event), identifier=str(event.number))


def _matches(event: Event, which: EventFilter) -> bool:
    return (
        which.reservation in {None, event.reservation}
        and which.slot in {None, event.slot}
        and which.name in {None, event.name}
    )


def _read_number(query: Query, cursor: list[Any]) -> int:
    match cursor:
        case [int(number)] if not isinstance(number, bool):
            return number
    query.refuse_cursor(cursor)
    return 0


def _next(found: Sequence[Event]) -> str:
    return make_cursor(found[-1].number)
