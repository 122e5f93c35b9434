"""The web application of the console: the security layer, the gate, the API, the pages and the static files."""

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from leasehold.console.live import live
from leasehold.console.login import LOGIN_ROUTES
from leasehold.console.page import Page, redirect, render
from leasehold.console.pages import PAGES
from leasehold.errors import LeaseholdError, Refused, Unavailable
from leasehold.web.backend import Backend
from leasehold.web.entrance import Entrance, find_route
from leasehold.web.gate import Gate
from leasehold.web.problems import find_status, make_problem, respond
from leasehold.web.security import API_PATH, HEALTH_PATH, Security
from scheduler.protocol.http_routes import API, DOCS

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
        routes.append(Route("/", _make_start(shown[0].path)))
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
    app.state.static_version = _hash_static()
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


def _make_start(path: str) -> Callable[[Request], Awaitable[Response]]:
    async def start(request: Request) -> Response:
        return redirect(request, path)

    return start


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


def _hash_static() -> str:
    """Return a hash of all static files. It is part of their addresses, so that browsers load changed files."""
    found = hashlib.sha256()
    for path in sorted(STATIC.rglob("*")):
        if path.is_file():
            found.update(path.read_bytes())
    return found.hexdigest()[:12]
