"""The HTTP connections of one client. Each connection is used by one thread at a time and kept open for the next
request.

Every request of a client may be repeated: reads change nothing, and requests for changes carry an id. Therefore a
request is sent again if the server had closed a kept connection.
"""

import http.client
import json
import os
import socket
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode, urlsplit

import msgspec

from leasehold.client.http_clock import HttpClock
from leasehold.client.http_login import read_url
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
MOST_KEPT: Final = 32
"""The most connections that are kept open while no thread uses them."""
_NOT_FOUND: Final = 404


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


class _Message(NamedTuple):
    """The arguments of `HTTPConnection.request`."""

    method: str
    target: str
    content: bytes | None
    headers: dict[str, str]


class _Connection(http.client.HTTPConnection):
    """An HTTP connection that sends the head and the body of a request in one piece, so that the server wakes up only
    once.
    """

    _pieces: list[bytes] | None = None

    def request(self, *message: Any, **options: Any) -> None:
        """Send a request whose body is bytes or None. See HTTPConnection."""
        self._pieces = []
        try:
            super().request(*message, **options)
        finally:
            pieces, self._pieces = self._pieces, None
        self.send(b"".join(pieces))

    def send(self, data: Any) -> None:
        """Send data on the connection. Within `request`, which sends a head and a body, collect the data instead, and
        let `request` send them in one piece.
        """
        if self._pieces is None:
            super().send(data)
        else:
            self._pieces.append(data)


class _TlsConnection(_Connection, http.client.HTTPSConnection):
    """A `_Connection` that uses TLS."""


