"""The form of a page of the console, and what every page uses: templates, links, forms and fragments.

Changes that a page requests go to a worker as requests, like those of a producer, and their outcome is shown as a
sentence. The report of the last tick (why each reservation waits) is read at most once in KEPT_SECONDS, because it
lists the whole queue.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final, TypeVar
from urllib.parse import parse_qs

import jinja2
from markupsafe import Markup, escape
from msgspec import structs
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute

from leasehold.client.async_client import AsyncClient
from leasehold.client.models import Answer, Reservation
from leasehold.errors import Fault, LeaseholdError, Refused
from leasehold.texts.values import describe_event, format_amount, name_source
from leasehold.web.backend import Backend, may_be_carried_out
from leasehold.web.caller import Caller, find_caller
from leasehold.web.feed import Feed
from leasehold.web.server_sent import EventStream
from scheduler.model.events import Event
from scheduler.model.runs import name_run
from scheduler.protocol.visible import escape_json, make_visible

_ENVIRONMENT: Final = jinja2.Environment(
    loader=jinja2.PackageLoader("leasehold.console", "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,
    # Every text of a value has its control characters shown; autoescape then escapes markup.
    finalize=lambda value: value if isinstance(value, Markup) else show(value),
)
_MOST_FIELDS: Final = 2000
_LONG_FORM: Final = 16 * 1024
"""Size in bytes from which on a form is read in a thread."""
_LEAST_SHOWN: Final = 0.005
"""Smaller amounts would be 0 with two decimals."""

R = TypeVar("R")
caller: Final = find_caller


@dataclass(frozen=True)
class Page:
    """One page of the console. A module of `leasehold/console/pages/` defines one as `PAGE`.

    `name`: the id in links and in the style. `path`: the path to which the entry in the navigation leads. `order`: the
    place of the entry in the navigation. `routes`: Starlette routes of the page and of its parts, with paths from the
    root of the console. Their functions take a request; `backend(request)` returns the services and `caller(request)`
    the caller. `in_navigation`: whether the navigation shows the page. `prepare` is called once with the application,
    before the first request; a page registers its topics of the feed there.
    """

    name: str
    title: str
    path: str
    order: int
    routes: Sequence[BaseRoute]
    in_navigation: bool = True
    prepare: Callable[[Starlette], object] = lambda _app: None


def backend(request: Request) -> Backend:
    found: Backend = request.app.state.backend
    return found


def keep(request: Request, name: str, make: Callable[[], R]) -> R:
    """Return what the application keeps under `name`; at the first use `make` makes it."""
    state = request.app.state
    if not hasattr(state, name):
        setattr(state, name, make())
    found: R = getattr(state, name)
    return found


def render(request: Request, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    """Return a page or a fragment made of a template with these values. Autoescape is on, and control characters in
    texts are shown as escapes.

    A page extends `layout.html`. Templates also know `url(path)`, `static(path)`, `caller`, `csrf`, `pages`, `page`
    (the name of the present page, or "") and `prefix`.
    """
    return HTMLResponse(render_text(request, template, **values), status)


def render_text(request: Request, template: str, **values: Any) -> str:
    state = request.app.state
    known: dict[str, Any] = {
        "caller": getattr(request.state, "caller", None),
        "csrf": getattr(request.state, "csrf", None),
        "pages": state.pages,
        "page": "",
        "prefix": state.prefix,
        "read_only": state.backend.settings.console.read_only,
        "url": lambda path: url(request, path),
        "static": lambda path: f"{state.prefix}/static/{path}?v={state.static_version}",
        "status": state.backend.feed.status,
        "now": time.time(),
    }
    return _ENVIRONMENT.get_template(template).render(known | values)


def render_fragment(template: str, **values: Any) -> str:
    """Return the text of a fragment that needs no request, for an event of the feed."""
    return _ENVIRONMENT.get_template(template).render(values)


def url(request: Request, path: str) -> str:
    return f"{request.app.state.prefix}{path}"


async def read_form(request: Request) -> dict[str, list[str]]:
    """Return the fields of a form (`application/x-www-form-urlencoded`), each with its values in order.

    Raises Refused for a body that is no form in UTF-8, or has more than _MOST_FIELDS fields.
    """
    body = await request.body()
    # Python needs a second for 2 MB.
    return _parse_form(body) if len(body) < _LONG_FORM else await run_in_threadpool(_parse_form, body)


def _parse_form(body: bytes) -> dict[str, list[str]]:
    try:
        return parse_qs(body.decode("utf-8"), keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise Refused(
            [Fault(0, "body", f"a form in UTF-8 with at most {_MOST_FIELDS} fields", "another body")]
        ) from None


def show(value: object) -> object:
    """Return `value` for a template: a text with its control characters shown as escapes, "" for None, and any other
    value unchanged.
    """
    if value is None:
        return ""
    return make_visible(value, multiline=True) if isinstance(value, str) else value


def redirect(request: Request, path: str) -> Response:
    """Return an answer after which the browser shows another page of the console. It works for a plain form and for a
    request of htmx.
    """
    where = url(request, path)
    if "hx-request" in request.headers:
        return Response(status_code=204, headers={"HX-Redirect": where})
    return Response(status_code=303, headers={"Location": where})


def format_time(seconds: float | None) -> Markup:
    """Return a time as `<time>` relative to now, such as `12 min ago`, with the absolute time in UTC on hover.
    `console.js` keeps the text up to date. An empty text for None.
    """
    if seconds is None:
        return Markup()
    at = datetime.fromtimestamp(seconds, UTC)
    return Markup('<time datetime="{}" title="{} UTC" data-ago>{}</time>').format(
        at.isoformat(timespec="milliseconds"), format_second(seconds), format_ago(seconds, time.time())
    )


def format_utc(seconds: float | None) -> Markup:
    """Return an absolute time as `<time>` in UTC, for rows whose time is their name, such as hours. An empty text for
    None.
    """
    if seconds is None:
        return Markup()
    at = datetime.fromtimestamp(seconds, UTC)
    return Markup('<time datetime="{}">{}</time>').format(at.isoformat(timespec="milliseconds"), format_second(seconds))


def format_second(seconds: float) -> str:
    """Return an absolute time in UTC as text, to the second: `2026-01-31 12:00:00`."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def format_ago(at: float, now: float) -> str:
    """Return a time relative to now: `8 s ago`, `in 12 min`, or `now` within a second. `ago` of console.js returns the
    same.
    """
    age = now - at
    if abs(age) < 1:
        return "now"
    return f"{format_span(age)} ago" if age > 0 else f"in {format_span(-age)}"


