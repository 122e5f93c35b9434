"""Send requests to workers for HTTP clients. The body and the path of the HTTP request make the document of a verb, and
the answer of the worker is the HTTP response.

The worker checks the document, as it checks the documents of all other senders. This process adds an id to each
submitted reservation that has none, and nothing else. In particular it adds no key of a reservation: the sender of the
HTTP request has the keys.
"""

import hashlib
import secrets
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from leasehold.api.lists import write_joined
from leasehold.api.service import Query, Service, read_body, respond
from leasehold.errors import LeaseholdError, Overloaded
from leasehold.web.caller import Caller, find_caller
from leasehold.web.problems import describe_refusal
from leasehold.web.problems import respond as respond_problem
from leasehold.web.server_sent import Places
from scheduler.model.faults import fault, show
from scheduler.model.validation import MOST_NAME, is_whole_text
from scheduler.protocol.http_routes import LONGEST_WAIT_SECONDS, NUMBERS, REQUEST_HEADER, quote_id
from scheduler.protocol.verbs import QUESTIONS, Route

MOST_WAITING: Final = 1024
"""The most requests of this process that wait for workers at the same time. A caller gets a quarter of them at the most
(`Places`). A further request is refused at once with Overloaded.
"""
_ITEMS: Final = "items"


class Outcome(NamedTuple):
    """The outcome of a request, for the log. `ok`: whether a worker carried the request out."""

    ok: bool


class Asking:
    """The handlers of HTTP requests that workers answer."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._places = Places(MOST_WAITING)

    async def ask(self, verb: str, route: Route, request: Request) -> Response:
        """Send a worker the request of this verb that the HTTP request describes, and respond with its answer."""
        query = Query(request)
        timeout = query.take_seconds("timeout", LONGEST_WAIT_SECONDS)
        has_row = verb == "submit" and query.take_flag("row")
        document = await read_body(request) if route.has_body else query.take_fields(NUMBERS)
        query.end()
        _add_path(document, route, request)
        key = _take_key(document, request)
        if verb == "submit":
            caller = find_caller(request)
            name = None if key is None else _make_id(_find_sender(caller), verb, key)
            seed = name or secrets.token_hex()
            items = document.get(_ITEMS)
            for index, each in enumerate(items if isinstance(items, list) else [document]):
                if isinstance(each, dict) and each.get("id") is None and _ITEMS not in each:
                    each["id"] = f"r-{_hash(seed, str(index))[:16]}"
        answer = await self.send(request, verb, document, timeout, key, has_row=has_row)
        if not answer.get("ok") and "results" not in answer:
            return respond_problem(describe_refusal(answer.get("errors", [])))
        if verb == "submit" and "results" not in answer:
            return respond(
                answer, 201, {"Location": f"{request.url.path.rstrip('/')}/{quote_id(str(answer.get('reservation')))}"}
            )
        return respond(answer)

    async def send(
        self,
        request: Request,
        verb: str,
        document: Mapping[str, Any],
        seconds: float,
        key: str | None = None,
        *,
        has_row: bool = False,
    ) -> dict[str, Any]:
        """Send one request as the caller of the HTTP request, and return the answer within `seconds`. `key`: the id
        that the caller has chosen for the request; None: the client makes an id. `has_row`: add the row of the
        reservation to the answer under `row`; None if the view does not have it. Raise NotAnswered if no worker answers
        in time, Overloaded if too many requests wait, and Unavailable if Redis does not answer.
        """
        client, caller = await self._service.open_client(request), find_caller(request)
        sender = _find_sender(caller)
        name = None if key is None else _make_id(sender, verb, key)
        with self._places.using(sender) as has_place:
            if not has_place:
                count = self._places.count(sender)
                raise Overloaded(f"{count} requests of {sender} wait for workers already; this one was not sent")
            try:
                answer, joined = await client.exchange(verb, document, seconds, name, has_row=has_row)
            except LeaseholdError as error:
                self._log(request, verb, document, error)
                raise
        self._log(request, verb, document, Outcome(answer.get("ok") is True))
        if has_row and answer.get("ok") and answer.get("reservation"):
            return {**answer, "row": None if joined is None or joined.row is None else write_joined(joined)}
        return answer

    def _log(self, request: Request, verb: str, document: Mapping[str, Any], outcome: object) -> None:
        if verb not in QUESTIONS:
            self._service.backend.log_change(find_caller(request), verb, _describe(document), outcome)


def _add_path(document: dict[str, Any], route: Route, request: Request) -> None:
    """Add the id that the path of the HTTP request contains to the document, as the field that the route names. Do
    nothing if the path contains no id. Raise InvalidInputError if the document has another value of this field.
    """
    if route.field is None:
        return
    name = request.path_params[route.field]
    given = document.setdefault(route.field, name)
    if given != name:
        raise fault(route.field, f"{show(name)}, as in the path of the URL, or nothing", given)


def _take_key(document: dict[str, Any], request: Request) -> str | None:
    """Remove the field `request`, the id of the request, from the document. Return the id from this field or from the
    header REQUEST_HEADER; None if neither has an id. Raise InvalidInputError if the id is not valid, or if field and
    header differ.
    """
    header, given = request.headers.get(REQUEST_HEADER), document.pop("request", None)
    # An address for the answer is that of this process.
    document.pop("reply_to", None)
    key = header if given is None else given
    if key is None:
        return None
    if not is_whole_text(key, MOST_NAME) or header not in {None, key}:
        raise fault(
            "request", f"an id of 1 to {MOST_NAME} whole characters, the same in the header and in the body", key
        )
    return key


def _find_sender(caller: Caller) -> str:
    return caller.principal or caller.name


def _make_id(sender: str, verb: str, key: str) -> str:
    """Return the id under which workers know a request to which its caller gave the id `key`. Each caller has ids of
    its own, so that the same key of two callers, or of two verbs, names two requests.
    """
    return _hash(sender, verb, key)[:40]


def _hash(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _describe(document: Mapping[str, Any]) -> str:
    if isinstance(items := document.get(_ITEMS), list):
        return f"{len(items)} items"
    found = next((document[each] for each in ("reservation", "id", "slot", "account") if document.get(each)), "")
    return str(found)[:MOST_NAME]
