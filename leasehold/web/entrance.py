"""ASGI middleware that refuses requests of unknown callers, and passes the caller of each other request to the routes.
The gate (leasehold/web/gate.py) identifies the callers.

A route finds the caller in `request.state.caller`, and the CSRF token of its pages in `request.state.csrf`.
"""

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlencode

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from leasehold.web.gate import SAFE_METHODS, Admission, Gate
from leasehold.web.problems import make_problem, respond
from leasehold.web.security import API_PATH, HEALTH_PATH, LOGIN_PATH
from leasehold.web.sessions import SESSION_SECONDS
from scheduler.protocol.http_routes import DOCS
from workers.logs import get_logger

_OPEN: Final = frozenset({HEALTH_PATH, LOGIN_PATH})
_OPEN_FOLDERS: Final = ("/static/",)

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
        if not (path in _OPEN or path.startswith(_OPEN_FOLDERS)):
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
        _remember(request, admission)
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
    """Add the cookie of a session to an answer. `value`: the value of the cookie."""
    answer.set_cookie(
        gate.cookie_name,
        value,
        max_age=int(SESSION_SECONDS),
        path=request.scope.get("root_path", "") or "/",
        secure=gate.is_https(request),
        httponly=True,
        samesite="strict",
    )


def _remember(request: Request, admission: Admission) -> None:
    request.state.caller, request.state.csrf = admission.caller, admission.csrf
