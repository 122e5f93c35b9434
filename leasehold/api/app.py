"""The ASGI application of the HTTP API. Each request first passes the entrance of the web server
(leasehold/web/entrance.py), which identifies the caller.

The router finds the handler of a request by two look-ups in a table. A general router would compare the path of each
request with the patterns of all routes, which takes as long as the rest of a small request.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, NamedTuple
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from leasehold.api.asking import Asking
from leasehold.api.joining import Joining
from leasehold.api.openapi import make_document
from leasehold.api.reading import Money, Reading, Streams
from leasehold.api.service import MediaTypeError, Service, respond
from leasehold.errors import Fault, LeaseholdError, Refused
from leasehold.web import problems
from leasehold.web.backend import Backend
from leasehold.web.caller import Handler, needs
from leasehold.web.entrance import BodyTooLargeError
from leasehold.web.problems import describe_error, make_problem
from scheduler.model.faults import InvalidInputError
from scheduler.protocol.host_proof import JOIN_PATH
from scheduler.protocol.http_routes import API, LISTS, ROUTES, TIME_HEADER

EXPLAINED: Final = (LeaseholdError, InvalidInputError, MediaTypeError, BodyTooLargeError)
"""The errors of handlers that `explain` turns into a response. For any other error the response has status 500."""
_TIME: Final = TIME_HEADER.lower().encode()
_Segments = tuple[str | None, ...]
"""The segments of a path below API; None stands for any id."""


class ApiRoute(NamedTuple):
    """A method and a path of the HTTP API, and the function that answers them.

    `path`: what follows the prefix API, like `/reservations/{id}`; only its second segment may be a field in braces.
    """

    method: str
    path: str
    handler: Handler


class Router:
    """The ASGI application that answers requests by `routes`. `now` returns cluster time for a header of each response,
    or None while cluster time is not known; the response then has no such header.
    """

    def __init__(self, routes: Iterable[ApiRoute], now: Callable[[], float | None]) -> None:
        self.routes, self._now = tuple(routes), now
        self._table: dict[_Segments, dict[str, ApiRoute]] = {}
        for route in self.routes:
            segments = tuple(None if each.startswith("{") else each for each in route.path.split("/")[1:])
            self._table.setdefault(segments, {}).setdefault(route.method, route)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request whose path begins with API. After an error that is not in EXPLAINED, send a response with
        status 500, and raise the error again for the log.
        """
        scope = {**scope, "root_path": f"{scope.get('root_path', '')}{API}"}
        try:
            response = await self._answer(Request(scope, receive, send))
        except EXPLAINED as error:
            response = explain(error)
        except Exception:
            failed = problems.respond(make_problem(500, "the server failed; its log has the reason"))
            await self._add_time(failed)(scope, receive, send)
            # The web server writes it to the log.
            raise
        await self._add_time(response)(scope, receive, send)

    def _add_time(self, response: Response) -> Response:
        now = self._now()
        if now is not None:
            response.raw_headers.append((_TIME, b"%.6f" % now))
        return response

    async def _answer(self, request: Request) -> Response:
        scope = request.scope
        segments = split_path(scope)
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        methods: list[str] = []
        keys: list[_Segments] = [tuple(segments)]
        if len(segments) > 1 and segments[1]:
            keys.append((segments[0], None, *segments[2:]))
        for found in (self._table[key] for key in keys if key in self._table):
            route = found.get(method)
            if route is not None:
                before, brace, rest = route.path.partition("{")
                scope["path_params"] = {rest.partition("}")[0]: segments[before.count("/") - 1]} if brace else {}
                return await route.handler(request)
            methods += found
        if not methods:
            return problems.respond(make_problem(404, "Not Found"))
        allowed = sorted({*methods, *(["HEAD"] if "GET" in methods else [])})
        return problems.respond(make_problem(405, "Method Not Allowed"), {"Allow": ", ".join(allowed)})


def split_path(scope: Scope) -> list[str]:
    """Return the decoded segments of the path of a request below API (`root_path`).

    Servers decode %2F in the path, so an id with a slash would be two segments. Therefore the segments are taken from
    the path as it was sent.
    """
    below = str(scope["path"]).removeprefix(str(scope["root_path"]))
    sent = bytes(scope.get("raw_path") or b"").partition(b"?")[0]
    if b"%" in sent:
        parts = sent.decode("ascii", "replace").split("/")
        for start in range(len(parts)):
            # A reverse proxy may have removed a prefix from the path that was sent.
            if unquote("/" + "/".join(parts[start:])) == below:
                return [unquote(each) for each in parts[start:]]
    return below.split("/")[1:]


def explain(error: LeaseholdError | InvalidInputError | MediaTypeError | BodyTooLargeError) -> Response:
    """Return the response to a request whose handler raised this error."""
    match error:
        case LeaseholdError():
            return problems.respond(describe_error(error))
        case InvalidInputError():
            faults = [Fault(0, each.path, each.expected, each.got, each.code) for each in error.faults]
            return problems.respond(make_problem(400, str(Refused(faults)), faults=faults))
        case MediaTypeError():
            return problems.respond(make_problem(415, f"expected a body of the type application/json, got {error}"))
        case BodyTooLargeError():
            return problems.respond(make_problem(413, "the body has more than 2 MB"))


_OWN_HANDLERS: Final = frozenset({"explain"})
"""Verbs with a handler of their own, because their request can also be answered without a worker."""


def make_api(backend: Backend) -> Router:
    """Return the application for the paths below API (/api/v1). `request.state.caller` must be the caller of each
    request.
    """
    service = Service(backend)
    asking = Asking(service)
    reading, streams = Reading(service, asking), Streams(service)
    money = Money(service)
    reads: dict[str, tuple[str, Handler]] = {
        "/reservations": ("query", reading.reservations),
        "/reservations/{reservation}": ("query", reading.reservation),
        "/reservations/{reservation}/explanation": ("explain", reading.explanation),
        "/slots": ("query", reading.slots),
        "/slots/{slot}": ("query", reading.slot),
        "/slots/{slot}/hint": ("leases", reading.hint),
        "/accounts": ("query", reading.accounts),
        "/accounts/{account}": ("query", reading.account),
        "/run-times": ("query", reading.run_times),
        "/forecasts": ("query", reading.forecasts),
        "/costs": ("rules", money.costs),
        "/budgets": ("rules", money.budgets),
        "/offers": ("rules", money.offers),
        "/report": ("query", reading.report),
        "/events": ("query", streams.events),
        "/stream": ("query", streams.stream),
    }
    # A resource that takes one request as well as a list of requests, such as the submissions, has one route.
    asked = [*LISTS.items(), *((verb, route) for verb, route in ROUTES.items() if LISTS.get(verb) != route)]
    return Router(
        [
            *(ApiRoute("GET", path, needs(verb)(handler)) for path, (verb, handler) in reads.items()),
            ApiRoute("GET", "/status", reading.status),
            ApiRoute("GET", "/openapi.json", show_document),
            ApiRoute("POST", JOIN_PATH, Joining(service).join),
            ApiRoute("POST", "/reservations/changes", needs("query")(reading.changes)),
            ApiRoute("POST", "/slots/{slot}/heartbeat", needs("register")(reading.heartbeat)),
            *(
                ApiRoute(route.method, route.path, needs(verb)(partial(asking.ask, verb, route)))
                for verb, route in asked
                if verb not in _OWN_HANDLERS
            ),
        ],
        service.now,
    )


async def show_document(request: Request) -> Response:
    """Respond with the OpenAPI document of this API."""
    return respond(make_document(request.scope.get("root_path", "")))
