"""`/live`: the stream of server-sent events that a page listens to."""

from collections.abc import AsyncIterator

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from leasehold.console.event_rows import EVENTS
from leasehold.console.page import backend, caller
from leasehold.web.feed import Feed
from leasehold.web.server_sent import EventStream


async def live(request: Request) -> Response:
    """Answer with the events of the topics in the query (`?topic=fleet&topic=events`). A page has one stream."""
    feed, topics = backend(request).feed, request.query_params.getlist("topic")
    if unknown := sorted(set(topics) - feed.topics):
        raise HTTPException(404, f"There is no topic {unknown[0][:80]}.")
    blocks = _read(feed, topics) if EVENTS not in topics else _read_with_events(request, feed, topics)
    return EventStream(blocks, backend(request).streams, caller(request).name)


async def _read(feed: Feed, topics: list[str]) -> AsyncIterator[bytes]:
    async for block in feed.subscribe(*topics):
        yield block


async def _read_with_events(request: Request, feed: Feed, topics: list[str]) -> AsyncIterator[bytes]:
    # The reading begins before the page gets `hello`, upon which it looks for the events that it missed.
    async with backend(request).events.listening():
        async for block in feed.subscribe(*topics):
            yield block
