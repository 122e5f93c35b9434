"""What the handlers of the HTTP API share: the caller and its client, the body, and the clock."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from leasehold.api.lists import Submissions
from leasehold.client.loop_client import LoopClient
from leasehold.errors import Unavailable
from leasehold.web.backend import Backend
from leasehold.web.caller import find_caller
from scheduler.model.faults import Fault as Found
from scheduler.model.faults import InvalidInputError, fault
from scheduler.protocol.task_messages import MOST_LEVELS, is_too_deep
from scheduler.protocol.visible import escape_json_bytes

_JSON: Final = "application/json"
_LEVELS: Final = MOST_LEVELS - 2
"""Most levels of a document: no worker reads the message of a deeper one."""
MOST_TABLES: Final = 100_000
"""The most tables and lists in the JSON of a body. The event loop needs a second to make the 700,000 lists that a body
of 2 MB can have.
"""


class MediaTypeError(Exception):
    """Raised if the header Content-Type of a request does not declare the body as JSON."""


class Service:
    """The services that the handlers of one HTTP API share (`backend`), and what they keep between requests: the order
    of submissions, and a client that knows cluster time.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.submissions = Submissions()
        backend.feed.watch(self.submissions.note)
        self._clock: LoopClient | None = None

    async def open_client(self, request: Request) -> LoopClient:
        """Return the client that signs as the caller of this request. Raise Unavailable if the client cannot be
        made.
        """
        self._clock = await self.backend.client(find_caller(request))
        return self._clock

    def now(self) -> float | None:
        """Return cluster time without waiting; None before the first call of `open_client`."""
        return None if self._clock is None else self._clock.now()

    def check_view(self) -> None:
        """Raise Unavailable unless the copy of the view is up to date."""
        status = self.backend.feed.status
        if status.redis_lost_since is not None or not status.is_valid:
            raise Unavailable("Redis cannot be reached or holds no valid view: the next tick builds it")


async def read_body(request: Request) -> dict[str, Any]:
    """Return the JSON table in the body; {} without a body. Raise MediaTypeError if the header Content-Type does not
    declare JSON, and InvalidInputError if the body is no JSON table.
    """
    content = await request.body()
    if not content:
        return {}
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _JSON and not kind.endswith("+json"):
        raise MediaTypeError(kind or "no Content-Type")
    tables = content.count(b"{") + content.count(b"[")
    if tables > MOST_TABLES:
        raise InvalidInputError([Found("body", f"JSON with at most {MOST_TABLES} tables and lists", "more")])
    try:
        found = msgspec.json.decode(content)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise InvalidInputError([Found("body", "valid JSON in UTF-8", str(error))]) from None
    if not isinstance(found, dict):
        raise fault("body", "a table", found)
    if tables > _LEVELS and is_too_deep(found, _LEVELS):
        raise InvalidInputError([Found("body", f"at most {_LEVELS} levels of nested tables and lists", "more")])
    return found


def respond(content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response whose body is `content` as JSON, with the control characters in texts of users escaped."""
    return Response(escape_json_bytes(msgspec.json.encode(content)), status, dict(headers or {}), _JSON)


def read_text(name: str, value: object) -> str:
    """Return `value`, the value of the field `name`. Raise InvalidInputError if it is no text."""
    if not isinstance(value, str):
        raise fault(name, "a text", value)
    return value
