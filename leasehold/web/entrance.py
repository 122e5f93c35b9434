"""ASGI middleware that refuses requests of unknown callers, and passes the caller of each other request to the routes.
The gate (leasehold/web/gate.py) identifies the callers.

A route finds the caller in `request.state.caller`, and the CSRF token of its pages in `request.state.csrf`.

The outermost layer of the web server refuses requests for other hosts and from other origins, limits bodies, and adds
headers by which browsers run no scripts of other sites in our pages and do not show our pages in frames of other sites.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode, urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from leasehold.web.gate import SAFE_METHODS, SESSION_SECONDS, Admission, Gate
from leasehold.web.problems import make_problem, respond
from scheduler.protocol.host_proof import JOIN_PATH
from scheduler.protocol.http_routes import API, DOCS
from workers.logs import get_logger
from workers.settings import ConsoleSettings

MOST_BODY: Final = 2 * 1024 * 1024
"""The most bytes of the body of a request."""
MOST_LOGIN_BODY: Final = 16 * 1024
"""The most bytes of the form of a login, which is read before the caller is known."""
MOST_PARAMETERS: Final = 200
"""The most parameters in the query of an address. A program that lists reservations by their ids needs the most."""
HEALTH_PATH: Final = "/healthz"
LOGIN_PATH: Final = "/login"
API_PATH: Final = "/api/"
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-frame-options", b"DENY"),
    (b"x-content-type-options", b"nosniff"),
    # `no-referrer` would make browsers send `Origin: null` with forms.
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_OF_PAGES: Final = (*_HEADERS, (b"cache-control", b"no-store"))
"""Headers of every answer except static files. Such an answer must not be stored by a cache, because it shows private
data.
"""
_OF_STATIC: Final = (*_HEADERS, (b"cache-control", b"no-cache"))
_LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")


class BodyTooLargeError(Exception):
    """Raised in the application when the body of a request has more bytes than it may have."""


@dataclass(frozen=True)
class AllowedHosts:
    """The values of the header Host that are accepted: a name in `exact` with its port only, a name in `names` with
    every port.
    """

    exact: frozenset[str]
    names: frozenset[str]

    def __contains__(self, host: str) -> bool:
        bare = host.lower()
        return bare in self.exact or _without_port(bare) in self.names


def find_allowed_hosts(console: ConsoleSettings) -> AllowedHosts:
    """Return the hosts for which this server answers: the names of loopback and its own address, each with its port,
    and the hosts of the setting `console.hosts`.
    """
    own = f"[{console.host}]" if ":" in console.host else console.host
    exact = {f"{name}:{console.port}".lower() for name in (*_LOOPBACK, own)}
    names = {each.lower() for each in console.hosts}
    return AllowedHosts(
        frozenset(exact | {each for each in names if _without_port(each) != each}),
        frozenset(each for each in names if _without_port(each) == each),
    )


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() and not (name.startswith("[") and not name.endswith("]")) else host


class Security:
    """ASGI middleware with all checks and headers that do not depend on the caller.

    `prefix`: the path under which a reverse proxy serves this server; the proxy may remove it or keep it.
    """

    def __init__(self, app: ASGIApp, console: ConsoleSettings) -> None:
        self._app, self._prefix, self._hosts = app, console.prefix, find_allowed_hosts(console)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request to the application if it passes all checks; else answer it with the refusal."""
        if scope["type"] != "http":
            # Nothing here uses web sockets.
            await (self._app(scope, receive, send) if scope["type"] == "lifespan" else _close(send))
            return
        scope = _add_prefix(scope, self._prefix)
        refusal = self._find_refusal(scope, Headers(scope=scope))
        is_static = scope["path"].startswith(f"{self._prefix}/static/")
        answer = _AddHeaders(send, _OF_STATIC if is_static else _OF_PAGES)
        if refusal is not None:
            await self._refuse(scope, *refusal)(scope, receive, answer)
            return
        most = self._find_most(scope)
        try:
            await self._app(scope, _LimitedBody(receive, most), answer)
        except BodyTooLargeError:
            if answer.has_begun:
                raise
            await self._refuse(scope, *_describe_excess(most))(scope, receive, answer)

    def _refuse(self, scope: Scope, status: int, text: str) -> Response:
        """Return the answer to a request that may not pass: problem details in JSON (RFC 9457) for the API, plain text
        for pages.
        """
        if scope["path"].startswith(f"{self._prefix}{API_PATH}"):
            return respond(make_problem(status, text))
        return PlainTextResponse(f"leasehold: {text}\n", status)

    def _find_refusal(self, scope: Scope, headers: Headers) -> tuple[int, str] | None:
        """Return (HTTP status, reason) if the request may not pass, else None."""
        hosts = headers.getlist("host")
        if scope["path"] == f"{self._prefix}{HEALTH_PATH}":
            return None
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            # A page of another site can give its name the address of this server (DNS rebinding).
            return (421, "this server does not answer for this host: see console.hosts")
        if is_foreign(scope["method"], headers):
            return (403, "the request comes from a page of another site")
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit():
            return (400, "expected a number of bytes in Content-Length")
        if scope["query_string"].count(b"&") >= MOST_PARAMETERS:
            return (400, f"expected at most {MOST_PARAMETERS} parameters in the address")
        most = self._find_most(scope)
        return _describe_excess(most) if int(length[:20]) > most else None

    def _find_most(self, scope: Scope) -> int:
        return MOST_LOGIN_BODY if scope["path"] == f"{self._prefix}{LOGIN_PATH}" else MOST_BODY


