"""What other sites, other users of the host, and stolen or forged proofs get: nothing."""

import http.client
import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from starlette.routing import Route

from leasehold.console.pages import PAGES
from leasehold.web.entrance import MOST_BODY, POLICY
from leasehold.web.gate import MOST_FAILURES, SESSION_SECONDS, issue_cookie, make_binding
from leasehold.web.token_file import TokenFileError, read_token, write_token
from scheduler.model.principals import WORKER
from scheduler.ports import StoreUnavailableError
from scheduler.protocol.signing import make_key
from scheduler.protocol.verbs import Role
from scheduler.view.connection import make_redis
from tests.builders import a_lease, a_reservation, a_slot
from tests.console.conftest import MakeConsole
from tests.console.served import Browser, Console
from tests.console.test_gate import a_principal

HOSTILE = "x<script>alert(1)</script>\x1b[2J\u202e\"'&"


def logged_in(console: Console, name: str = "ada", role: Role = "operator") -> Browser:
    row = a_principal(name, role)
    console.add(row)
    browser = console.browser()
    assert browser.post("/login", {"name": name, "key": row.key}).status == 303
    return browser


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1.evil.example:{port}", "127.0.0.1:1", ""]
)
def test_a_request_for_another_host_is_refused(console: Console, host: str) -> None:
    """A page of another site may let its own name point to this address."""
    browser = console.entered()
    answer = browser.send("GET", "/about", headers={"Host": host.format(port=browser.port)})
    assert answer.status == 421
    assert "local token" not in answer.text


@pytest.mark.parametrize(
    "host", ["localhost:{port}", "LOCALHOST:{port}", "[::1]:{port}", "console.example", "console.example:443", "b:8443"]
)
def test_own_names_are_accepted(make_console: MakeConsole, host: str) -> None:
    console = make_console(console={"hosts": ["Console.example", "b:8443"]})
    browser = console.browser()
    authorization = f"Bearer {console.token}"
    answer = browser.send(
        "GET", "/about", headers={"Host": host.format(port=browser.port), "Authorization": authorization}
    )
    assert answer.status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},  # another server on this host
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://127.0.0.1:{port}", "Sec-Fetch-Site": "cross-site"},
    ],
)
def test_a_change_from_a_page_of_another_origin_is_refused(console: Console, headers: Mapping[str, str]) -> None:
    browser = console.entered()
    sent = {name: value.format(port=browser.port) for name, value in headers.items()}
    answer = browser.send("POST", "/logout", headers={**sent, "X-CSRF-Token": browser.csrf()})
    assert answer.status == 403
    assert browser.get("/about").status == 200


def test_a_read_from_a_page_of_another_site_is_refused_unless_the_user_follows_a_link(console: Console) -> None:
    browser = console.entered()
    cross = {"Sec-Fetch-Site": "cross-site"}
    assert browser.send("GET", "/fleet/slots.json", headers={**cross, "Sec-Fetch-Mode": "no-cors"}).status == 403
    assert browser.send("GET", "/about", headers={**cross, "Sec-Fetch-Mode": "navigate"}).status == 200


@pytest.mark.parametrize("token", [None, "", "0" * 64, "\xff"])
def test_a_change_without_the_token_of_its_session_is_refused(console: Console, token: str | None) -> None:
    browser, other = console.entered(), console.entered()
    headers = {} if token is None else {"X-CSRF-Token": token}
    assert browser.post("/fleet/slot/linux-1/cordon", {}, **headers).status == 403
    assert browser.post("/logout", X_CSRF_Token=other.csrf()).status == 403
    assert browser.post("/logout", X_CSRF_Token=browser.csrf()).status == 303
    assert browser.get("/about").status == 303


def test_a_cookie_is_refused_after_the_logout_and_when_it_was_changed(console: Console) -> None:
    browser = logged_in(console)
    (name, value), port = next(iter(browser.cookies.items())), browser.port
    head, body, signature = value.split(".")
    forged = [
        f"{head}.{body}.{'0' * 64}",
        f"{head}.{body[:-2]}AA.{signature}",
        f"2.{body}.{signature}",
        f"{head}.{body}",
        "x" * 5000,
        "..",
        "\xff.\xff.\xff",
    ]
    assert {Browser(browser.host, port, {name: each}).get("/about").status for each in forged} == {303}
    copy = Browser(browser.host, port, dict(browser.cookies))
    assert copy.get("/about").status == 200
    browser.post("/logout", X_CSRF_Token=browser.csrf())
    assert browser.cookies == {}
    assert copy.get("/about").status == 303


