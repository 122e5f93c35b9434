"""The page Fleet: a box for each slot by pool and zone, a table of the same slots, and a panel with one slot.

The boxes are drawn from the fleet as compact JSON: a document with every slot, and deltas with the slots that changed.
In the JSON, each name of a pool, zone, state or account is replaced by its position in a table of names. The table only
grows while this process runs, so a number keeps its meaning. The row of a slot is `[id, pool, zone, state, flags,
account, share, account, share, ...]`: `flags` is a sum of CORDONED, INTERRUPTED and OVERFULL, and each lease on the
slot has the account of its reservation and the share of the slot that it fills (`find_share`).
"""

import gzip
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final, Self
from urllib.parse import urlencode

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from leasehold.console.history import read_strips
from leasehold.console.page import Page, backend, caller, format_span, make_rows, render
from leasehold.errors import LeaseholdError, Unavailable
from leasehold.texts.values import format_amount
from leasehold.web.backend import Backend, may_be_carried_out
from leasehold.web.feed import Changed, Feed, FollowedView
from leasehold.web.server_sent import encode_event
from scheduler.model import history
from scheduler.model.costs import find_present_price
from scheduler.model.lives import find_drift, find_end_of_life
from scheduler.model.pools import Pool
from scheduler.model.reservations import Lease
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot, find_requested_image
from scheduler.model.transitions import SLOT_STATES, WITH_MACHINE
from scheduler.model.view import View
from scheduler.ports import EventFilter, RulesVersion, Store
from scheduler.protocol.visible import escape_json_bytes, make_visible

PARTS: Final = {
    "template": "launch template",
    "image": "image",
    "user_data": "user data",
    "network": "subnets or groups",
    "machine": "profile, key or volume",
    "tags": "tags",
}
"""Part of the settings from which a machine is launched -> its name for people."""


@dataclass(frozen=True)
class SlotLife:
    """What the page Fleet shows about the age and the replacement of one machine. `age`: seconds since its launch;
    None: the slot has no machine.
    """

    age: float | None = None
    image: str = ""
    """The id of the image; "": it is not known."""
    drift: tuple[str, ...] = ()
    """The parts of its settings (values of PARTS) in which the machine differs from what its pool launches now."""
    due: str = ""
    """Why the machine is to be replaced; "": it is not."""
    ends_at: float | None = None
    """Cluster time in seconds at which the machine will be too old for its pool; None: never, or it is to be replaced
    already.
    """


Describe = Callable[[Slot], SlotLife]


def describe_life(slot: Slot, pool: Pool | None, now: float) -> SlotLife:
    """Return what the page Fleet shows about the age and the replacement of a slot's machine. `now`: cluster time.
    `pool`: the pool of the slot in the rules in force; None: the rules have no such pool or are not known.
    """
    if slot.launched_at is None or slot.instance_id is None:
        return SlotLife()
    age = max(0.0, now - slot.launched_at)
    if pool is None or not pool.is_elastic:
        return SlotLife(age, find_image(slot, None))
    rules, drift = pool.replacement, find_drift(slot, pool.launch_digest)
    end = find_end_of_life(slot, rules) if rules.max_age else float("inf")
    reasons = ["it has drifted"] if drift and rules.drift == "replace" else []
    reasons += ["it is too old"] if end <= now else []
    return SlotLife(
        age=age,
        image=find_image(slot, pool),
        drift=tuple(PARTS.get(each, each) for each in drift),
        due=" and ".join(reasons),
        ends_at=end if isfinite(end) and not reasons else None,
    )


def find_image(slot: Slot, pool: Pool | None) -> str:
    """Return the image of a slot's machine: the image in its launch request, else the image of its pool if the machine
    was launched from the same image settings. Return "" if the image is not known.
    """
    image = find_requested_image(slot.launch_request)
    if image is None and pool is not None and slot.launch_digest is not None:
        image = None if "image" in find_drift(slot, pool.launch_digest) else pool.ec2.image
    return image or ""


