"""The web application of the console: the security layer, the gate, the API, the pages and the static files."""

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from leasehold.console.page import Page, live, read_form, redirect, render, url
from leasehold.console.pages import PAGES
from leasehold.errors import LeaseholdError, Refused, Unavailable
from leasehold.web.backend import Backend
from leasehold.web.entrance import API_PATH, HEALTH_PATH, LOGIN_PATH, Entrance, Security, find_route, set_cookie
from leasehold.web.gate import Gate
from leasehold.web.problems import find_status, make_problem, respond
from scheduler.ports import StoreUnavailableError
from scheduler.protocol.http_routes import API, DOCS
from workers.logs import get_logger

STATIC: Final = Path(__file__).parent / "static"
SMALLEST_COMPRESSED: Final = 1024
"""Size in bytes from which on an answer is compressed."""
COMPRESSION: Final = 5


def make_app(backend: Backend, gate: Gate, *, api: ASGIApp | None = None, pages: Sequence[Page] = PAGES) -> Starlette:
    """Return the web application of the console. `api` answers requests below /api/v1. The feed runs as long as the
    application: its lifespan starts and stops the feed.
    """
    shown = sorted(pages, key=lambda page: page.order)
    routes: list[BaseRoute] = [
        Route(HEALTH_PATH, check_health),
        Route("/live", live),
        *LOGIN_ROUTES,
        *(route for page in shown for route in page.routes),
        Mount("/static", _StaticFiles(directory=STATIC)),
    ]
    if not any(isinstance(route, Route) and route.path == "/" for route in routes):

        async def start(request: Request) -> Response:
            return redirect(request, shown[0].path)

        routes.append(Route("/", start))
    console = backend.settings.console
    app = Starlette(
        routes=routes,
        lifespan=_make_lifespan(backend),
        middleware=[
            Middleware(Security, console=console),
            *([] if api is None else [Middleware(_Fork, api=Entrance(api, gate))]),
            Middleware(GZipMiddleware, minimum_size=SMALLEST_COMPRESSED, compresslevel=COMPRESSION),
            Middleware(Entrance, gate=gate),
        ],
        exception_handlers={404: not_found, LeaseholdError: explain_failure},
    )
    app.state.backend, app.state.gate, app.state.prefix = backend, gate, console.prefix
    app.state.pages = [page for page in shown if page.in_navigation]
    found = hashlib.sha256()
    for path in sorted(STATIC.rglob("*")):
        if path.is_file():
            found.update(path.read_bytes())
    app.state.static_version = found.hexdigest()[:12]
    app.state.started = secrets.token_hex(4)
    for page in shown:
        page.prepare(app)
    return app


class _Fork:
    """Passes requests for the API directly to the API, which has a router and responses to errors of its own; its page
    for people is one of the console. The responses of the API are compressed only for callers that accept compression.
    """

    def __init__(self, app: ASGIApp, api: ASGIApp) -> None:
        self._app, self._api = app, api
        self._compressed = GZipMiddleware(api, minimum_size=SMALLEST_COMPRESSED, compresslevel=COMPRESSION)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        root, path = scope.get("root_path", ""), scope.get("path", "")
        if scope["type"] != "http" or not path.startswith(f"{root}{API}/") or path == f"{root}{DOCS}":
            await self._app(scope, receive, send)
        elif any(name == b"accept-encoding" and b"gzip" in value for name, value in scope["headers"]):
            await self._compressed(scope, receive, send)
        else:
            await self._api(scope, receive, send)


class _StaticFiles(StaticFiles):
    """Static files that a browser keeps if their address has the hash of the present files, as in pages: the page then
    asks for none of them. A process of another version does not know this hash, and its files are not kept.
    """

    async def get_response(self, path: str, scope: Scope) -> Response:
        answer = await super().get_response(path, scope)
        if scope["query_string"] == f"v={scope['app'].state.static_version}".encode():
            # A day and not a year: files may be replaced below a running process, which then sends them with the hash
            # of the ones before.
            answer.headers["cache-control"] = "public, max-age=86400, immutable"
        return answer


async def check_health(request: Request) -> Response:
    """Answer a health check; no caller is needed. The status is 200 also while the view cannot be read, because a
    restart of this process would not bring Redis back.
    """
    is_valid = request.app.state.backend.feed.status.is_valid
    return PlainTextResponse("ok\n" if is_valid else "ok, but the view in Redis cannot be read\n")