def test_a_cookie_is_refused_when_it_is_old_or_from_the_future(console: Console) -> None:
    row = a_principal()
    console.add(row)
    (worker,) = [each for each in console.store.find_principals() if each.name == WORKER]
    binding, now = make_binding(worker.key.encode(), row.key), console.store.now()
    browser = console.browser()
    statuses = {}
    for age in (0.0, SESSION_SECONDS - 30, SESSION_SECONDS + 30, -3600.0):
        browser.cookies = {console.app.state.gate.cookie_name: issue_cookie("principal", "ada", binding, now - age)}
        statuses[age] = browser.get("/about").status
    assert list(statuses.values()) == [200, 200, 303, 303]


def test_a_new_key_and_a_removal_end_the_sessions_of_a_principal(console: Console) -> None:
    ada, bob = logged_in(console, "ada"), logged_in(console, "bob")
    assert (ada.get("/about").status, bob.get("/about").status) == (200, 200)
    console.add(a_principal("ada", key=make_key()))
    console.remove("bob")
    console.app.state.gate.principals.forget()
    assert (ada.get("/about").status, bob.get("/about").status) == (303, 303)


def test_a_new_token_ends_the_sessions_of_the_old_one(make_console: MakeConsole) -> None:
    first = make_console()
    browser = first.entered()
    second = make_console()
    name = second.app.state.gate.cookie_name
    stolen = Browser(browser.host, second.settings.console.port, {name: next(iter(browser.cookies.values()))})
    assert stolen.get("/about").status == 303


def test_wrong_logins_are_slowed_down_and_right_ones_are_not(console: Console) -> None:
    row = a_principal()
    console.add(row)
    browser = console.browser()
    answers = [browser.post("/login", {"name": "ada", "key": f"wrong-{number}"}) for number in range(12)]
    assert [answer.status for answer in answers] == [401] * 10 + [429] * 2
    assert int(answers[-1].headers["retry-after"]) > 0
    assert browser.send("GET", "/about", headers={"Authorization": "Bearer wrong"}).status == 429
    assert browser.get("/?token=wrong").status == 429
    assert browser.post("/login", {"name": "ada", "key": row.key}).status == 303