class LifeReader:
    """Makes functions that describe the age and the replacement of machines by the rules in force. The rules are read
    again when their version changes.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._known: tuple[RulesVersion, Rules] | None = None

    async def open(self, backend: Backend) -> Describe:
        """Return a function that calls `describe_life` for a slot with its pool in the rules in force. While the
        database does not answer, the function uses the rules that were read last.
        """
        try:
            now = await backend.run(self._follow, backend.store)
        except Unavailable:
            now = time.time()
        pools = {} if self._known is None else self._known[1].pools
        return lambda slot: describe_life(slot, pools.get(slot.pool), now)

    def _follow(self, store: Store) -> float:
        with self._guard:
            version = store.rules_versions()
            if self._known is None or self._known[0] != version:
                self._known = version, store.load_rules().rules
        return store.now()


PAGE_ROWS: Final = 50
USES: Final = ("machine", "leased", "free")
"""Filters by use: slots with a running machine, with leases, and with a running machine without leases."""
MOST_CARDS: Final = 40
"""A fleet of at most this number of slots is shown as cards."""
_MOST_TEXT: Final = 200
_MOST_PAGE: Final = 1_000_000


@dataclass(frozen=True)
class SlotFilter:
    """Which slots the table shows; an empty text matches every slot. `use`: one of USES. `text`: a part of the id of a
    slot, of its address, of the id of its machine, or of the id of a reservation on it. `page`: the number of the page,
    from 1. `fault`: a sentence for people about the part of the address that was ignored; "" if all was used.
    """

    pool: str = ""
    zone: str = ""
    state: str = ""
    account: str = ""
    use: str = ""
    text: str = ""
    page: int = 1
    fault: str = ""

    @classmethod
    def read(cls, query: Mapping[str, str]) -> Self:
        """Return the filter that the query of an address describes. A wrong value is ignored, and `fault` names it."""
        texts = {name: query.get(name, "")[:_MOST_TEXT] for name in ("pool", "zone", "state", "account", "use")}
        given, fault = query.get("page", "") or "1", ""
        is_number = given.isascii() and given.isdigit() and len(given) <= len(str(_MOST_PAGE))
        if not is_number or not 1 <= int(given) <= _MOST_PAGE:
            given, fault = "1", f"page: expected a number from 1, got {query['page'][:40]!r}"
        if texts["state"] and texts["state"] not in SLOT_STATES:
            fault = f"state: expected one of {', '.join(SLOT_STATES)}, got {texts['state']!r}"
            texts["state"] = ""
        if texts["use"] and texts["use"] not in USES:
            fault = f"use: expected one of {', '.join(USES)}, got {texts['use']!r}"
            texts["use"] = ""
        return cls(**texts, text=query.get("text", "")[:_MOST_TEXT], page=int(given), fault=fault)

    @property
    def is_narrow(self) -> bool:
        return bool(self.pool or self.zone or self.state or self.account or self.use or self.text)

    def query(self, page: int) -> str:
        names = ("pool", "zone", "state", "account", "use", "text")
        values = {name: getattr(self, name) for name in names}
        return urlencode({**{name: value for name, value in values.items() if value}, "page": page})


def find_rows(view: View, wanted: SlotFilter, describe: Describe) -> tuple[list[dict[str, Any]], int]:
    """Return the rows of one page of the table, and the number of all slots that match. Slots are sorted by pool and
    number. If the number of the page is too large, the rows of the last page are returned. `describe` returns what the
    table shows about the age of a slot's machine.
    """
    ordered = (slot for pool in sorted(view.pools) for slot in view.pools[pool].list())
    found = [slot for slot in ordered if _matches(view, slot, wanted)] if wanted.is_narrow else list(ordered)
    last = max(1, -(-len(found) // PAGE_ROWS))
    first = (min(wanted.page, last) - 1) * PAGE_ROWS
    return [_describe(view, slot, describe) for slot in found[first : first + PAGE_ROWS]], len(found)


def find_cards(view: View, describe: Describe) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return the cards of the slots by pool; [] for a fleet that is too large for cards."""
    if len(view.slots) > MOST_CARDS:
        return []
    return [
        (pool, [_make_card(view, slot, describe) for slot in view.pools[pool].list()]) for pool in sorted(view.pools)
    ]


def _make_card(view: View, slot: Slot, describe: Describe) -> dict[str, Any]:
    free = find_free(slot, [lease for _, lease in view.leases_of(slot.id)])
    return {**_describe(view, slot, describe), "free": free, "runs": slot.state in WITH_MACHINE}


