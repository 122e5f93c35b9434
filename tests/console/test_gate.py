"""The ways into the console, and the rights that each gives."""

import base64
import re
from html import escape
from urllib.parse import parse_qs, urlsplit

import pytest

from scheduler.model.principals import WORKER
from scheduler.ports import StoredPrincipal
from scheduler.protocol.signing import format_key_line, make_key
from scheduler.protocol.verbs import Role
from tests.builders import a_slot
from tests.console.conftest import MakeConsole
from tests.console.served import WRONG_KEY, Console


def a_principal(name: str = "ada", role: Role = "operator", key: str | None = None) -> StoredPrincipal:
    return StoredPrincipal(name=name, role=role, key=key or make_key(), created_at=0.0)


def basic(name: str, key: str) -> str:
    return f"Basic {base64.b64encode(f'{name}:{key}'.encode()).decode()}"


@pytest.mark.parametrize("mode", ["open", "warn", "signed"])
def test_an_unknown_caller_gets_nothing_in_any_access_mode(make_console: MakeConsole, mode: str) -> None:
    browser = make_console(access={"mode": mode}, rows=(a_slot("secret-slot"),)).browser()
    page = browser.get("/about")
    assert (page.status, page.location) == (303, "/login?next=%2Fabout")
    for path in ("/live", "/api/v1/slots", "/nothing"):
        answer = browser.send("GET", path)
        assert answer.status == 401
        assert "secret-slot" not in answer.text
    assert browser.post("/logout").status == 401


def test_the_token_opens_the_console_and_leaves_the_address(console: Console) -> None:
    browser = console.browser()
    answer = browser.get(f"/about?token={console.token}&x=1")
    assert (answer.status, answer.location) == (303, "/about?x=1")
    cookie = answer.headers["set-cookie"]
    assert re.search("HttpOnly", cookie)
    assert re.search("SameSite=strict", cookie)
    assert console.token not in cookie
    assert "local token" in browser.get("/about").text


def test_a_wrong_token_opens_nothing(console: Console) -> None:
    browser = console.browser()
    assert browser.get(f"/?token={WRONG_KEY}").location == "/login?failed=token"
    assert browser.cookies == {}


def test_a_principal_logs_in_with_its_key(console: Console) -> None:
    row = a_principal(role="reader")
    console.add(row)
    browser = console.browser()
    assert browser.post("/login", {"name": "ada", "key": WRONG_KEY}).status == 401
    assert browser.post("/login", {"name": "ada", "key": row.key, "next": "/about"}).location == "/about"
    page = browser.get("/about").text
    assert "ada (reader)" in page
    assert "this needs the role operator" in page


def test_a_login_leads_to_the_wanted_page_with_its_query_also_after_a_wrong_key(console: Console) -> None:
    row, browser = a_principal(), console.browser()
    console.add(row)
    wanted = "/reservations?phase=pending&tag=a%3Db"
    login = browser.get(wanted).location
    assert parse_qs(urlsplit(login).query) == {"next": [wanted]}
    field = f'name="next" value="{escape(wanted)}"'
    assert field in browser.get(login).text
    assert field in browser.post("/login", {"name": "ada", "key": WRONG_KEY, "next": wanted}).text
    assert browser.post("/login", {"name": "ada", "key": row.key, "next": wanted}).location == wanted


def test_programs_send_the_token_or_a_key(console: Console) -> None:
    row = a_principal()
    console.add(row)
    browser = console.browser()
    good = [f"Bearer {console.token}", basic("ada", row.key)]
    bad = [
        f"Bearer {WRONG_KEY}",
        basic("ada", WRONG_KEY),
        basic("bob", row.key),
        "Basic \xe9",
        "Digest x",
        "Bearer",
        "",
    ]
    assert [browser.send("GET", "/about", headers={"Authorization": each}).status for each in good] == [200, 200]
    assert {browser.send("GET", "/about", headers={"Authorization": each}).status for each in bad} == {401}


def test_the_principal_of_the_workers_cannot_log_in(console: Console) -> None:
    (row,) = [each for each in console.store.find_principals() if each.name == WORKER]
    assert console.browser().post("/login", {"name": WORKER, "key": row.key}).status == 401


@pytest.mark.parametrize("name", ["ci:team", "a:a", "a"])
def test_the_name_of_a_principal_may_contain_colons(console: Console, name: str) -> None:
    """The password may be the key or the whole line of the key file."""
    row = a_principal(name, "reader")
    console.add(row)
    console.add(a_principal("ci", "reader"))
    browser = console.browser()
    for password in (row.key, format_key_line(name, row.key, "c-1")):
        answer = browser.send("GET", "/about", headers={"Authorization": basic(name, password)})
        assert f"{name} (reader)" in answer.text
    assert browser.send("GET", "/about", headers={"Authorization": basic("ci", f"team:{WRONG_KEY}")}).status == 401