def test_not_every_failed_login_reads_the_database(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, looks = console.app.state.gate.principals, 0
    look_again = reader.look_again

    def look() -> None:
        nonlocal looks
        looks += 1
        look_again()

    monkeypatch.setattr(reader, "look_again", look)
    browser = console.browser()
    for number in range(20):
        browser.post("/login", {"name": "ada", "key": f"wrong-{number}"})
        browser.send("GET", "/about", headers={"Authorization": f"Bearer wrong-{number}"})
    assert looks <= MOST_FAILURES


def test_a_login_shows_no_page_of_another_site(console: Console) -> None:
    row = a_principal()
    console.add(row)
    for wanted in (
        "//evil.example",
        "https://evil.example",
        "/\\evil.example",
        "\\\\evil.example",
        "evil",
        "/a\r\nX: y",
    ):
        answer = console.browser().post("/login", {"name": "ada", "key": row.key, "next": wanted})
        assert (answer.status, answer.location) == (303, "/"), wanted
    assert console.browser().get(f"//evil.example/?token={console.token}").location == "/evil.example/"


def test_the_header_of_a_proxy_counts_only_from_a_trusted_address(make_console: MakeConsole) -> None:
    trusted = make_console(console={"user_header": "X-User", "trusted_proxies": ["127.0.0.0/8"]})
    trusted.add(a_principal("ada", role="reader"))
    browser = trusted.browser(X_User="ada")
    assert "ada (reader)" in browser.get("/about").text
    assert trusted.browser(X_User="bob").get("/about").status == 303
    assert trusted.browser(X_User=WORKER).get("/about").status == 303
    # A page cannot add the header, but its requests get it from the proxy.
    assert browser.post("/fleet/slot/a/cordon").status == 403
    assert browser.post("/fleet/slot/a/cordon", X_CSRF_Token=browser.csrf()).status == 200
    foreign = make_console(console={"user_header": "X-User", "trusted_proxies": ["10.0.0.1"]})
    assert foreign.browser(X_User="ada").get("/about").status == 303


def test_a_reader_and_a_console_that_only_reads_change_nothing(make_console: MakeConsole) -> None:
    console = make_console(rows=(a_slot("linux-1"),))
    reader = logged_in(console, "eve", role="reader")
    answer = reader.post("/fleet/slot/linux-1/cordon", X_CSRF_Token=reader.csrf())
    assert "Nothing was changed: eve has the role reader; this needs the role operator." in answer.text
    closed = make_console(console={"read_only": True}, rows=(a_slot("linux-1"),))
    browser = closed.entered()
    assert "console.read_only" in browser.post("/fleet/slot/linux-1/cordon", X_CSRF_Token=browser.csrf()).text


@pytest.mark.parametrize("mode", ["warn", "signed"])
def test_the_token_changes_nothing_if_requests_must_be_signed(make_console: MakeConsole, mode: str) -> None:
    browser = make_console(access={"mode": mode}).entered()
    page = browser.get("/about").text
    assert f"access.mode is {mode}" in page
    answer = browser.post("/fleet/slot/linux-1/cordon", X_CSRF_Token=browser.csrf())
    assert "Nothing was changed: access.mode is" in answer.text


def test_a_host_sees_no_page(console: Console) -> None:
    row = a_principal("lab-1", role="host")
    console.add(row)
    browser = console.browser()
    browser.post("/login", {"name": "lab-1", "key": row.key})
    assert browser.get("/fleet").status == 403


def test_every_answer_has_the_headers_that_close_the_browser(console: Console) -> None:
    for path in ("/about", "/login", "/nothing", "/healthz", "/static/console.css"):
        headers = console.entered().get(path).headers
        assert headers["content-security-policy"] == POLICY
        assert headers["x-frame-options"] == "DENY"
        assert headers["x-content-type-options"] == "nosniff"
        assert "server" not in headers
    assert "no-store" in console.entered().get("/about").headers["cache-control"]


def test_a_browser_keeps_the_static_files_of_a_page_and_no_other_answer(console: Console) -> None:
    browser = console.entered()
    page = browser.get("/reservations").text
    files = re.findall(r'(?:href|src)="(/static/[^"]+)"', page)
    assert len(files) > 4
    assert {browser.get(path).headers["cache-control"] for path in files} == {"public, max-age=86400, immutable"}
    # A page of another version of Leasehold asks with the hash of other files.
    for path in ("/static/console.css", "/static/console.css?v=0", f"{files[0]}0", f"{files[0]}&v=0"):
        assert browser.get(path).headers["cache-control"] == "no-cache", path
    missing = browser.get(re.sub(r"[^/]+\?", "nothing.css?", files[0]))
    assert (missing.status, missing.headers["cache-control"]) == (404, "no-cache")


def test_no_template_has_a_script_or_style_of_its_own() -> None:
    folder = Path(__file__).parents[2] / "leasehold" / "console" / "templates"
    pattern = re.compile(
        r"<style|\sstyle=|\son[a-z]+=|<script(?![^>]*(src=|application/json))|javascript:|\|\s*safe", re.IGNORECASE
    )
    assert {
        path.name: pattern.findall(path.read_text())
        for path in folder.glob("*.html")
        if pattern.search(path.read_text())
    } == {}


def test_texts_of_users_become_neither_markup_nor_control(make_console: MakeConsole) -> None:
    slot = a_slot("linux-1", labels={HOSTILE: HOSTILE}, zone=HOSTILE, address=HOSTILE)
    row = a_reservation(HOSTILE, phase="leased", leases=(a_lease("linux-1", component=HOSTILE),))
    browser = make_console(rows=(slot, row)).entered()
    for path in (
        "/fleet",
        "/fleet/slot/linux-1",
        "/fleet?text=%3Cscript%3E%1b",
        "/fleet/slot/%3Cscript%3E%1b",
        "/fleet?page=%3Cscript%3E",
    ):
        text = browser.get(path).text
        assert "<script>" not in text, path
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text), path
    assert "\\x1b[2J\\u202e" in browser.get("/fleet/slot/linux-1").text


def test_a_path_prefix_works_whether_the_proxy_removes_it_or_not(make_console: MakeConsole) -> None:
    console = make_console(console={"prefix": "/lease/hold"})
    browser = console.browser()
    answer = browser.get(f"/lease/hold/about?token={console.token}")
    assert answer.location == "/lease/hold/about"
    assert "Path=/lease/hold" in answer.headers["set-cookie"]
    assert 'href="/lease/hold/fleet"' in browser.get("/lease/hold/about").text
    assert browser.get("/about").status == 200
    assert console.browser().get("/about").location == "/lease/hold/login?next=%2Flease%2Fhold%2Fabout"
    for path in ("/lease/hold/static/console.css", "/static/console.css", "/lease/hold/healthz", "/healthz"):
        assert browser.get(path).status == 200, path
    assert browser.get("/lease/hold").location == "/lease/hold/fleet"


def list_changes() -> list[str]:
    """Return an address for each form of the pages."""
    routes = [route for page in PAGES for route in page.routes if isinstance(route, Route)]
    paths = [route.path for route in routes if "POST" in (route.methods or ())]
    return [
        re.sub(r"\{verb\}", "cancel", path).replace("{name:path}", "a").replace("{slot:path}", "a") for path in paths
    ]