def find_free(slot: Slot, leases: Sequence[Lease]) -> list[tuple[str, float, float]]:
    """Return for each resource of a slot (its name, the free amount, the total amount), sorted by name."""
    total = slot.resources or {}
    used = {name: sum(lease.resources.get(name, 0.0) for lease in leases) for name in total}
    return [(name, max(0.0, total[name] - used[name]), total[name]) for name in sorted(total)]


def find_together(view: View, *, reservation: str = "", slot: str = "") -> list[str]:
    """Return the ids of all slots with leases of this reservation, or of the reservations with leases on this slot."""
    rows = map(view.reservations.get, [reservation] if reservation else {owner for owner, _ in view.leases_of(slot)})
    return sorted({lease.slot for row in rows if row is not None for lease in row.leases})


def describe_box(view: View, slot: Slot, describe: Describe) -> list[str]:
    """Return lines about a slot for the tooltip of its box: machine and age, the use of each resource, and holders."""
    age, owners = describe(slot).age, _owners(view, slot)
    machine = " ".join(filter(None, [slot.instance_type or slot.machine, slot.market, slot.zone]))
    free = find_free(slot, [lease for _, lease in view.leases_of(slot.id)])
    return [
        *([machine + (f", {format_span(age)} old" if age is not None else "")] if machine else []),
        *(f"{name}: {format_amount(total - left)} of {format_amount(total)}" for name, left, total in free),
        *([", ".join(owners[:4]) + (f" and {len(owners) - 4} more" if len(owners) > 4 else "")] if owners else []),  # noqa: PLR2004 - as many as a card
    ]


def _matches(view: View, slot: Slot, wanted: SlotFilter) -> bool:
    if wanted.pool not in {"", slot.pool} or wanted.zone not in {"", slot.zone or ""}:
        return False
    if wanted.state not in {"", slot.state}:
        return False
    if wanted.use and not _is_used(view, slot, wanted.use):
        return False
    if wanted.account and wanted.account not in _accounts(view, slot):
        return False
    texts = (slot.id, slot.address or "", slot.instance_id or "")
    return not wanted.text or any(wanted.text in text for text in (*texts, *_owners(view, slot)))


def _is_used(view: View, slot: Slot, use: str) -> bool:
    has_leases = slot.id in view.leases_on
    if use == "leased":
        return has_leases
    return slot.state in WITH_MACHINE and (use == "machine" or not has_leases)


def _owners(view: View, slot: Slot) -> list[str]:
    return [owner for owner, _ in view.leases_of(slot.id)]


def _accounts(view: View, slot: Slot) -> list[str]:
    rows = (view.reservations.get(owner) for owner in _owners(view, slot))
    return sorted({row.request.account or "" for row in rows if row is not None} - {""})


def _describe(view: View, slot: Slot, describe: Describe) -> dict[str, Any]:
    machine = describe(slot)
    return {"slot": slot, "owners": _owners(view, slot), "accounts": _accounts(view, slot), "machine": machine}


def count_fleet(view: View) -> dict[str, Any]:
    """Return the figures that the page shows above its map of slots, and the values that each field of the filter
    offers.
    """
    states = Counter(slot.state for slot in view.slots.values())
    return {
        "states": [(state, states[state]) for state in SLOT_STATES if states[state]],
        "slots": len(view.slots),
        "machines": sum(states[state] for state in WITH_MACHINE),
        "leased": len(view.leases_on),
        "pending": len(view.by_phase["pending"]),
        "price": sum(map(find_present_price, view.slots.values())),
        "pools": sorted(view.pools),
        "zones": sorted({slot.zone for slot in view.slots.values() if slot.zone}),
        "accounts": sorted(view.accounts),
        "all_states": SLOT_STATES,
        "all_uses": USES,
    }


TOPIC: Final = "fleet"
CORDONED, INTERRUPTED, OVERFULL = 1, 2, 4
REVOKING, CLAIMED = 1000, 2000
"""The number that a slot's row has for a lease is its share of the slot in percent (1 to 100). One of these numbers is
added if the lease is revoking or claimed, so that the page can read the state from the same number: 1050 is a revoking
lease with 50 %.
"""
MOST_SHOWN: Final = 12
"""The most leases that the row of a slot contains, because a box of the page cannot show more parts. If a slot has more
leases, the flag OVERFULL is set in its row.
"""
_ENCODER: Final = msgspec.json.Encoder()


