"""The page Fleet: a box for each slot by pool and zone, a table of the same slots, and a panel with one slot."""

from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from leasehold.console.fleet_table import (
    PAGE_ROWS,
    TOPIC,
    Describe,
    FleetDocument,
    LifeReader,
    SlotFilter,
    SlotLife,
    count_fleet,
    describe_box,
    find_cards,
    find_free,
    find_rows,
    find_together,
)
from leasehold.console.history import read_strips
from leasehold.console.page import Page, backend, caller, make_rows, render
from leasehold.errors import LeaseholdError, Unavailable
from leasehold.web.feed import Feed
from scheduler.ports import EventFilter
from scheduler.protocol.visible import make_visible

EVENTS_SHOWN: Final = 40
VERBS: Final = {
    "cordon": "takes no new leases",
    "uncordon": "takes new leases again",
    "drain": "is drained: its machine is terminated when its leases have ended",
}
"""The verb of each change of a slot that the panel offers -> the text that is shown after it was accepted."""


def prepare(app: Starlette) -> None:
    """Before the first request, make the document of the fleet, which each change of the feed brings up to date."""
    app.state.fleet = FleetDocument(app.state.backend.feed)
    app.state.lives = LifeReader()


async def show_fleet(request: Request) -> Response:
    """Show the whole page: the map (a box for each slot), the table of slots that match the filter in the URL, and
    the panel of the slot that the URL names.
    """
    feed = backend(request).feed
    await feed.refresh()
    wanted = SlotFilter.read(request.query_params)
    values, (rows, found) = await backend(request).run_plain(_read_fleet, feed, wanted, await _open_lives(request))
    return render(
        request,
        "fleet.html",
        page="fleet",
        topic=TOPIC,
        chosen=request.query_params.get("slot", ""),
        strips=await read_strips(request),
        **values,
        **_table(wanted, rows, found),
    )


async def show_history(request: Request) -> Response:
    """Show the strips of the last hour, for the pages that update them."""
    return render(request, "history.html", strips=await read_strips(request))


async def _open_lives(request: Request) -> Describe:
    """Return the function that describes the age and the replacement of a slot's machine by the rules in force."""
    reader: LifeReader = request.app.state.lives
    return await reader.open(backend(request))


def _read_fleet(feed: Feed, wanted: SlotFilter, describe: Describe) -> tuple[dict[str, Any], tuple[list[Any], int]]:
    """Return (the figures of the fleet, (the rows of one page of the table, the number of all slots that match)). A
    search takes tens of milliseconds, so it runs in a thread.
    """
    with feed.lock:
        values = {**count_fleet(feed.view), "pools_of_cards": find_cards(feed.view, describe)}
        return values, find_rows(feed.view, wanted, describe)


async def send_slots(request: Request) -> Response:
    """Send the document of all slots. If the browser has the present revision already, the answer is empty (status
    304).
    """
    document: FleetDocument = request.app.state.fleet
    revision, body = await backend(request).run_plain(document.read)
    tag = f'"{request.app.state.started}-{revision}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type="application/json", headers={**headers, "Content-Encoding": "gzip"})


async def show_table(request: Request) -> Response:
    """Show one page of the table: the slots that match the filter in the address."""
    feed = backend(request).feed
    await feed.refresh()
    wanted = SlotFilter.read(request.query_params)
    _, (rows, found) = await backend(request).run_plain(_read_fleet, feed, wanted, await _open_lives(request))
    return render(request, "fleet_table.html", **_table(wanted, rows, found))


async def show_cards(request: Request) -> Response:
    """Show the slots of a small fleet as cards; nothing for a larger one."""
    feed = backend(request).feed
    await feed.refresh()
    describe = await _open_lives(request)
    with feed.lock:
        found = find_cards(feed.view, describe)
    return render(request, "slot_cards.html", pools_of_cards=found)


async def send_together(request: Request) -> Response:
    """Send the slots of a reservation (`reservation`), or those of all reservations on a slot (`slot`) with lines about
    that slot, as JSON.
    """
    feed, query = backend(request).feed, request.query_params
    describe = await _open_lives(request) if "slot" in query else None
    with feed.lock:
        found = find_together(feed.view, reservation=query.get("reservation", ""), slot=query.get("slot", ""))
        slot = feed.view.slots.get(query.get("slot", ""))
        lines = [] if slot is None or describe is None else describe_box(feed.view, slot, describe)
    return JSONResponse({"slots": found, "lines": list(map(make_visible, lines))})


async def show_slot(request: Request) -> Response:
    await backend(request).feed.refresh()
    return await _panel(request, request.path_params["slot"])


async def change_slot(request: Request) -> Response:
    """Cordon, uncordon or drain a slot, and show its panel with the outcome."""
    name, verb = request.path_params["slot"], request.path_params["verb"]
    if verb not in VERBS:
        raise HTTPException(404, f"There is no request {verb[:40]}.")
    sender, services = caller(request), backend(request)
    if refusal := sender.find_refusal(verb):
        return await _panel(request, name, problem=f"Nothing was changed: {refusal}.")
    try:
        client = await services.client(sender)
        answer = await getattr(client, verb)(name)
    except LeaseholdError as error:
        services.log_change(sender, verb, name, error)
        return await _panel(request, name, problem=f"Nothing was changed: {error}")
    services.log_change(sender, verb, name, answer)
    await services.feed.refresh()
    return await _panel(request, name, done=f"{name} {VERBS[verb]}.")


async def _panel(request: Request, name: str, **outcome: str) -> Response:
    services = backend(request)
    with services.feed.lock:
        slot = services.feed.view.slots.get(name)
        leases = [
            (services.feed.view.reservations.get(owner), owner, lease)
            for owner, lease in services.feed.view.leases_of(name)
        ]
    events, lost = [], ""
    try:
        which = EventFilter(slot=name, newest=True, limit=EVENTS_SHOWN)
        events = await services.run(services.store.read_events, which)
    except Unavailable as error:
        lost = str(error)
    if slot is None and not events:
        return render(request, "slot_gone.html", name=name, **_outcome(outcome))
    return render(
        request,
        "slot.html",
        name=name,
        slot=slot,
        machine=SlotLife() if slot is None else (await _open_lives(request))(slot),
        leases=leases,
        free=[] if slot is None else find_free(slot, [lease for *_, lease in leases]),
        life=make_rows(reversed(events)),
        lost=lost,
        refusal=caller(request).find_refusal("cordon"),
        **_outcome(outcome),
    )


def _outcome(given: dict[str, str]) -> dict[str, Any]:
    return {"done": "", "problem": "", **given}


def _table(wanted: SlotFilter, rows: list[Any], found: int) -> dict[str, Any]:
    return {"filter": wanted, "rows": rows, "found": found, "pages_of_table": max(1, -(-found // PAGE_ROWS))}


PAGE: Final = Page(
    "fleet",
    "Fleet",
    "/fleet",
    10,
    [
        Route("/fleet", show_fleet),
        Route("/fleet/slots.json", send_slots),
        Route("/fleet/table", show_table),
        Route("/fleet/history", show_history),
        Route("/fleet/cards", show_cards),
        Route("/fleet/together", send_together),
        Route("/fleet/slot/{slot:path}/{verb}", change_slot, methods=["POST"]),
        Route("/fleet/slot/{slot:path}", show_slot),
    ],
    prepare=prepare,
)