def format_span(seconds: float | None) -> str:
    """Return a duration as people write it: `8 s`, `12 min`, `3 h 20 min`, `2 d 4 h`; an empty text for None."""
    if seconds is None:
        return ""
    whole = int(max(0.0, seconds))
    for unit, size, minor, minor_size in (("d", 86400, "h", 3600), ("h", 3600, "min", 60)):
        if whole >= size:
            count, rest = divmod(whole, size)
            return f"{count} {unit} {rest // minor_size} {minor}"
    return f"{whole // 60} min" if whole >= 60 else f"{whole} s"  # noqa: PLR2004 - a minute


def format_dollars(amount: float) -> str:
    """Return an amount of money with two decimals: `$1,234.50`, `$0.42`. A smaller amount than a cent is `<$0.01`."""
    if 0 < abs(amount) < _LEAST_SHOWN:
        return "<$0.01" if amount > 0 else ">-$0.01"
    return f"${amount:,.2f}" if amount >= 0 else f"-${-amount:,.2f}"


def embed_json(text: str) -> Markup:
    """Return JSON for a `<script type="application/json">` of a page: no text in it can end the element."""
    text = escape_json(text)
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))  # noqa: S704 - escaped


# Templates wrap a macro in it that many rows of a page call with the same values.
_ENVIRONMENT.globals["cached"] = cache
_ENVIRONMENT.filters |= {
    "time": format_time,
    "utc": format_utc,
    "second": format_second,
    "span": format_span,
    "amount": format_amount,
    "dollars": format_dollars,
    "visible": lambda text: escape(show(text)),
    "embed_json": embed_json,
    "name_run": name_run,
    "zip": zip,
}


@dataclass(frozen=True)
class Outcome:
    """The outcome of one change. `about`: the id of the object to change. `ok`: whether the change was carried out.
    `text`: the outcome as a sentence for people. `made`: the id of the reservation that the change made; None: none.
    `is_known` False: the change may still be carried out.
    """

    about: str
    ok: bool
    text: str
    made: str | None = None
    is_known: bool = True