class FleetDocument:
    """Makes the document and the deltas from the view of a feed. Safe for threads.

    A row is encoded again only if its slot changed, and the document is compressed once for each revision.
    """

    def __init__(self, feed: Feed) -> None:
        self._feed, self._guard, self._packing = feed, threading.Lock(), threading.Lock()
        self._names: dict[str, int] = {}
        self._rows: dict[str, msgspec.Raw] = {}
        self._stale: set[str] | None = None
        """Ids of slots whose row must be encoded again; None: all."""
        self._sent_names = 0
        self._kept: tuple[int, bytes] = (-1, b"")
        feed.watch(self._note)
        feed.topic(TOPIC, self.encode)

    def read(self) -> tuple[int, bytes]:
        """Return the revision of the view and the document of all slots, compressed by gzip."""
        with self._packing:
            with self._guard, self._feed.lock:
                revision = self._feed.revision
                if revision == self._kept[0]:
                    return self._kept
                self._refresh(self._feed.view)
                body = {"revision": revision, "names": list(self._names), "slots": list(self._rows.values())}
            # The feed needs the other locks, and compressing takes tens of milliseconds.
            self._kept = revision, gzip.compress(escape_json_bytes(_ENCODER.encode(body)), 4, mtime=0)
            return self._kept

    def encode(self, changed: Changed) -> bytes | None:
        """Return the server-sent event with the changed slots, or None if no slot changed. If the whole view was read
        again, the event has no slots, and a page loads the document.
        """
        if changed.is_reset:
            return encode_event(TOPIC, {"revision": changed.revision, "reset": True})
        ids = changed.of("slots")
        if not ids:
            return None
        with self._guard:
            with self._feed.lock:
                self._refresh(self._feed.view)
            names, begin = list(self._names), self._sent_names
            self._sent_names = len(names)
            document = {
                "since": changed.since,
                "revision": changed.revision,
                "first_name": begin,
                "names": names[begin:],
                "slots": [self._rows[name] for name in ids if name in self._rows],
                "gone": [name for name in ids if name not in self._rows],
            }
        return encode_event(TOPIC, document)

    def _note(self, changed: Changed) -> None:
        with self._guard:
            if changed.is_reset:
                self._stale = None
            elif self._stale is not None:
                self._stale |= changed.of("slots")

    def _refresh(self, view: FollowedView) -> None:
        if self._stale is None:
            self._rows = {}
        for name in view.slots if self._stale is None else self._stale:
            slot = view.slots.get(name)
            if slot is None:
                self._rows.pop(name, None)
            else:
                leases = view.leases_of(slot.id)
                flags = CORDONED * slot.cordoned | INTERRUPTED * (slot.interrupted_by is not None)
                flags |= OVERFULL * (len(leases) > MOST_SHOWN)
                row: list[Any] = [slot.id, *map(self._number, (slot.pool, slot.zone or "", slot.state)), flags]
                for owner, lease in leases[:MOST_SHOWN]:
                    reservation = view.reservations.get(owner)
                    account = reservation.request.account if reservation is not None else None
                    row += [self._number(account or ""), find_share(slot, lease, len(leases))]
                self._rows[name] = msgspec.Raw(_ENCODER.encode(row))
        self._stale = set()

    def _number(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))


def find_share(slot: Slot, lease: Lease, count: int) -> int:
    """Return the share of the slot that a lease fills, in percent (at least 1), see `scheduler.model.history`. For a
    lease that is being revoked or claimed, the number REVOKING or CLAIMED is added to the percentage.
    """
    share = history.find_share(slot, lease, count)
    extra = {"held": 0, "revoking": REVOKING, "claimed": CLAIMED}[lease.state]
    return max(1, min(100, round(100 * share))) + extra


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
        known = "It is not known whether this was done" if may_be_carried_out(error) else "Nothing was changed"
        return await _panel(request, name, problem=f"{known}: {error}")
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
        which = EventFilter(slot=name, newest=True, limit=40)
        events = await services.run(services.store.read_events, which)
    except Unavailable as error:
        lost = str(error)
    shown: dict[str, Any] = {"done": "", "problem": "", **outcome}
    if slot is None and not events:
        return render(request, "slot_gone.html", name=name, **shown)
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
        **shown,
    )


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
