"""The page Reservations: counts by phase, a list whose search, filters, order and groups are in its address, saved
views, and bulk changes with a preview and an outcome for each item.
"""

from asyncio import gather
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from starlette.applications import Starlette
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from leasehold.client.async_client import AsyncClient
from leasehold.console.page import (
    Outcome,
    Page,
    backend,
    caller,
    change,
    is_foreign,
    read_form,
    read_waits,
    render,
    url,
)
from leasehold.console.reservation_list import (
    COLUMNS,
    COMPLETED,
    GROUPS,
    MOST_SELECTED,
    PHASE_CHOICES,
    ROWS_A_PAGE,
    Listing,
    ReservationFilter,
    ReservationPage,
    SearchTexts,
    complete,
    describe_wish,
    find_span,
    list_page,
    read_filter,
)
from leasehold.web.caller import needs
from leasehold.web.feed import Changed, Feed, FollowedView
from leasehold.web.server_sent import encode_event
from scheduler.model.reservations import is_over
from scheduler.model.transitions import ENDED

TOPIC: Final = "reservations"
MOST_NAMED: Final = 200
"""Maximum number of ids of changed reservations in one update of the stream. If more reservations have changed, the
update contains no ids, and every open page of a reservation loads itself again.
"""
REQUESTS_AT_ONCE: Final = 8
"""The most requests of one bulk change that are sent at the same time."""


@dataclass(frozen=True)
class Bulk:
    """A bulk change as its form describes it: `cancel`, or `priority` with a number."""

    verb: str
    priority: float | None
    ids: tuple[str, ...]

    def describe(self) -> str:
        """Return as text what the bulk change does to each of its reservations."""
        return "cancel" if self.verb == "cancel" else f"set the priority to {self.priority:g}"


def count_phases(view: FollowedView) -> list[tuple[str, int]]:
    """Return (phase, number of its reservations) for each phase that is no end, and last (`ended`, number of the
    reservations that ended lately).
    """
    counts = [(phase, len(rows)) for phase, rows in view.by_phase.items() if phase not in ENDED]
    return [*counts, ("ended", len(view.ended))]


async def show_reservations(request: Request) -> Response:
    """Show the list for the filter in the address. If the request has the header `HX-Target: rows`, show only the rows
    of the list and the counts.
    """
    services = backend(request)
    feed, revision, wanted = services.feed, services.feed.revision, read_filter(request.query_params)
    await feed.refresh()
    listing = await _look(request)
    page = await services.run_plain(_list, feed, wanted, listing)
    is_part = request.headers.get("hx-target") == "rows"
    with feed.lock:
        counts, tags = count_phases(feed.view), [] if is_part else sorted(feed.view.tag_keys)
    answer = render(
        request,
        "reservations_reload.html" if is_part else "reservations.html",
        page="reservations",
        revision=revision,
        found=page,
        wanted=wanted,
        counts=counts,
        phases=PHASE_CHOICES,
        columns=COLUMNS,
        completed=COMPLETED,
        groups=[*GROUPS, *(f"tag:{key}" for key in tags)],
        waits=listing.waits,
        now=listing.now,
        describe_wish=describe_wish,
        find_span=find_span,
        can_cancel=caller(request).may("cancel"),
        most_selected=MOST_SELECTED,
    )
    if is_part:
        # The address of the page has the filter that the rows show, so that it can be sent, saved and loaded again.
        answer.headers["HX-Replace-Url"] = url(request, f"/reservations{wanted.address(after=wanted.after)}")
    return answer


async def _look(request: Request) -> Listing:
    now = (await backend(request).client(caller(request))).now()
    return Listing(await read_waits(request), now, request.app.state.search_texts)


def _list(feed: Feed, wanted: ReservationFilter, listing: Listing, most: int = ROWS_A_PAGE) -> ReservationPage:
    with feed.lock:
        return list_page(feed.view, wanted, listing, most)


async def complete_filter(request: Request) -> Response:
    """Return names that complete what a person types into one filter, as options of its field."""
    name = next((each for each in COMPLETED if each in request.query_params), None)
    if name is None:
        raise HTTPException(404, f"Expected one of the filters {', '.join(COMPLETED)}.")
    feed, waits = backend(request).feed, await read_waits(request)

    def find() -> list[str]:
        with feed.lock:
            return complete(feed.view, waits, name, request.query_params[name])

    return render(request, "reservations_names.html", names=await backend(request).run_plain(find))