async def change(
    request: Request,
    verb: str,
    about: str,
    act: Callable[[AsyncClient], Awaitable[object]],
    describe: Callable[[Answer], str] | None = None,
) -> Outcome:
    """Request one change from a worker for the caller of an HTTP request, write it to the log, and return the outcome.
    `verb`, `about`: the name of the requested change and the id of the object to change.

    `act` sends the request by the client that it gets, which acts as the caller. `describe` makes the text of the
    outcome from a worker's answer; None: the text names the new state. A refusal, or an answer that did not come, is
    returned as an outcome and not raised: a page may change several rows by one call each, and a refused change must
    not hide the outcomes of the other changes.
    """
    services, sender = backend(request), caller(request)
    refusal = sender.find_refusal(verb)
    if refusal is not None:
        return Outcome(about, ok=False, text=refusal)
    try:
        answer = await act(await services.client(sender))
    except LeaseholdError as error:
        services.log_change(sender, verb, about, error)
        is_known = not may_be_carried_out(error)
        late = "" if is_known else "; it is not known whether it was carried out"
        return Outcome(about, ok=False, text=f"{error}{late}", is_known=is_known)
    services.log_change(sender, verb, about, answer)
    if isinstance(answer, Reservation):
        return Outcome(about, ok=True, text="submitted again as", made=answer.id)
    text = describe(answer) if describe is not None and isinstance(answer, Answer) else _describe(answer)
    return Outcome(about, ok=True, text=text)


def is_foreign(sender: Caller, owner: str | None) -> bool:
    """Return whether another principal submitted a reservation, and the sender may act for its own ones only."""
    return sender.role != "operator" and sender.principal is not None and owner not in {None, sender.principal}


def _describe(answer: object) -> str:
    if isinstance(answer, Answer):
        state = answer.phase or answer.state
        return f"done; it is {state} now" if state else "done"
    return "done"


EVENTS: Final = "events"
"""Topic of the feed with the new events of the history."""


CORES: Final = "reservation_cores"
"""Name of the events about the cores that a lease may use. They are many, so pages show them only on demand."""
_ORDER: Final = ("reason", "waited", "slots", "slot")
"""The details that stand first in a text."""


@dataclass(frozen=True)
class EventRow:
    """One event, with its name and its details in words, and what caused it, such as `tick 3.120` or `request ci`."""

    event: Event
    title: str
    text: str
    source: str


def make_rows(events: Iterable[Event]) -> list[EventRow]:
    """Return these events with their texts, in the same order."""
    return [_make_row(event) for event in events]


def _make_row(event: Event) -> EventRow:
    source = name_source(event)
    if "tick" in event.detail:
        source += f" {event.detail['term']}.{event.detail['tick']}"
    # The events before show from which phase or state an object came.
    rest = {name: value for name, value in event.detail.items() if name not in {"term", "tick", "from"}}
    has_sentence = event.name.endswith("_relevelled") or {"by", "preempted", "refusal"} & {*rest} or "message" in rest
    if has_sentence or event.name == CORES:
        if event.name.endswith("_relevelled") and "from" in event.detail:
            rest["from"] = event.detail["from"]
        text = describe_event(structs.replace(event, detail=rest))
    else:
        names = sorted(rest, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER))
        text = ", ".join(_describe_event(name, rest[name]) for name in names if rest[name] not in (None, "", [], {}))
    return EventRow(event, event.name.replace("_", " "), text, source)


def _describe_event(name: str, value: Any) -> str:
    """Return one detail in words, like `after 3 s` or `on linux-1, linux-2`."""
    match name:
        case "waited":
            return f"after {format_span(value)}"
        case "slots" | "slot":
            return f"on {_show(value)}"
        case "reason":
            return _show(value)
    return f"{name.replace('_', ' ')} {_show(value)}"


def _show(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_show, value))
    if isinstance(value, Mapping):
        return " ".join(f"{key}={_show(each)}" for key, each in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    return format_amount(value) if isinstance(value, float) else str(value)


KEPT_SECONDS: Final = 3.0
"""Seconds for which one read of the report is used for all pages."""


@dataclass
class LastTick:
    """The report of the last tick, as the console read it at the monotonic time `read_at`."""

    report: dict[str, Any] = field(default_factory=dict)
    read_at: float = float("-inf")


async def read_tick(request: Request) -> dict[str, Any]:
    """Return the report of the last tick, read at most KEPT_SECONDS ago, or earlier while Redis does not answer; {}
    before the first tick.
    """
    known = keep(request, "last_tick", LastTick)
    if time.monotonic() - known.read_at >= KEPT_SECONDS:
        known.read_at = time.monotonic()
        with suppress(LeaseholdError):
            client = await backend(request).client(caller(request))
            known.report = await client.report()
    return known.report


async def read_waits(request: Request) -> Mapping[str, tuple[str, str]]:
    """Return reservation id -> (waiting code, sentence), in queue order, as the last tick reported it."""
    waits: Mapping[str, tuple[str, str]] = (await read_tick(request)).get("waiting", {})
    return waits


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