class Interrupt:
    """Ends a request while its thread waits for the response; another thread calls `set`. Use a new Interrupt for each
    request.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._connection: http.client.HTTPConnection | None = None
        self.is_set = False

    def hold(self, connection: http.client.HTTPConnection) -> None:
        """Record the connection of the request, so that `set` can end the request. Raise InterruptedError if `set` was
        called before.
        """
        with self._guard:
            self._connection = connection
            if self.is_set:
                raise InterruptedError

    def set(self) -> None:
        """End the request: the thread that waits for its response gets Unavailable at once."""
        with self._guard:
            self.is_set = True
            if self._connection is not None:
                _shut(self._connection)


class HttpChannel:
    """The connections of one client to one HTTP API. Safe for threads and after a fork.

    `authorization`: the value of the header `Authorization`; None: the header is not sent.
    """

    def __init__(self, url: str, authorization: str | None) -> None:
        self.url, self._authorization = url, authorization
        self._parts = read_url(url)
        self._base = f"{self._parts.path.rstrip('/')}{API}"
        is_tls = self._parts.scheme.lower() == "https"
        self._tls = ssl.create_default_context() if is_tls else None
        self.clock = HttpClock(lambda: self.call("GET", "/status"))
        self._guard = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []
        self._busy: set[http.client.HTTPConnection] = set()
        self._pid = os.getpid()
        self._closed = threading.Event()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed.is_set()

    def pause(self, seconds: float) -> None:
        """Wait for `seconds`. Return at once if the channel is closed."""
        self._closed.wait(seconds)

    def close(self) -> None:
        """Close all connections. Calls that wait for a response raise Unavailable."""
        self._closed.set()
        with self._guard:
            idle, self._idle = self._idle, []
            busy = list(self._busy)
        for each in idle:
            each.close()
        for each in busy:
            _shut(each)

    def read(self, path: str, query: Mapping[str, Any] | None = None, *, wait: float = 0.0) -> Any:
        """Return the JSON of the resource `path`. Raise Unknown if the resource does not exist, BadCredentials if the
        server refuses the login, and Unavailable if there is no usable response. `wait`: the seconds for which the
        server may wait before it responds.
        """
        reply = self.call("GET", path, query, wait=wait)
        if not reply.is_ok:
            raise self.explain(reply)
        return reply.content

    def call(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None = None,
        body: object = None,
        *,
        headers: Mapping[str, str] | None = None,
        wait: float = 0.0,
        interrupt: Interrupt | None = None,
    ) -> Reply:
        """Send a request and return its response, whatever its status. Raise Unavailable if there is no response.
        `path` is relative to the root of the API. `body` is sent as JSON; None: no body. `wait`: the seconds for which
        the server may wait before it responds. `interrupt`: the object with which another thread can end the request.
        """
        target = f"{self._base}{path}"
        if query:
            target += f"?{urlencode(query, doseq=True)}"
        content = None if body is None else _encode(body)
        own = {"Accept": "application/json", **(headers or {})}
        if content is not None:
            own["Content-Type"] = "application/json"
        if self._authorization is not None:
            own["Authorization"] = self._authorization
        return self._send(_Message(method, target, content, own), wait + ANSWER_SECONDS, interrupt or Interrupt())

    def explain(self, reply: Reply) -> LeaseholdError:
        """Return the error that the client raises for a response that reports a problem."""
        if reply.status == http.client.UNAUTHORIZED:
            return BadCredentials(f"{self.url}: {reply.detail}")
        if reply.faults is not None:
            return Refused(read_faults(reply.faults))
        if reply.status == _NOT_FOUND:
            return Unknown(reply.detail)
        if reply.status == http.client.GATEWAY_TIMEOUT:
            return NotAnswered(reply.detail, reply.find("reason"))
        if reply.find("type").endswith(":overloaded"):
            return Overloaded(reply.detail, reply.find("reason"))
        if reply.status == http.client.SERVICE_UNAVAILABLE:
            return Unavailable(reply.detail)
        return Unavailable(f"{self.url} refuses the request with HTTP status {reply.status}: {reply.detail}")

    def _send(self, message: _Message, seconds: float, interrupt: Interrupt) -> Reply:
        while True:
            connection, is_kept = self._take()
            try:
                return self._exchange(connection, message, seconds, interrupt)
            except (OSError, http.client.HTTPException) as error:
                self._drop(connection)
                if self.is_closed:
                    raise Unavailable("the client was closed while it waited for an answer") from error
                # The server ends a kept connection that was not used for some seconds.
                if not is_kept or interrupt.is_set or isinstance(error, TimeoutError):
                    raise Unavailable(self._describe(error)) from error
            except BaseException:
                # For example Ctrl-C: the response of this request would be taken for that of the next one.
                self._drop(connection)
                raise

    def _exchange(
        self, connection: http.client.HTTPConnection, message: _Message, seconds: float, interrupt: Interrupt
    ) -> Reply:
        if connection.sock is None:
            connection.connect()
        interrupt.hold(connection)
        # http.client sets TCP_NODELAY.
        connection.sock.settimeout(seconds)
        before = read_monotonic()
        connection.request(*message)
        response = connection.getresponse()
        content = response.read()
        self.clock.note(response.headers.get(TIME_HEADER), before)
        self._give_back(connection, is_reusable=not response.will_close)
        return Reply(
            response.status,
            _decode(content, response.headers.get("Content-Type", "")),
            _read_seconds(response.headers.get("Retry-After")),
        )

    def _take(self) -> tuple[http.client.HTTPConnection, bool]:
        with self._guard:
            if self._pid != os.getpid():
                # The connections of the parent process must not be used after a fork.
                self._pid, self._idle, self._busy = os.getpid(), [], set()
            if self.is_closed:
                raise Unavailable("the client is closed")
            connection = self._idle.pop() if self._idle else None
            is_kept = connection is not None
            connection = connection or self._open()
            self._busy.add(connection)
        return connection, is_kept

    def _open(self) -> http.client.HTTPConnection:
        host, port = self._parts.hostname or "", self._parts.port
        if self._tls is None:
            return _Connection(host, port, timeout=CONNECT_SECONDS)
        return _TlsConnection(host, port, timeout=CONNECT_SECONDS, context=self._tls)

    def _give_back(self, connection: http.client.HTTPConnection, *, is_reusable: bool) -> None:
        with self._guard:
            self._busy.discard(connection)
            if is_reusable and len(self._idle) < MOST_KEPT and not self.is_closed:
                self._idle.append(connection)
                return
        connection.close()

    def _drop(self, connection: http.client.HTTPConnection) -> None:
        with self._guard:
            self._busy.discard(connection)
        connection.close()

    def _describe(self, error: Exception) -> str:
        shown = urlsplit(self.url)._replace(query="", fragment="").geturl()
        if isinstance(error, ssl.SSLError):
            return f"the TLS connection to {shown} cannot be trusted: {error}"
        return f"the HTTP API at {shown} cannot be reached: {str(error) or type(error).__name__}"


def _shut(connection: http.client.HTTPConnection) -> None:
    """End a connection from another thread than the one that reads from it. The read raises an error at once."""
    sock = connection.sock
    if sock is not None:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


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