@needs("cancel")
async def preview_bulk(request: Request) -> Response:
    """Show what a bulk change would do: the reservations that it would change, and the selected reservations that it
    cannot change.
    """
    bulk, fault = await _read_bulk(request)
    if bulk is None:
        return render(request, "bulk.html", fault=fault, bulk=None)
    feed = backend(request).feed
    await feed.refresh()
    with feed.lock:
        found = [(name, feed.view.reservations.get(name) or feed.view.ended.get(name)) for name in bulk.ids]
    changed, left = [], []
    for name, row in found:
        if row is None:
            left.append((name, "the view does not have it"))
        elif is_over(row):
            left.append((name, "it has ended"))
        elif is_foreign(caller(request), row.principal):
            left.append((name, "another principal has submitted it"))
        else:
            changed.append(row)
    return render(request, "bulk.html", fault=None, bulk=bulk, changed=changed, left=left)


@needs("cancel")
async def carry_out_bulk(request: Request) -> Response:
    """Carry out a bulk change, and show the outcome of each item."""
    bulk, fault = await _read_bulk(request)
    if bulk is None:
        return render(request, "bulk.html", fault=fault, bulk=None)
    outcomes: list[Outcome] = []
    for start in range(0, len(bulk.ids), REQUESTS_AT_ONCE):
        names = bulk.ids[start : start + REQUESTS_AT_ONCE]
        outcomes += await gather(*(change(request, bulk.verb, name, _make_act(bulk, name)) for name in names))
    return render(request, "outcomes.html", outcomes=outcomes, bulk=bulk)


def _make_act(bulk: Bulk, name: str) -> Callable[[AsyncClient], Awaitable[object]]:
    if bulk.verb == "cancel":
        return lambda client: client.cancel(name, reason="cancelled in the console")
    return lambda client: client.priority(name, bulk.priority or 0.0)


async def _read_bulk(request: Request) -> tuple[Bulk | None, str]:
    """Return (the bulk change that a form describes, ""), or (None, the reason why it cannot be carried out)."""
    form = await read_form(request)
    verb = form.get("verb", [""])[0]
    if verb not in {"cancel", "priority"}:
        return None, f"verb: expected cancel or priority, got {verb[:80] or 'nothing'}"
    priority = None
    if verb == "priority":
        text = form.get("priority", [""])[0]
        priority = read_number(text)
        if priority is None:
            return None, f"priority: expected a number that is not negative, got {text[:80] or 'nothing'}"
    ids: Sequence[str] = form.get("id", [])
    if form.get("all"):
        shown = read_filter(QueryParams(form.get("filter", [""])[0]))
        feed, wanted = backend(request).feed, replace(shown, sort="", group="", after=None)
        await feed.refresh()
        page = await backend(request).run_plain(_list, feed, wanted, await _look(request), MOST_SELECTED)
        ids = [row.id for row in page.rows]
        if page.following is not None:
            return None, f"more than {MOST_SELECTED} reservations match: narrow the filter"
    if not ids:
        return None, "no reservation is selected"
    if len(ids) > MOST_SELECTED:
        return None, f"expected at most {MOST_SELECTED} reservations, got {len(ids)}"
    return Bulk(verb, priority, tuple(dict.fromkeys(ids))), ""


def read_number(text: str) -> float | None:
    """Return the number in a text if it is finite and not negative, else None."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < float("inf") else None


def _register_topic(app: Starlette) -> None:
    feed: Feed = app.state.backend.feed

    def encode(changed: Changed) -> bytes | None:
        if not changed.is_reset and not changed.of("reservations"):
            return None
        with feed.lock:
            counts = count_phases(feed.view)
        ids = sorted(changed.of("reservations"))
        is_all = changed.is_reset or len(ids) > MOST_NAMED
        return encode_event(TOPIC, {"counts": dict(counts), "ids": [] if is_all else ids, "all": is_all})

    feed.topic(TOPIC, encode)
    app.state.search_texts = SearchTexts()


PAGE: Final = Page(
    "reservations",
    "Reservations",
    "/reservations",
    20,
    [
        Route("/reservations", show_reservations),
        # Below /reservations it would hide a reservation with this id.
        Route("/reservation-names", complete_filter),
        Route("/reservations/bulk/preview", preview_bulk, methods=["POST"]),
        Route("/reservations/bulk", carry_out_bulk, methods=["POST"]),
    ],
    prepare=_register_topic,
)