def test_no_form_is_read_before_the_right_of_the_caller_is_checked(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = logged_in(console, "eye", "reader")
    headers = {"X-CSRF-Token": browser.csrf()}
    monkeypatch.setattr("leasehold.console.page.parse_qs", None)
    monkeypatch.setattr("tomllib.loads", None)
    found = {path: browser.send("POST", path, b"rules=a", headers).status for path in list_changes()}
    assert {path for path, status in found.items() if status >= 500} == set()
    assert [found["/what-if/preview"], found["/what-if/apply"], found["/reservations/bulk"]] == [403] * 3


def test_a_dotted_key_of_very_many_parts_is_refused(console: Console) -> None:
    browser = console.entered()
    rules = ".".join(["a"] * 60_000) + " = 1"
    answer = browser.post("/what-if/preview", {"rules": rules}, X_CSRF_Token=browser.csrf())
    assert "a key has more than 32 parts" in answer.text


def test_a_cookie_is_found_without_the_parser_whose_time_grows_with_the_square(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = logged_in(console)
    monkeypatch.setattr("starlette.requests.cookie_parser", None)
    browser.cookies["x"] = '"' + "\\" * 10_000 + '"'
    assert browser.get("/about").status == 200


def test_the_form_of_a_login_is_short(console: Console) -> None:
    """It is read before the caller is known."""
    answer = console.browser().post("/login", {"name": "a" * 20_000, "key": "b"})
    assert (answer.status, answer.text) == (413, "leasehold: the body has more than 16 kB\n")


@pytest.mark.parametrize("chunked", [True, False])
def test_a_body_of_more_than_two_megabytes_is_refused(console: Console, chunked: bool) -> None:
    browser = console.browser()
    connection = http.client.HTTPConnection(browser.host, browser.port, timeout=20)
    part = b"x" * 65536
    count = MOST_BODY // len(part) + 2
    headers = {"Origin": f"http://127.0.0.1:{browser.port}", "Content-Type": "application/x-www-form-urlencoded"}
    try:
        if chunked:
            connection.request("POST", "/login", (part for _ in range(count)), headers, encode_chunked=True)
        else:
            connection.request("POST", "/login", b"", {**headers, "Content-Length": str(count * len(part))})
        status = connection.getresponse().status
    except (BrokenPipeError, ConnectionResetError):
        status = 413  # refused while it was sent
    finally:
        connection.close()
    assert status == 413
    assert browser.get("/healthz").status == 200


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_token_that_other_users_could_read_is_not_used(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "token"
    write_token(path)
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(mode)
    with pytest.raises(TokenFileError, match="expected a file of mode 0600"):
        read_token(path)


def test_a_file_without_a_usable_token_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    with pytest.raises(TokenFileError, match="No such file"):
        read_token(path)
    for text in (b"", b"short", b"x" * 31, b"x" * 40 + b"\x1b", b"\xff" * 40):
        path.write_bytes(text)
        path.chmod(0o600)
        with pytest.raises(TokenFileError):
            read_token(path)
    path.unlink()
    path.symlink_to(write_other(tmp_path))
    with pytest.raises(TokenFileError, match="symbolic"):
        read_token(path)
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(TokenFileError, match="regular file"):
        read_token(path)


def write_other(folder: Path) -> Path:
    other = folder / "other"
    write_token(other)
    return other


def test_a_logout_holds_in_every_process_and_after_a_restart(make_console: MakeConsole) -> None:
    first, second = make_console(), make_console()
    ada = a_principal()
    first.add(ada)
    browser = first.browser()
    browser.post("/login", {"name": "ada", "key": ada.key})
    (value,) = browser.cookies.values()
    other = second.browser()
    other.cookies = {second.app.state.gate.cookie_name: value}
    assert other.get("/about").status == 200
    assert browser.post("/logout", X_CSRF_Token=browser.csrf()).status == 303
    assert other.get("/about").status == 303
    # Redis has no part in it.
    make_redis(first.settings.broker_url or "").flushall()
    third = make_console()
    restarted = third.browser()
    restarted.cookies = {third.app.state.gate.cookie_name: value}
    assert restarted.get("/about").status == 303
    assert restarted.send("GET", "/api/v1/status").status == 401


def test_a_logout_without_a_database_is_stored_when_it_answers_again(
    make_console: MakeConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = make_console(), make_console()
    browser = logged_in(first)
    csrf, (value,) = browser.csrf(), tuple(browser.cookies.values())
    copies = [each.browser() for each in (first, second)]
    for console, copy in zip((first, second), copies, strict=True):
        copy.cookies = {console.app.state.gate.cookie_name: value}

    def fail(*_: object) -> None:
        raise StoreUnavailableError("the database does not answer")

    store = first.app.state.gate.principals.store
    with monkeypatch.context() as lost:
        lost.setattr(store, "transaction", fail)
        answer = browser.post("/logout", X_CSRF_Token=csrf)
        assert (answer.status, browser.cookies) == (503, {})
        assert [copy.get("/about").status for copy in copies] == [303, 200]
    assert logged_in(first, "bob").get("/about").status == 200
    assert [copy.get("/about").status for copy in copies] == [303, 303]
