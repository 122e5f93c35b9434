"""The pages about reservations, accounts, queues, events and rules, without a worker: what they show, and their
filters.
"""

import re

import pytest

from leasehold.common.signing import make_key
from scheduler.model.reservations import Reservation
from scheduler.ports import StoredPrincipal
from tests.builders import a_reservation
from tests.console.conftest import MakeConsole
from tests.console.served import Browser, Console
from tests.console.test_gate import basic

KEY = make_key()


def row(name: str, number: int, **changes: object) -> Reservation:
    """Return a reservation as the store writes it."""
    return a_reservation(name, version=1, marked_at=1_800_000_000.0 + number, sequence=number, **changes)


@pytest.fixture
def console(make_console: MakeConsole) -> Console:
    rows = [row(f"build-{number}", number) for number in range(1, 121)]
    return make_console(tuple(rows))


def listed(text: str) -> list[str]:
    return re.findall(r'href="/reservations/([^"/]+)"', text)


def test_a_list_has_fifty_rows_and_leads_to_the_next_ones(console: Console) -> None:
    browser = console.entered()
    first = browser.get("/reservations?phase=pending")
    assert listed(first.text) == [f"build-{number}" for number in range(1, 51)]
    following = re.search(r'href="([^"]+)" rel="next"', first.text)
    assert following is not None
    second = browser.get(following[1].replace("&amp;", "&"))
    assert listed(second.text) == [f"build-{number}" for number in range(51, 101)]


def test_a_list_of_all_phases_has_the_newest_first(console: Console) -> None:
    assert listed(console.entered().get("/reservations").text)[:2] == ["build-120", "build-119"]


@pytest.mark.parametrize(
    ("query", "fault"),
    [
        ("phase=sleeping", "phase: expected one of"),
        ("tag=plain", "tag: expected KEY=VALUE, got plain"),
        ("after=x", "after: expected the number of a row"),
        ("colour=red", "colour: this filter is not known"),
    ],
)
def test_a_broken_filter_is_named_on_the_page(console: Console, query: str, fault: str) -> None:
    answer = console.entered().get(f"/reservations?{query}")
    assert answer.status == 200
    assert fault in answer.text


def test_the_filters_select_rows(console: Console) -> None:
    console.publish(row("other", 500, account="ci", tags={"team": "web"}))
    browser = console.entered()
    for query in ("account=ci", "tag=team%3Dweb", "id=oth"):
        assert listed(browser.get(f"/reservations?{query}").text) == ["other"]


def test_a_reservation_has_a_page_without_a_worker(console: Console) -> None:
    answer = console.entered().get("/reservations/build-1")
    assert answer.status == 200
    assert "No events are stored" in answer.text


def offered(browser: Browser, name: str) -> list[str]:
    """Return the changes that the page of a reservation offers."""
    text = browser.get(f"/reservations/{name}").text
    return re.findall(r"/do/(\w+)\"[^>]*>(?:<label[^>]*>[^<]*</label><input[^>]*>)?<button(?: class=\"\w*\")?>", text)


def test_a_change_that_the_worker_would_refuse_is_not_offered(console: Console) -> None:
    """The token of an open cluster does not sign, so a worker takes its requests for those of a holder."""
    console.publish(row("keyed", 500, key_hash="0" * 64), row("mine", 501, principal="ci"))
    for name, role in (("ops", "operator"), ("ci", "producer"), ("other", "producer")):
        console.add(StoredPrincipal(name=name, role=role, key=KEY, created_at=0.0))  # type: ignore[arg-type]
    every = ["cancel", "suspend", "resume", "priority"]
    token, ops, ci, other = (
        console.entered(),
        *(console.browser(Authorization=basic(name, KEY)) for name in ("ops", "ci", "other")),
    )
    assert offered(token, "keyed") == ["cancel", "priority"]
    assert "has a key" in token.get("/reservations/keyed").text
    assert offered(ops, "keyed") == offered(token, "mine") == offered(ci, "mine") == offered(ops, "mine") == every
    assert offered(other, "mine") == []
    assert "its own reservations only" in other.get("/reservations/mine").text


def test_a_hostile_id_stays_text(console: Console) -> None:
    console.publish(row("<script>alert(1)</script>\x1b[31m", 900))
    text = console.entered().get("/reservations").text
    assert "<script>alert" not in text
    assert "\x1b" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_a_preview_names_what_is_changed_and_what_is_left(console: Console) -> None:
    browser = console.entered()
    fields = {"verb": "priority", "priority": "7", "id": ["build-1", "gone"]}
    answer = browser.post("/reservations/bulk/preview", fields, X_CSRF_Token=browser.csrf())
    assert "Set the priority to 7: 1 reservation" in answer.text
    assert "the view does not have it" in answer.text


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"verb": "cancel"}, "no reservation is selected"),
        ({"verb": "explode", "id": "build-1"}, "verb: expected cancel or priority"),
        ({"verb": "priority", "priority": "-1", "id": "build-1"}, "priority: expected a number that is not negative"),
        ({"verb": "priority", "priority": "nan", "id": "build-1"}, "priority: expected a number"),
    ],
)
def test_a_wrong_bulk_change_changes_nothing(console: Console, fields: dict[str, str], fault: str) -> None:
    browser = console.entered()
    for path in ("/reservations/bulk/preview", "/reservations/bulk"):
        assert fault in browser.post(path, fields, X_CSRF_Token=browser.csrf()).text


@pytest.mark.parametrize("path", ["/events", "/accounts", "/queues", "/events?slot=x&name=y"])
def test_the_other_pages_are_shown_for_an_empty_cluster(console: Console, path: str) -> None:
    answer = console.entered().get(path)
    assert answer.status == 200, answer.text
    assert "<h1>" in answer.text
