"""The page Events: the history with filters in its address, followed live."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from leasehold.console.page import CORES, EVENTS, Page, backend, make_rows, render, render_fragment
from leasehold.web.backend import Backend
from leasehold.web.server_sent import encode_event
from scheduler.model.events import Event
from scheduler.ports import EventFilter

EVENTS_A_PAGE: Final = 100
MOST_NEW: Final = 500
"""The most new events that one update of the stream, or one request of a page for new events, adds to the page."""
_FILTERS: Final = ("reservation", "slot", "name")


async def show_events(request: Request) -> Response:
    """Show the newest events that match the filters in the URL's query (reservation, slot, name), newest first, at most
    EVENTS_A_PAGE.
    """
    services = backend(request)
    wanted = {name: request.query_params.get(name) or None for name in _FILTERS}
    which = _filter(request, wanted, limit=EVENTS_A_PAGE)
    found = await services.run(services.store.read_events, which)
    known = {*_FILTERS, "cores"}
    faults = [f"{name}: this filter is not known" for name in sorted(set(request.query_params) - known)]
    return render(
        request,
        "events.html",
        page="events",
        events=make_rows(reversed(found)),
        wanted=wanted,
        with_cores=which.without is None,
        faults=faults,
        newest=found[-1].number if found else 0,
        is_cut=len(found) == EVENTS_A_PAGE,
    )


async def show_new_events(request: Request) -> Response:
    """Return the rows of the events after the number `after`, newest first and at most the newest MOST_NEW, for a page
    that shows new events live.
    """
    services = backend(request)
    after = request.query_params.get("after", "")
    if not (after.isascii() and after.isdigit() and len(after) <= 18):  # noqa: PLR2004 - an event's number
        return JSONResponse({"detail": f"after: expected the number of an event, got {after[:80]}"}, 400)
    wanted = {name: request.query_params.get(name) or None for name in _FILTERS}
    which = _filter(request, wanted, after=int(after), limit=MOST_NEW)
    found = await services.run(services.store.read_events, which)
    newest, rows = found[-1].number if found else int(after), make_rows(reversed(found))
    return render(request, "events_new.html", events=rows, newest=newest, is_cut=len(found) == MOST_NEW)


def _register_topic(app: Starlette) -> None:
    services: Backend = app.state.backend
    services.feed.topic(EVENTS, lambda _changed: None)
    services.events.watch(lambda events: _send(services, app.state.prefix, events))


def _send(services: Backend, prefix: str, events: Sequence[Event]) -> None:
    """Send the rows of new events to all open pages of the history. A page keeps the rows that match its filters.
    `prefix`: the path of the console behind a reverse proxy, for links.
    """
    if services.feed.has_listeners(EVENTS):
        services.feed.send(EVENTS, encode_rows(prefix, events))


def encode_rows(prefix: str, events: Sequence[Event]) -> bytes:
    """Return the server-sent event whose field `rows` has these events of the history as rows of the table, newest
    first. If there are more than MOST_NEW events, `rows` is null, and each page then reads the rows itself. `prefix`:
    the path of the console behind a reverse proxy, for links.
    """
    rows = None if len(events) > MOST_NEW else [_describe(prefix, event) for event in reversed(events)]
    return encode_event(EVENTS, {"newest": events[-1].number, "rows": rows})


def _describe(prefix: str, event: Event) -> dict[str, Any]:
    html = render_fragment(
        "events_new.html",
        events=make_rows([event]),
        newest=event.number,
        is_cut=False,
        url=lambda path: f"{prefix}{path}",
    )
    return {"number": event.number, **{name: getattr(event, name) for name in _FILTERS}, "html": html}


def _filter(request: Request, wanted: Mapping[str, str | None], *, limit: int, after: int = 0) -> EventFilter:
    reservation, slot, name = (wanted[each] for each in _FILTERS)
    # Events about cores are many: a page shows them only if its address asks for them.
    without = None if request.query_params.get("cores") or name == CORES else CORES
    return EventFilter(
        after=after, reservation=reservation, slot=slot, name=name, without=without, newest=True, limit=limit
    )


PAGE: Final = Page(
    "events",
    "Events",
    "/events",
    60,
    [Route("/events", show_events), Route("/events/new", show_new_events)],
    prepare=_register_topic,
)
