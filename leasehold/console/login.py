"""The login page, and the logout."""

from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from leasehold.console.page import read_form, redirect, render, url
from leasehold.errors import Refused
from leasehold.web.entrance import set_cookie
from leasehold.web.gate import Gate
from leasehold.web.problems import make_problem, respond
from leasehold.web.security import LOGIN_PATH
from scheduler.ports import StoreUnavailableError
from workers.logs import get_logger

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
    """Show the form for the name and key of a principal."""
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
    answer = RedirectResponse(_find_next(request, form.get("next", [""])[0]), 303)
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


def _find_next(request: Request, wanted: str) -> str:
    """Return the path of the page to show after the login: `wanted` if it is a path of this console, else the path of
    the first page.
    """
    start = url(request, "/")
    is_ours = wanted.startswith(start) and not wanted.startswith(("//", "/\\")) and wanted.isprintable()
    return wanted if is_ours and "\\" not in wanted else start


LOGIN_ROUTES: Final = (
    Route(LOGIN_PATH, show_login, methods=["GET"]),
    Route(LOGIN_PATH, log_in, methods=["POST"]),
    Route("/logout", log_out, methods=["POST"]),
)
