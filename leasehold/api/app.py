"""The ASGI application of the HTTP API. It stands behind the entrance of the web server, which knows the caller of each
request.
"""

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final
from urllib.parse import quote, unquote

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from leasehold.api.asking import Asking
from leasehold.api.openapi import make_document
from leasehold.api.reading import Reading
from leasehold.api.service import MediaTypeError, Service, respond
from leasehold.api.streams import Streams
from leasehold.common.http_routes import LISTS, ROUTES, TIME_HEADER
from leasehold.errors import Fault, LeaseholdError, Refused
from leasehold.web.backend import Backend
from leasehold.web.problems import describe_error, make_problem
from leasehold.web.problems import respond as respond_problem
from scheduler.model.faults import InvalidInputError

_OWN_HANDLERS: Final = frozenset({"explain"})
"""Verbs whose resource also has another source than a worker."""
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


def make_api(backend: Backend) -> ASGIApp:
    """Return the application, to be mounted at /api/v1. `request.state.caller` must be the caller of each request."""
    service = Service(backend)
    asking = Asking(service)
    reading, streams = Reading(service, asking), Streams(service)
    app = Starlette(
        routes=[*_make_reads(reading, streams), *_make_verbs(asking)],
        exception_handlers={
            LeaseholdError: _explain_error,
            InvalidInputError: _explain_input,
            MediaTypeError: _explain_media_type,
            HTTPException: _explain_status,
            Exception: _explain_failure,
        },
    )
    return _Outside(app, service)


def _make_reads(reading: Reading, streams: Streams) -> list[Route]:
    handlers: dict[str, Handler] = {
        "/reservations": reading.reservations,
        "/reservations/{reservation}": reading.reservation,
        "/reservations/{reservation}/explanation": reading.explanation,
        "/slots": reading.slots,
        "/slots/{slot}": reading.slot,
        "/slots/{slot}/hint": reading.hint,
        "/accounts": reading.accounts,
        "/accounts/{account}": reading.account,
        "/report": reading.report,
        "/status": reading.status,
        "/events": streams.events,
        "/stream": streams.stream,
        "/openapi.json": show_document,
    }
    return [
        *(Route(path, _decoding(handler), methods=["GET"]) for path, handler in handlers.items()),
        Route("/reservations/changes", _decoding(reading.changes), methods=["POST"]),
        Route("/slots/{slot}/heartbeat", _decoding(reading.heartbeat), methods=["POST"]),
    ]


def _make_verbs(asking: Asking) -> list[Route]:
    """Return the routes of all verbs. Lists come first: their paths have fewer segments."""
    tables = (LISTS, ROUTES)
    return [
        Route(route.path, _decoding(partial(asking.ask, verb, route)), methods=[route.method])
        for table in tables
        for verb, route in table.items()
        if verb not in _OWN_HANDLERS and not (table is ROUTES and LISTS.get(verb) == route)
    ]


def _decoding(handler: Handler) -> Handler:
    """Return the handler, which gets the fields of the path decoded. See _Outside."""

    async def handle(request: Request) -> Response:
        request.scope["path_params"] = {name: unquote(each) for name, each in request.path_params.items()}
        return await handler(request)

    return handle


async def show_document(request: Request) -> Response:
    """Respond with the OpenAPI document of this API."""
    return respond(make_document(request.scope.get("root_path", "")))


async def _explain_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, LeaseholdError)  # noqa: S101 - for the type checker: registered for this class
    return respond_problem(describe_error(error))


async def _explain_input(_request: Request, error: Exception) -> Response:
    assert isinstance(error, InvalidInputError)  # noqa: S101 - as above
    faults = [Fault(0, each.path, each.expected, each.got) for each in error.faults]
    return respond_problem(make_problem(400, str(Refused(faults)), faults=faults))


async def _explain_media_type(_request: Request, error: Exception) -> Response:
    return respond_problem(make_problem(415, f"expected a body of the type application/json, got {error}"))


async def _explain_status(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - as above
    return respond_problem(make_problem(error.status_code, error.detail), error.headers)


async def _explain_failure(_request: Request, _error: Exception) -> Response:
    return respond_problem(make_problem(500, "the server failed; its log has the reason"))


class _Outside:
    """Keeps a slash inside of an id apart from those between the segments of a path, and adds cluster time to each
    response.

    Servers decode %2F in the path, so the route would see one more segment. The segments are taken from the path as it
    was sent.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_time(message: Message) -> None:
            now = self._service.now() if message["type"] == "http.response.start" else None
            if now is not None:
                MutableHeaders(scope=message)[TIME_HEADER] = f"{now:.6f}"
            await send(message)

        await self._app({**scope, "path": encode_path(scope)}, receive, send_with_time)


def encode_path(scope: Scope) -> str:
    """Return the path of a request with encoded segments, so that an id with a slash is one segment."""
    root, path = str(scope.get("root_path", "")), str(scope["path"])
    below = path.removeprefix(root)
    sent = bytes(scope.get("raw_path") or b"").partition(b"?")[0].decode("ascii", "replace").split("/")
    for start in range(len(sent)):
        candidate = "/" + "/".join(sent[start:])
        if unquote(candidate) == below:
            return root + "/".join(quote(unquote(each), safe=":@") for each in candidate.split("/"))
    return root + quote(below, safe="/:@")
