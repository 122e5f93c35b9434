"""Streams of server-sent events: the events of the history, and the changed rows of the view."""

from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from leasehold.api.lists import join_row, write_account, write_joined, write_slot
from leasehold.api.queries import MOST_NUMBER, Query, make_cursor, make_page
from leasehold.api.service import Service, check_right, find_caller, respond
from leasehold.web.feed import Changed, Feed
from leasehold.web.server_sent import EventStream, encode_event, write_event
from scheduler.model.events import EVENT_NAMES
from scheduler.model.faults import Fault, InvalidInputError, show
from scheduler.ports import EventFilter
from scheduler.protocol.http_routes import STREAM_TYPE

MOST_ROWS: Final = 2000
"""The most changed rows in one update. If more rows have changed, the update has no rows and only reports that a client
must read its lists again.
"""
ROWS: Final = "rows"
"""Topic with the changed rows of the view."""
_LAST_EVENT: Final = "last-event-id"


class Streams:
    """The handlers of events and streams."""

    def __init__(self, service: Service) -> None:
        self._service, self._tail = service, service.backend.events
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
            name=query.take_name("name", EVENT_NAMES),
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
        return respond(
            make_page([write_event(each) for each in found], make_cursor(found[-1].number) if is_full else None)
        )

    async def stream(self, request: Request) -> Response:
        """Respond with a stream of the changed rows of the view."""
        check_right(request, "query")
        query = Query(request)
        topics = query.take_choices("topic", self._service.backend.feed.topics) or {ROWS}
        query.end()
        await self._service.open_client(request)
        return self._stream(request, self._service.backend.feed.subscribe(*sorted(topics)))

    def _stream(self, request: Request, blocks: AsyncIterator[bytes]) -> Response:
        return EventStream(blocks, self._service.backend.streams, find_caller(request).name)

    async def _stream_events(self, request: Request, which: EventFilter) -> Response:
        resumed = request.headers.get(_LAST_EVENT)
        if resumed is not None:
            is_number = resumed.isascii() and resumed.isdigit() and len(resumed) <= len(str(MOST_NUMBER))
            if not is_number or int(resumed) > MOST_NUMBER:
                raise InvalidInputError([Fault("Last-Event-ID", "the number of an event", show(resumed))])
            which = msgspec.structs.replace(which, after=int(resumed))
        elif which.newest:
            backend = self._service.backend
            newest = await backend.run(backend.store.read_events, EventFilter(newest=True, limit=1))
            which = msgspec.structs.replace(which, after=newest[-1].number if newest else 0)
        return self._stream(request, self._tail.follow(msgspec.structs.replace(which, newest=False)))


def encode_rows(feed: Feed, changed: Changed) -> bytes | None:
    """Return the server-sent event with the changed rows of the view, and the ids of the rows that are gone. Return
    None if there are neither.
    """
    view = feed.view
    head = {"since": changed.since, "revision": changed.revision}
    found: dict[str, list[Any]] = {"reservations": [], "slots": [], "accounts": []}
    if changed.is_reset or sum(len(changed.of(kind)) for kind in found) > MOST_ROWS:
        return encode_event("reset", head)
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


def _read_number(query: Query, cursor: list[Any]) -> int:
    match cursor:
        case [int(number)] if not isinstance(number, bool):
            return number
    query.refuse_cursor(cursor)
    return 0
