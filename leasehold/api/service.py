"""What the handlers of the HTTP API share: the client of a caller, the query of an address with its filters, limits,
cursors and times to wait, the body, and the clock. A wrong value in a query is reported as a fault with the path of its
parameter, like a wrong field in a document.
"""

import base64
import binascii
import math
from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from leasehold.client.loop_client import LoopClient
from leasehold.errors import Unavailable
from leasehold.web.backend import Backend
from leasehold.web.caller import find_caller
from scheduler.model.documents import MOST_FAULTS
from scheduler.model.faults import Fault, InvalidInputError, fault, one_of, show, suggest
from scheduler.model.faults import Fault as Found
from scheduler.protocol.http_routes import LONGEST_WAIT_SECONDS
from scheduler.protocol.task_messages import MOST_LEVELS, is_too_deep
from scheduler.protocol.visible import escape_json_bytes

MOST_ITEMS: Final = 1000
"""The most items of one page."""
USUAL_ITEMS: Final = 100
MOST_NUMBER: Final = 2**62
"""The highest number of a row or event. The database has numbers of 64 bits."""
MOST_VALUES: Final = 100
"""The most values with commas between them in one parameter that are read; what follows counts as one more value."""


class Query:
    """The query of one request. Each method that begins with `take` takes a parameter out of the query; `end` refuses
    the parameters that remain.

    A wrong value of a parameter is recorded as a fault, and `end` raises all faults, so that one response reports all
    of them.
    """

    def __init__(self, request: Request) -> None:
        self._left: dict[str, list[str]] = {}
        for name, value in request.query_params.multi_items():
            self._left.setdefault(name, []).append(value)
        self._known: list[str] = []
        self._faults: list[Fault] = []

    def take(self, name: str) -> str | None:
        """Return the only value of a parameter; None if it is missing."""
        values = self.take_all(name)
        if len(values) > 1:
            self._refuse(name, "one value", values)
        return values[0] if values else None

    def take_all(self, name: str) -> list[str]:
        """Return all values of a parameter."""
        self._known.append(name)
        return self._left.pop(name, [])

    def take_choices(self, name: str, choices: Collection[str]) -> frozenset[str] | None:
        """Return the values of a parameter, which may be repeated or have several values with commas between them.
        Return None if the parameter is missing.
        """
        values = [each for text in self.take_all(name) for each in text.split(",", MOST_VALUES)]
        for each in values:
            if each not in choices and not self._has_enough():
                self._refuse(name, one_of(each, sorted(choices)), each)
        return frozenset(values) if values else None

    def take_choice(self, name: str, choices: Collection[str], usual: str) -> str:
        """Return the only value of a parameter, which must be one of `choices`; `usual` if the parameter is missing."""
        value = self.take(name)
        if value is not None and value not in choices:
            self._refuse(name, one_of(value, choices), value)
        return usual if value is None else value

    def take_labels(self, prefix: str) -> dict[str, str]:
        """Return the values of all parameters named `prefix.KEY`, by KEY."""
        self._known.append(f"{prefix}.KEY")
        names = [name for name in self._left if name.startswith(f"{prefix}.")]
        return {name[len(prefix) + 1 :]: str(self.take(name)) for name in names}

    def take_flag(self, name: str) -> bool:
        """Return whether a parameter is `true`."""
        value = self.take(name)
        if value not in {None, "true", "false"}:
            self._refuse(name, "true or false", value)
        return value == "true"

    def take_limit(self) -> int:
        """Return the largest number of items that the page may have: the parameter `limit`, or a default if it is
        missing.
        """
        return int(self._take_number("limit", USUAL_ITEMS, 1, MOST_ITEMS, is_whole=True))

    def take_number(self, name: str, usual: int = 0) -> int:
        """Return the value of a parameter, a whole number of at least 0; `usual` if the parameter is missing."""
        return int(self._take_number(name, usual, 0, MOST_NUMBER, is_whole=True))

    def take_seconds(self, name: str, usual: float) -> float:
        """Return the value of a parameter, the seconds that the server may wait, at most LONGEST_WAIT_SECONDS; `usual`
        if the parameter is missing.
        """
        return self._take_number(name, usual, 0, LONGEST_WAIT_SECONDS, is_whole=False)

    def take_cursor(self, *kinds: type) -> list[Any] | None:
        """Return the position in the parameter `cursor`, which the previous page gave; None for the first page.
        `kinds`: the types of the values of a position in this list.
        """
        text = self.take("cursor")
        if text is None:
            return None
        try:
            found = msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        except (binascii.Error, ValueError, RecursionError):
            found = None
        # A number that is no number of a row would not fit into the database.
        if not isinstance(found, list) or any(isinstance(each, int) and abs(each) > MOST_NUMBER for each in found):
            self._refuse("cursor", "a cursor from the field `next` of a page", text)
            return None
        if tuple(map(type, found)) != kinds:
            self._refuse("cursor", "a cursor of this list", found)
            return None
        return found

    def take_fields(self, numbers: Collection[str]) -> dict[str, Any]:
        """Return all parameters that were not taken, as fields of a document. The values of the parameters in `numbers`
        are whole numbers, all other values are texts.
        """
        names = list(self._left)
        return {name: self.take_number(name) if name in numbers else self.take(name) for name in names}

    def end(self) -> None:
        """Raise InvalidInputError if a parameter was wrong or is not known."""
        for name in self._left:
            if self._has_enough():
                break
            known = ", ".join(self._known)
            self._faults.append(Fault(name, f"a known parameter ({known}){suggest(name, self._known)}", "this one"))
        if self._faults:
            raise InvalidInputError(self._faults)

    def _take_number(self, name: str, usual: float, least: float, most: float, *, is_whole: bool) -> float:
        text = self.take(name)
        if text is None:
            return usual
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most or (is_whole and value != int(value)):
            kind = "a whole number" if is_whole else "a number"
            self._refuse(name, f"{kind} from {least:g} to {most:g}", text)
            return usual
        return value

    def _has_enough(self) -> bool:
        """Return whether the query has as many faults as a response reports: to find the name that was meant takes
        long.
        """
        return len(self._faults) >= MOST_FAULTS

    def _refuse(self, name: str, wanted: str, got: object) -> None:
        self._faults.append(Fault(name, wanted, show(got)))


def make_cursor(*position: str | int) -> str:
    """Return a cursor for the items after this position, the position of the last item of a page."""
    return base64.urlsafe_b64encode(msgspec.json.encode(position)).rstrip(b"=").decode()


def make_page(items: list[Any], following: str | None) -> Mapping[str, Any]:
    """Return the JSON of one page. `following`: the cursor of the next page; None if this is the last one."""
    return {"items": items, "next": following}


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
    """The services that the handlers of one HTTP API share (`backend`), and what they keep between requests: a client
    that knows cluster time.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
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
