"""The HTTP connections of one client in one event loop.

Every request of a client may be repeated: reads change nothing, and requests for changes carry an id. Therefore a
request is sent again if the server had closed a kept connection.
"""

import asyncio
import json
import ssl
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode, urlsplit

import httpx
import msgspec

from leasehold.client.http.clock import HttpClock
from leasehold.client.http.login import read_url
from leasehold.errors import (
    BadCredentials,
    LeaseholdError,
    NotAnswered,
    Overloaded,
    Refused,
    Unavailable,
    Unknown,
    read_faults,
)
from scheduler.protocol.clock import read_monotonic
from scheduler.protocol.http_routes import API, PROBLEM_TYPE, TIME_HEADER

CONNECT_SECONDS: Final = 3.0
ANSWER_SECONDS: Final = 10.0
"""Seconds for which the client waits for a response, in addition to the time for which the server may wait before it
responds.
"""
MOST_CONNECTIONS: Final = 32


class Reply(NamedTuple):
    """An HTTP response. `content` is the JSON in its body; None if the body is no JSON. `retry_after`: the seconds in
    the header `Retry-After`; None if the header is missing.
    """

    status: int
    content: Any
    retry_after: float | None

    @property
    def is_ok(self) -> bool:
        """Whether the server has carried the request out."""
        return 200 <= self.status < 300  # noqa: PLR2004 - the classes of status codes

    @property
    def detail(self) -> str:
        """The sentence for people with which the server describes a problem; the HTTP status if the response has
        none.
        """
        return self.find("detail") or f"HTTP status {self.status}"

    def find(self, name: str) -> str:
        """Return the text in the field `name` of the response's JSON; "" if the field is missing or has no text."""
        found = self.content.get(name) if isinstance(self.content, dict) else None
        return found if isinstance(found, str) else ""

    @property
    def faults(self) -> list[dict[str, Any]] | None:
        """The faults for which the server refused the request; None if it did not refuse the request."""
        found = self.content.get("errors") if isinstance(self.content, dict) else None
        return found if isinstance(found, list) else None


class HttpChannel:
    """The connections of one client to one HTTP API. `authorization`: the value of the header `Authorization`; None:
    the header is not sent.
    """

    def __init__(self, url: str, authorization: str | None) -> None:
        self.url = url
        parts = read_url(url)
        self._base = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}{API}"
        self._headers = {"Accept": "application/json"}
        if authorization is not None:
            self._headers["Authorization"] = authorization
        self.clock = HttpClock(self._base, self._headers)
        self._client = httpx.AsyncClient(
            # The certificates that the system trusts; no proxy and no netrc of the environment.
            verify=ssl.create_default_context() if parts.scheme.lower() == "https" else False,
            trust_env=False,
            follow_redirects=False,
            limits=httpx.Limits(max_connections=MOST_CONNECTIONS, max_keepalive_connections=MOST_CONNECTIONS),
        )
        self._calls: set[asyncio.Task[Any]] = set()
        self._closed = asyncio.Event()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed.is_set()

    async def pause(self, seconds: float) -> None:
        """Wait for `seconds`. Return at once if the channel is closed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closed.wait()

    async def close(self) -> None:
        """Close all connections. Calls that wait for a response raise Unavailable."""
        self._closed.set()
        for task in self._calls:
            task.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        await self._client.aclose()

    async def read(self, path: str, query: Mapping[str, Any] | None = None, *, wait: float = 0.0) -> Any:
        """Return the JSON of the resource `path`. Raise Unknown if the resource does not exist, BadCredentials if the
        server refuses the login, and Unavailable if there is no usable response. `wait`: the seconds for which the
        server may wait before it responds.
        """
        reply = await self.call("GET", path, query, wait=wait)
        if not reply.is_ok:
            raise self.explain(reply)
        return reply.content

    async def call(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None = None,
        body: object = None,
        *,
        headers: Mapping[str, str] | None = None,
        wait: float = 0.0,
    ) -> Reply:
        """Send a request and return its response, whatever its status. Raise Unavailable if there is no response.
        `path` is relative to the root of the API. `body` is sent as JSON; None: no body. `wait`: the seconds for which
        the server may wait before it responds.
        """
        if self.is_closed:
            raise Unavailable("the client is closed")
        own = {**self._headers, **(headers or {})}
        if body is not None:
            own["Content-Type"] = "application/json"
        seconds = wait + ANSWER_SECONDS
        request = self._client.build_request(
            method,
            f"{self._base}{path}",
            # Half a character reaches the server as characters that no name has.
            params=urlencode(query, doseq=True, errors="surrogatepass") if query else None,
            content=None if body is None else _encode(body),
            headers=own,
            timeout=httpx.Timeout(seconds, connect=CONNECT_SECONDS),
        )
        task = asyncio.ensure_future(self._send(request))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        try:
            return await task
        except asyncio.CancelledError:
            if self._closed.is_set() and task.cancelled():
                raise Unavailable("the client was closed while it waited for an answer") from None
            task.cancel()
            raise

    def explain(self, reply: Reply) -> LeaseholdError:
        """Return the error that the client raises for a response that reports a problem."""
        if reply.status == HTTPStatus.UNAUTHORIZED:
            return BadCredentials(f"{self.url}: {reply.detail}")
        if reply.faults is not None:
            return Refused(read_faults(reply.faults))
        if reply.status == HTTPStatus.NOT_FOUND:
            return Unknown(reply.detail)
        if reply.status == HTTPStatus.GATEWAY_TIMEOUT:
            return NotAnswered(reply.detail, reply.find("reason"))
        if reply.find("type").endswith(":overloaded"):
            return Overloaded(reply.detail, reply.find("reason"))
        if reply.status == HTTPStatus.SERVICE_UNAVAILABLE:
            return Unavailable(reply.detail)
        return Unavailable(f"{self.url} refuses the request with HTTP status {reply.status}: {reply.detail}")

    async def _send(self, request: httpx.Request) -> Reply:
        before = read_monotonic()
        try:
            try:
                response = await self._client.send(request)
            except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
                # The server ends a kept connection that was not used for some seconds. The request has the same id.
                before = read_monotonic()
                response = await self._client.send(request)
        except httpx.HTTPError as error:
            raise Unavailable(self._describe(error)) from error
        self.clock.note(response.headers.get(TIME_HEADER), before)
        return Reply(
            response.status_code,
            _decode(response.content, response.headers.get("Content-Type", "")),
            _read_seconds(response.headers.get("Retry-After")),
        )

    def _describe(self, error: Exception) -> str:
        shown = urlsplit(self.url)._replace(query="", fragment="").geturl()
        if _is_distrust(error):
            return f"the TLS connection to {shown} cannot be trusted: {error}"
        return f"the HTTP API at {shown} cannot be reached: {str(error) or type(error).__name__}"


def _is_distrust(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _encode(body: object) -> bytes:
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:
        # Half a character: as an escape it reaches the server, which reports the fault.
        return json.dumps(body).encode()


def _decode(content: bytes, content_type: str) -> Any:
    if not content_type.startswith(("application/json", PROBLEM_TYPE)):
        return None
    with suppress(msgspec.DecodeError):
        return msgspec.json.decode(content)
    return None


def _read_seconds(header: str | None) -> float | None:
    try:
        return None if header is None else max(float(header), 0.0)
    except ValueError:
        return None
