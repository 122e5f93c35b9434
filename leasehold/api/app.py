"""The ASGI application of the HTTP API. Each request first passes the entrance of the web server
(leasehold/web/entrance.py), which identifies the caller.
"""

from collections.abc import Iterator
from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from leasehold.api.asking import Asking
from leasehold.api.money import Money
from leasehold.api.openapi import make_document
from leasehold.api.reading import Reading
from leasehold.api.routing import ApiRoute, Handler, Router
from leasehold.api.service import Service, respond
from leasehold.api.streams import Streams
from leasehold.web.backend import Backend
from scheduler.protocol.http_routes import LISTS, ROUTES

_OWN_HANDLERS: Final = frozenset({"explain"})
"""Verbs with a handler of their own, because their request can also be answered without a worker."""


def make_api(backend: Backend) -> Router:
    """Return the application for the paths below API (/api/v1). `request.state.caller` must be the caller of each
    request.
    """
    service = Service(backend)
    asking = Asking(service)
    reading, streams = Reading(service, asking), Streams(service)
    return Router([*_make_reads(reading, streams, Money(service)), *_make_verbs(asking)], service.now)


def _make_reads(reading: Reading, streams: Streams, money: Money) -> list[ApiRoute]:
    handlers: dict[str, Handler] = {
        "/reservations": reading.reservations,
        "/reservations/{reservation}": reading.reservation,
        "/reservations/{reservation}/explanation": reading.explanation,
        "/slots": reading.slots,
        "/slots/{slot}": reading.slot,
        "/slots/{slot}/hint": reading.hint,
        "/accounts": reading.accounts,
        "/accounts/{account}": reading.account,
        "/costs": money.costs,
        "/budgets": money.budgets,
        "/offers": money.offers,
        "/report": reading.report,
        "/status": reading.status,
        "/events": streams.events,
        "/stream": streams.stream,
        "/openapi.json": show_document,
    }
    return [
        *(ApiRoute("GET", path, handler) for path, handler in handlers.items()),
        ApiRoute("POST", "/reservations/changes", reading.changes),
        ApiRoute("POST", "/slots/{slot}/heartbeat", reading.heartbeat),
    ]


def _make_verbs(asking: Asking) -> Iterator[ApiRoute]:
    """Yield the routes of all verbs. A resource that takes one request as well as a list of requests, such as the
    submissions, gets one route.
    """
    for table in (LISTS, ROUTES):
        for verb, route in table.items():
            if verb not in _OWN_HANDLERS and not (table is ROUTES and LISTS.get(verb) == route):
                yield ApiRoute(route.method, route.path, partial(asking.ask, verb, route))


async def show_document(request: Request) -> Response:
    """Respond with the OpenAPI document of this API."""
    return respond(make_document(request.scope.get("root_path", "")))