async def not_found(request: Request, error: Exception) -> Response:
    """Answer a request for an unknown page, or for an unknown object such as a reservation."""
    detail = getattr(error, "detail", "") or "Not Found"
    if find_route(request).startswith(API_PATH):
        return respond(make_problem(404, detail))
    what = "This page does not exist." if detail == "Not Found" else detail
    return render(request, "problem.html", status=404, title="Not found", detail=what)


async def explain_failure(request: Request, error: Exception) -> Response:
    """Answer a request that failed because Redis, the database or a worker did not answer, or because a worker refused
    the request.
    """
    if isinstance(error, Refused):
        status, title = find_status(error.errors), "This request was refused"
    else:
        status, title = 503 if isinstance(error, Unavailable) else 502, "This cannot be shown now"
    is_part = "hx-request" in request.headers
    if is_part and status == HTTPStatus.FORBIDDEN:
        # The page shows the text of such an answer for some seconds, and keeps what it has.
        return respond(make_problem(status, str(error)))
    template = "problem_part.html" if is_part else "problem.html"
    return render(request, template, status=status, title=title, detail=str(error))


def _make_lifespan(backend: Backend) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        backend.feed.start()
        watch = asyncio.create_task(backend.watch_database())
        try:
            yield
        finally:
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch
            await asyncio.to_thread(backend.feed.stop)
            await backend.close()

    return lifespan


log = get_logger(__name__)
_FAILURES: Final = {
    "token": "This token is not valid any more. The running stack prints a new address at each start.",
    "": "There is no principal with this name and key.",
}
_ONLY_HERE: Final = (
    "This browser is logged out. The database does not answer, so other processes of the console accept a copy of the"
    " session's cookie until it answers again."
)


async def show_login(request: Request) -> Response:
    failed = request.query_params.get("failed")
    detail = None if failed is None else _FAILURES.get(failed, _FAILURES[""])
    return render(request, "login.html", detail=detail, name="", next=request.query_params.get("next", ""))


async def log_in(request: Request) -> Response:
    """Check the name and key in the form. If they are right, begin a session and show the wanted page; else show the
    form again.
    """
    gate: Gate = request.app.state.gate
    try:
        form = await read_form(request)
    except Refused:
        form = {}
    name, key = form.get("name", [""])[0], form.get("key", [""])[0]
    cookie = await gate.log_in(request, name, key)
    if cookie is None:
        return _fail(request, gate, name, form.get("next", [""])[0])
    log.info("A person logged in.", action="console.login", person=name)
    wanted = form.get("next", [""])[0]
    start = url(request, "/")
    is_ours = wanted.startswith(start) and not wanted.startswith(("//", "/\\")) and wanted.isprintable()
    # Another path could be the address of another host.
    answer = RedirectResponse(wanted if is_ours and "\\" not in wanted else start, 303)
    set_cookie(answer, gate, request, cookie)
    return answer


async def log_out(request: Request) -> Response:
    """End the session and show the login page. If the database does not answer, the response has status 503 and states
    where a copy of the cookie still works; the cookie itself is removed.
    """
    gate: Gate = request.app.state.gate
    try:
        await run_in_threadpool(gate.log_out, request)
    except StoreUnavailableError as error:
        log.warning("A logout was not stored.", action="console.logout_not_stored", error=str(error))
        answer: Response = respond(make_problem(503, _ONLY_HERE))
    else:
        answer = redirect(request, LOGIN_PATH)
    answer.delete_cookie(gate.cookie_name, path=request.scope.get("root_path", "") or "/")
    return answer


def _fail(request: Request, gate: Gate, name: str, wanted: str) -> Response:
    seconds = gate.note_failure(request)
    detail, status = _FAILURES[""], 401
    if seconds is not None:
        detail, status = f"Too many logins failed. Try again in {seconds:.0f} s.", 429
    else:
        peer = request.client.host if request.client else "unknown"
        log.warning("A login failed.", action="console.login_failed", peer=peer)
    answer = render(request, "login.html", status=status, detail=detail, name=name[:200], next=wanted[:2000])
    if seconds is not None:
        answer.headers["retry-after"] = str(int(seconds) + 1)
    return answer


LOGIN_ROUTES: Final = (
    Route(LOGIN_PATH, show_login, methods=["GET"]),
    Route(LOGIN_PATH, log_in, methods=["POST"]),
    Route("/logout", log_out, methods=["POST"]),
)
