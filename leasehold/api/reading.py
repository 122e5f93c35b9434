"""Reads over HTTP: reservations, slots, accounts, the report of the last tick, the status of the server, and, from the
database, costs, budgets and offers. Streams of server-sent events: the events of the history, and the changed rows of
the view.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final, cast

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

import leasehold
from leasehold.api.asking import Asking
from leasehold.api.lists import (
    ReservationFilter,
    RunTimesFilter,
    SlotFilter,
    Submissions,
    join_row,
    list_reservations,
    list_run_times,
    list_slots,
    write_account,
    write_joined,
    write_slot,
)
from leasehold.api.service import MOST_NUMBER, Query, Service, make_cursor, make_page, read_body, read_text, respond
from leasehold.client.async_client import AsyncClient
from leasehold.client.core.hosts import AsyncHints
from leasehold.client.marks import mark_row
from leasehold.client.models import LeaseKey
from leasehold.client.ports import Joined
from leasehold.errors import Fault, Refused, Unknown
from leasehold.web.caller import find_caller
from leasehold.web.feed import Changed, Feed, FollowedView
from leasehold.web.money import CostReport, read_offers, report_budgets, report_costs
from leasehold.web.problems import describe_refusal
from leasehold.web.problems import respond as respond_problem
from leasehold.web.server_sent import EventStream, encode_event, write_event
from scheduler.model.costs import HOUR
from scheduler.model.events import EVENT_NAMES
from scheduler.model.faults import fault
from scheduler.operations.costs import WAYS, By
from scheduler.ports import EventFilter, Store
from scheduler.protocol.faults import describe_unknown
from scheduler.protocol.http_routes import LONGEST_WAIT_SECONDS, MOST_IDS, MOST_MARKS, STREAM_TYPE

MOST_ROWS: Final = 2000
"""The most changed rows in one update. If more rows have changed, the update has no rows and only reports that a client
must read its lists again.
"""
ROWS: Final = "rows"
"""Topic with the changed rows of the view."""


class Streams:
    """The handlers of events and streams."""

    def __init__(self, service: Service) -> None:
        self._service, self._tail = service, service.backend.events
        feed = service.backend.feed
        feed.topic(ROWS, lambda changed: encode_rows(feed, changed))

    async def events(self, request: Request) -> Response:
        """Respond with one page of events, or with a stream of them if the caller accepts `text/event-stream`."""
        query = Query(request)
        after, cursor = query.take_number("after"), query.take_cursor(int)
        which = EventFilter(
            after=after if cursor is None else cursor[0],
            reservation=query.take("reservation"),
            slot=query.take("slot"),
            name=query.take_choice("name", EVENT_NAMES, "") or None,
            newest=query.take_flag("newest"),
            limit=query.take_limit(),
        )
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
        query = Query(request)
        topics = query.take_choices("topic", self._service.backend.feed.topics) or {ROWS}
        query.end()
        await self._service.open_client(request)
        return self._stream(request, self._service.backend.feed.subscribe(*sorted(topics)))

    def _stream(self, request: Request, blocks: AsyncIterator[bytes]) -> Response:
        return EventStream(blocks, self._service.backend.streams, find_caller(request).name)

    async def _stream_events(self, request: Request, which: EventFilter) -> Response:
        resumed = request.headers.get("last-event-id")
        after = which.after
        if resumed is not None:
            is_number = resumed.isascii() and resumed.isdigit() and len(resumed) <= len(str(MOST_NUMBER))
            if not is_number or int(resumed) > MOST_NUMBER:
                raise fault("Last-Event-ID", "the number of an event", resumed)
            after = int(resumed)
        elif which.newest:
            backend = self._service.backend
            newest = await backend.run(backend.store.read_events, EventFilter(newest=True, limit=1))
            after = newest[-1].number if newest else 0
        return self._stream(request, self._tail.follow(msgspec.structs.replace(which, after=after, newest=False)))


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


POLL_SECONDS: Final = 2.0
"""Seconds after which a reservation that a request waits for is read again if no notice of its change arrives."""
MACHINE_SECONDS: Final = 0.2
"""The value in place of POLL_SECONDS while the machine of a lease is unknown, because no notice arrives when the
machine becomes known.
"""


class Reading:
    """The handlers of reads."""

    def __init__(self, service: Service, asking: Asking) -> None:
        self._service, self._asking = service, asking
        self._hints, self._order = KeptHints(), Submissions()
        service.backend.feed.watch(self._order.note)

    async def reservation(self, request: Request) -> Response:
        """Respond with one reservation. With the parameters `after` and `wait`, respond as soon as the mark of the
        reservation (a text that differs after each change) is not `after`, at the latest after `wait` seconds.
        """
        query = Query(request)
        after, wait = query.take("after"), query.take_seconds("wait", 0.0)
        query.end()
        name = request.path_params["reservation"]
        client = await self._service.open_client(request)
        found = (
            await client.watch(name).read_joined()
            if after is None or not wait
            else await _await_change(client, request, name, after, wait)
        )
        if found.row is None:
            known = describe_unknown("reservation", name)
            raise Unknown(f"{known}; POST /reservations/query also finds one that ended long ago")
        return respond(write_joined(found))

    async def changes(self, request: Request) -> Response:
        """Respond as soon as one of some reservations has changed, at the latest after `wait` seconds. The table
        `marks` in the body has the last known mark of each reservation (a text that differs after each change) by its
        id. The response has the new marks of the changed reservations.
        """
        Query(request).end()
        body = await read_body(request)
        marks, wait = body.pop("marks", None), body.pop("wait", 0)
        if body:
            raise fault(next(iter(body)), "a known key: marks or wait", "this one")
        if not isinstance(marks, dict) or not 0 < len(marks) <= MOST_MARKS:
            raise fault("marks", f"a table of 1 to {MOST_MARKS} marks, each under the id of its reservation", marks)
        if isinstance(wait, bool) or not isinstance(wait, int | float) or not 0 <= wait <= LONGEST_WAIT_SECONDS:
            raise fault("wait", f"a number from 0 to {LONGEST_WAIT_SECONDS:g}", wait)
        client = await self._service.open_client(request)
        until = time.monotonic() + wait
        async with client.watch_many(marks) as watches:
            while True:
                found = await watches.read_joined()
                changed = {name: mark for name, each in found.items() if (mark := mark_row(each)) != marks[name]}
                left = until - time.monotonic()
                if changed or left <= 0 or await request.is_disconnected():
                    return respond({"marks": changed})
                await watches.wait_for_hint(min(left, _pause(found.values())))

    async def reservations(self, request: Request) -> Response:
        """Respond with one page of reservations, or with the reservations whose ids are in the query."""
        query = Query(request)
        if ids := query.take_all("id"):
            query.end()
            return await self._find_reservations(request, ids)
        wanted = ReservationFilter(query)
        feed = self._service.backend.feed
        client = await self._service.open_client(request)
        page = await self._list(lambda view: list_reservations(view, view.ended, self._order, wanted))
        if not page["items"] and page["next"] is None and wanted.after < 0:
            if wanted.slot is not None and wanted.slot not in feed.view.slots:
                raise Unknown(describe_unknown("slot", wanted.slot))
            await client.check_names(pool=wanted.pool, system=wanted.system)
        return respond(page)

    async def explanation(self, request: Request) -> Response:
        """Respond with the reason why a reservation waits: from a worker, with the smallest change that would end the
        wait, or from the last tick (`source=view`).
        """
        query = Query(request)
        source = query.take_choices("source", {"view", "worker"})
        timeout = query.take_seconds("timeout", LONGEST_WAIT_SECONDS)
        query.end()
        name = request.path_params["reservation"]
        if source is not None and "view" in source:
            client = await self._service.open_client(request)
            found = await client.explain(name)
            waiting = None if found.code is None else {"code": found.code, "detail": found.detail}
            return respond(
                {
                    "ok": True,
                    "reservation": found.reservation,
                    "phase": found.phase,
                    "reason": found.reason,
                    "as_of": found.as_of,
                    "waiting": waiting,
                    "position": found.position,
                    "of": found.waiting,
                    "eta": found.eta,
                    "ended": found.ended,
                }
            )
        answer = await self._asking.send(request, "explain", {"reservation": name}, timeout)
        return respond(answer) if answer.get("ok") else respond_problem(describe_refusal(answer.get("errors", [])))

    async def slots(self, request: Request) -> Response:
        wanted = SlotFilter(Query(request))
        client = await self._service.open_client(request)
        page = await self._list(lambda view: list_slots(view, wanted))
        if not page["items"] and wanted.after is None:
            await client.check_names(pool=wanted.pool)
        return respond(page)

    async def slot(self, request: Request) -> Response:
        Query(request).end()
        name = request.path_params["slot"]
        client = await self._service.open_client(request)
        found = await client.slot(name)
        if found is None:
            raise Unknown(describe_unknown("slot", name))
        return respond(write_slot(found))

    async def heartbeat(self, request: Request) -> Response:
        """Store a heartbeat (message that a host is online), which the host of this slot has sent as the HTTP
        request.
        """
        name = _find_own_slot(request)
        body = await read_body(request)
        machine, version = read_text("machine", body.pop("machine", None)), body.pop("version", None)
        run = body.pop("run", None)
        if body:
            raise fault(next(iter(body)), "a known key: machine, version or run", "this one")
        client = await self._service.open_client(request)
        texts = [None if each is None else read_text(key, each) for key, each in (("version", version), ("run", run))]
        await client.hosts.heartbeat(name, machine, *texts)
        return respond({"ok": True})

    async def hint(self, request: Request) -> Response:
        """Wait for a hint that the slot in the path of the request has changed, at most `wait` seconds. Then respond
        with `changed`, which is true if a hint has arrived, and `commands`, the leases whose commands are new by it.
        """
        name, query = _find_own_slot(request), Query(request)
        wait = query.take_seconds("wait", LONGEST_WAIT_SECONDS)
        query.end()
        client = await self._service.open_client(request)
        commands = await self._hints.wait(client, name, wait)
        return respond({"changed": commands is not None, "commands": [each._asdict() for each in commands or ()]})

    async def accounts(self, request: Request) -> Response:
        query = Query(request)
        query.take_limit()
        query.end()
        client = await self._service.open_client(request)
        return respond(make_page([write_account(each) for each in await client.accounts()], None))

    async def account(self, request: Request) -> Response:
        Query(request).end()
        name = request.path_params["account"]
        client = await self._service.open_client(request)
        for each in await client.accounts():
            if each.id == name:
                return respond(write_account(each))
        raise Unknown(describe_unknown("account", name))

    async def run_times(self, request: Request) -> Response:
        wanted = RunTimesFilter(Query(request))
        await self._service.open_client(request)
        return respond(await self._list(lambda view: list_run_times(view, wanted)))

    async def forecasts(self, request: Request) -> Response:
        """Respond with how well forecasts of starts were kept, and with those of the reservations that the query
        names.
        """
        query = Query(request)
        ids = query.take_all("id")
        query.end()
        if len(ids) > MOST_IDS:
            raise fault("id", f"at most {MOST_IDS} ids", len(ids))
        client = await self._service.open_client(request)
        return respond({**await client.foresight(), "etas": await client.etas(ids) if ids else {}})

    async def report(self, request: Request) -> Response:
        """Respond with the report of the last tick."""
        Query(request).end()
        client = await self._service.open_client(request)
        return respond(await client.report())

    async def status(self, request: Request) -> Response:
        """Respond with the state of the server and its connections, and with the caller as the server knows it."""
        Query(request).end()
        caller, feed = find_caller(request), self._service.backend.feed
        await asyncio.gather(self._service.open_client(request), feed.refresh())
        status = feed.status
        return respond(
            {
                "version": leasehold.__version__,
                "time": self._service.now(),
                "revision": feed.revision,
                "view": "valid" if status.is_valid and status.redis_lost_since is None else "not valid",
                "redis": "reached" if status.redis_lost_since is None else "lost",
                "database": "reached" if status.database_lost_since is None else "lost",
                "caller": {"name": caller.name, "role": caller.role, "principal": caller.principal},
                "phases": await run_in_threadpool(
                    self._read, lambda view: {phase: len(rows) for phase, rows in view.by_phase.items() if rows}
                ),
            }
        )

    async def _find_reservations(self, request: Request, ids: list[str]) -> Response:
        if len(ids) > MOST_IDS:
            raise fault("id", f"at most {MOST_IDS} ids", len(ids))
        client = await self._service.open_client(request)
        found = await client.watch_many(ids).read_joined()
        return respond(make_page([write_joined(each) for each in found.values() if each.row is not None], None))

    async def _list(self, read: Callable[[FollowedView], Mapping[str, Any]]) -> Mapping[str, Any]:
        """Return what `read` makes of the present view, in a thread."""
        await self._service.backend.feed.refresh()
        self._service.check_view()
        return await run_in_threadpool(self._read, read)

    def _read(self, read: Callable[[FollowedView], Mapping[str, Any]]) -> Mapping[str, Any]:
        with self._service.backend.feed.view.reading() as view:
            return read(view)


async def _await_change(client: AsyncClient, request: Request, name: str, after: str, wait: float) -> Joined:
    until = time.monotonic() + wait
    async with client.watch(name) as watch:
        while True:
            found = await watch.read_joined()
            left = until - time.monotonic()
            if mark_row(found) != after or left <= 0 or await request.is_disconnected():
                return found
            await watch.wait_for_hint(min(left, _pause([found])))


def _find_own_slot(request: Request) -> str:
    """Return the slot in the path of a request. Raise Refused if the caller is the host of another slot."""
    caller, name = find_caller(request), str(request.path_params["slot"])
    if caller.role == "host" and caller.principal != name:
        raise Refused([Fault(0, "slot", f"{caller.name}, the slot of this principal", f'"{name}"', "forbidden")])
    return name


def _pause(found: Any) -> float:
    return MACHINE_SECONDS if any(each.missing for each in found) else POLL_SECONDS


USUAL_HOURS: Final = 24


class Money:
    """The handlers of reads about money. A caller needs the right to read the rules, because the rules contain prices
    and budgets.
    """

    def __init__(self, service: Service) -> None:
        self._service = service

    async def costs(self, request: Request) -> Response:
        """Respond with the sums of the cost ledger for the last hours: the parameter `hours`, or USUAL_HOURS."""
        query = Query(request)
        by = cast("By", query.take_choice("by", WAYS, "pool"))
        hours = query.take_number("hours", USUAL_HOURS)
        query.end()
        await self._service.open_client(request)
        backend = self._service.backend
        return respond(await backend.run(_read_costs, backend.store, by, hours * HOUR))

    async def budgets(self, request: Request) -> Response:
        """Respond with all budgets, and what was spent of each."""
        Query(request).end()
        await self._service.open_client(request)
        store = self._service.backend.store
        return respond(make_page(await self._service.backend.run(_read_budgets, store), None))

    async def offers(self, request: Request) -> Response:
        """Respond with the offers (what launches would buy) of one pool or of all pools."""
        query = Query(request)
        pool = query.take("pool")
        query.end()
        await self._service.open_client(request)
        backend = self._service.backend
        pools = [] if pool is None else [pool]
        return respond(make_page(await backend.run(read_offers, backend.store, backend.settings.market, pools), None))


def _read_costs(store: Store, by: By, seconds: float) -> CostReport:
    since = store.now() - seconds
    return report_costs(store.read_costs(since), by, since)


def _read_budgets(store: Store) -> list[object]:
    return [*report_budgets(store, store.find_slots())]


KEPT_SECONDS: Final = 60.0
"""Seconds after its last use for which a subscription is kept."""
_Key = tuple[AsyncClient, str]


class KeptHints:
    """The subscriptions to hints of all hosts that wait for them. A hint is a short message that a slot has changed.

    An object of this class may be used by one event loop only.
    """

    def __init__(self) -> None:
        self._kept: dict[_Key, AsyncHints] = {}
        self._used_at: dict[_Key, float] = {}

    async def wait(self, client: AsyncClient, slot: str, seconds: float) -> Sequence[LeaseKey] | None:
        """Return the leases that the newest hint for this slot names, if one has arrived since the last call or arrives
        within `seconds`; else None. A new subscription begins with a hint, because earlier ones may have been missed.
        """
        await self._drop_old()
        key = (client, slot)
        self._used_at[key] = time.monotonic() + seconds
        if key not in self._kept:
            self._kept[key] = client.hosts.hints(slot)
            await self._kept[key].listen()
            return ()
        hints = self._kept[key]
        return hints.commands if await hints.wait(seconds) else None

    async def _drop_old(self) -> None:
        now = time.monotonic()
        for key in [key for key, used_at in self._used_at.items() if now - used_at > KEPT_SECONDS]:
            del self._used_at[key]
            await self._kept.pop(key).close()
