"""Problem details (RFC 9457): the JSON with which the server reports an error, made from the errors of the client.

    {"type": "urn:problem-type:leasehold:refused", "title": "…", "status": 400, "detail": "…", "errors": [fault, …]}

`errors` is present if a request was refused. Each fault has `index`, `path`, `expected` and `got`. It has a `code`
unless the request itself is wrong.
"""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec
from starlette.responses import Response

from leasehold.errors import (
    BadCredentials,
    Ended,
    Fault,
    LeaseholdError,
    NotAnswered,
    Overloaded,
    Refused,
    Unavailable,
    Unknown,
    read_faults,
)
from scheduler.protocol.http_routes import PROBLEM_TYPE
from scheduler.protocol.visible import escape_json_bytes

_URN: Final = "urn:problem-type:leasehold:"
RETRY_SECONDS: Final = 1
OVERLOADED_RETRY_SECONDS: Final = 3
_STATUSES: Final[Mapping[str | None, int]] = {"forbidden": 403, "unknown": 404, "conflict": 409}
"""Code of a fault -> HTTP status of the response."""
_TITLES: Final[Mapping[int, tuple[str, str]]] = {
    400: ("refused", "The request is not valid"),
    401: ("unknown-caller", "The caller is not known"),
    403: ("forbidden", "The caller may not do this"),
    404: ("unknown", "There is no such resource"),
    405: ("method", "The resource does not have this method"),
    409: ("conflict", "The request does not fit the present state"),
    413: ("too-large", "The body is too large"),
    415: ("media-type", "The body is not JSON"),
    421: ("host", "The server does not answer for this host"),
    429: ("too-many", "There are too many requests"),
    500: ("internal", "The server failed"),
    503: ("unavailable", "The service is not available at present"),
    504: ("not-answered", "No worker answered in time"),
}
"""HTTP status -> the last part of the problem's type, and the problem's title."""


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of a response that reports an error."""

    type: str
    title: str
    status: int
    detail: str = ""
    errors: tuple[dict[str, Any], ...] = ()
    """The faults of a refused request."""
    reason: str = ""
    """What is known about the cause, if no worker answered."""


def make_problem(status: int, detail: str, *, faults: Sequence[Fault] = (), kind: str | None = None) -> Problem:
    """Return the problem with this HTTP status. `kind`: the last part of the problem's type; None: the usual one for
    this status. `faults`: the faults of a refused request.
    """
    name, title = _TITLES.get(status, ("error", _find_phrase(status)))
    return Problem(f"{_URN}{kind or name}", title, status, detail, tuple(map(write_fault, faults)))


def describe_error(error: LeaseholdError) -> Problem:
    """Return the problem that reports `error`, an error of the client, with the HTTP status for its class."""
    match error:
        case Refused():
            return make_problem(find_status(error.errors), str(error), faults=error.errors)
        case Overloaded():
            return _add_reason(make_problem(503, str(error), kind="overloaded"), error)
        case NotAnswered():
            return _add_reason(make_problem(504, str(error)), error)
        case Unavailable():
            return make_problem(503, str(error))
        case Unknown():
            return make_problem(404, str(error))
        case Ended():
            return make_problem(409, str(error))
        case BadCredentials():
            return make_problem(503, f"the server cannot sign requests: {error}")
        case _:
            return make_problem(500, "the server failed; its log has the reason")


def _add_reason(problem: Problem, error: NotAnswered) -> Problem:
    return msgspec.structs.replace(problem, reason=error.reason)


def describe_refusal(errors: Sequence[Mapping[str, Any]]) -> Problem:
    """Return the problem that reports a refusal by a worker. `errors`: the faults in the worker's answer."""
    return describe_error(Refused(read_faults(errors)))


def respond(problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    """Return the response that reports a problem. For a problem that passes by itself (status 429 or 503) the response
    has the header `Retry-After`.
    """
    more = dict(headers or {})
    if problem.status in {429, 503}:
        is_overload = problem.type.endswith("overloaded")
        more.setdefault("Retry-After", str(OVERLOADED_RETRY_SECONDS if is_overload else RETRY_SECONDS))
    return Response(escape_json_bytes(msgspec.json.encode(problem)), problem.status, more, PROBLEM_TYPE)


def find_status(faults: Sequence[Fault]) -> int:
    """Return the HTTP status for a refused request by the code of its first fault: 403 if the sender lacks a right, 404
    if the object is not known, 409 if its state does not permit the change. Return 400 if the request itself is wrong.
    """
    return _STATUSES.get(faults[0].code, 400) if faults else 400


def write_fault(found: Fault) -> dict[str, Any]:
    """Return a fault as JSON values. `code` is missing if the request itself is wrong."""
    values: dict[str, Any] = msgspec.to_builtins(found)
    return {name: value for name, value in values.items() if value is not None}


def _find_phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "The request failed"