def is_foreign(method: str, headers: Headers) -> bool:
    """Return whether a browser sent the request for a page of another origin, as its headers Sec-Fetch-Site and Origin
    show. A request that only reads is not foreign if the user navigated to its address, for example by a link.

    A program that is no browser sends neither header, so its requests are not foreign.
    """
    site, mode = headers.get("sec-fetch-site"), headers.get("sec-fetch-mode")
    is_safe = method in SAFE_METHODS
    if site is not None and site not in {"same-origin", "none"} and not (is_safe and mode == "navigate"):
        return True
    origin = headers.get("origin")
    return origin is not None and not is_safe and _find_netloc(origin) != headers.get("host", "").lower()


def _find_netloc(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _describe_excess(most: int) -> tuple[int, str]:
    text = "2 MB" if most == MOST_BODY else f"{most // 1024} kB"
    return 413, f"the body has more than {text}"


async def _close(send: Send) -> None:
    await send({"type": "websocket.close", "code": 1000})


def _add_prefix(scope: Scope, prefix: str) -> Scope:
    """Return the scope with the path prefix in `path` and `root_path`, whether the proxy has removed it or not."""
    path: str = scope["path"]
    if not prefix:
        return scope
    if path == prefix:
        path = f"{prefix}/"
    is_kept = path.startswith(f"{prefix}/")
    return {**scope, "root_path": prefix, "path": path if is_kept else prefix + path}


class _LimitedBody:
    """An ASGI function `receive` that raises BodyTooLargeError when a body with no declared length gets too large."""

    def __init__(self, receive: Receive, most: int) -> None:
        self._receive, self._most, self._seen = receive, most, 0

    async def __call__(self) -> Message:
        message = await self._receive()
        self._seen += len(message.get("body", b""))
        if self._seen > self._most:
            raise BodyTooLargeError
        return message


class _AddHeaders:
    """An ASGI function `send` that adds given headers to each answer, except those that the answer has already."""

    def __init__(self, send: Send, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self._send, self._headers, self.has_begun = send, headers, False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_begun = True
            given = [(name.lower(), value) for name, value in message.get("headers", ())]
            names = {name for name, _ in given}
            message["headers"] = [*given, *(each for each in self._headers if each[0] not in names)]
        await self._send(message)


_OPEN: Final = frozenset({HEALTH_PATH, LOGIN_PATH, f"{API}{JOIN_PATH}"})

log = get_logger(__name__)


class Entrance:
    """Identifies the caller of each request; an unknown caller gets status 401, or for a page a redirect to the login
    page.
    """

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self._app, self._gate = app, gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request to the application if its path needs no caller, or if its caller is known and may send the
        request. Else send the answer of this class, for example status 401.
        """
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        path = find_route(request)
        if not (path in _OPEN or path.startswith("/static/")):
            is_api = path.startswith(API_PATH)
            is_page = not is_api or path == DOCS
            answer = self._answer(request, await self._admit(request), is_api=is_api, is_page=is_page)
            if answer is not None:
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _admit(self, request: Request) -> Admission | None:
        if not self._gate.principals.is_fresh:
            # The database may be slow. Meanwhile the event loop serves others.
            await run_in_threadpool(self._gate.refresh)
        found = self._gate.admit(request)
        if found is None and "authorization" in request.headers:
            await self._gate.look_again(request)
            found = self._gate.admit(request)
        session = None if found is None else found.session
        if session is not None and await run_in_threadpool(self._gate.is_ended, session):
            return None
        return found

    def _answer(self, request: Request, admission: Admission | None, *, is_api: bool, is_page: bool) -> Response | None:
        """If the request may pass to the application, put its caller into `request.state` and return None. Else return
        the answer to the request: a refusal, or for a page with a token in its address the result of the login.
        `admission` None: the caller is unknown. `is_api`: the path is one of the API, which each known caller may read.
        """
        # The parameters are read only if one of them may be the token: the caller is not known yet.
        has_token = b"token=" in request.scope["query_string"] and "token" in request.query_params
        if is_page and request.method == "GET" and has_token:
            return self._exchange_token(request)
        if admission is None:
            return self._refuse_unknown(request, is_page=is_page)
        if not (is_api or admission.caller.can_look):
            return respond(make_problem(403, admission.caller.find_refusal("query") or ""))
        if self._gate.is_forged(request, admission):
            return respond(make_problem(403, "this page is out of date: load it again (no valid X-CSRF-Token)"))
        request.state.caller, request.state.csrf = admission.caller, admission.csrf
        return None

    def _exchange_token(self, request: Request) -> Response:
        """Log in by the token in the address of a request, and return the answer: a redirect to the same page without
        the token, with the cookie of a new session. If the token is wrong, return a redirect to the login page, or
        status 429 after too many failures.
        """
        cookie = self._gate.log_in_by_token(request.query_params["token"])
        if cookie is None:
            return self.count_failure(request) or to_login(request, {"failed": "token"})
        rest = [(name, value) for name, value in request.query_params.multi_items() if name != "token"]
        # Two slashes at the begin would name another host.
        clean = "/" + str(request.scope["path"]).lstrip("/") + (f"?{urlencode(rest)}" if rest else "")
        answer = RedirectResponse(clean, 303)
        set_cookie(answer, self._gate, request, cookie)
        return answer

    def _refuse_unknown(self, request: Request, *, is_page: bool) -> Response:
        if "authorization" in request.headers and (late := self.count_failure(request)):
            return late
        is_read = request.method in SAFE_METHODS and "text/html" in request.headers.get("accept", "")
        if not is_page or not is_read or "hx-request" in request.headers:
            problem = make_problem(401, "log in, or send the token or the key of a principal")
            return respond(problem, {"WWW-Authenticate": 'Bearer realm="leasehold"'})
        query = request.scope["query_string"].decode("latin-1")
        wanted = request.scope["path"] + (f"?{query}" if query else "")
        return to_login(request, {"next": wanted} if wanted != "/" else {})

    def count_failure(self, request: Request) -> Response | None:
        """Count and log a failed login. Return the answer (status 429) if this peer (network address) failed too often;
        else None.
        """
        peer = request.client.host if request.client else "unknown"
        seconds = self._gate.note_failure(request)
        if seconds is None:
            log.warning("A login failed.", action="console.login_failed", peer=peer)
            return None
        problem = make_problem(429, f"too many failed logins, try again in {seconds:.0f} s")
        return respond(problem, {"Retry-After": str(int(seconds) + 1)})


def find_route(request: Request) -> str:
    """Return the path of a request without the prefix of the reverse proxy."""
    root: str = request.scope.get("root_path", "")
    path: str = request.scope["path"]
    return path[len(root) :] if root and path.startswith(root) else path


def to_login(request: Request, values: Mapping[str, str]) -> Response:
    """Return a redirect to the login page. `values`: the parameters in the query of the redirect."""
    where = f"{request.scope.get('root_path', '')}{LOGIN_PATH}"
    return RedirectResponse(f"{where}?{urlencode(values)}" if values else where, 303)


def set_cookie(answer: Response, gate: Gate, request: Request, value: str) -> None:
    answer.set_cookie(
        gate.cookie_name,
        value,
        max_age=int(SESSION_SECONDS),
        path=request.scope.get("root_path", "") or "/",
        secure=gate.is_https(request),
        httponly=True,
        samesite="strict",
    )
