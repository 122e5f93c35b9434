"""The state of the scheduler in the sidebar, and the page Doctor to which it leads."""

import time

import pytest

from leasehold.console.pages.doctor import find_alerts, find_exceeded
from scheduler.model.launch_backoff import Hold
from scheduler.model.view import Row, View
from scheduler.view.connection import make_redis
from tests.builders import NOW, a_slot
from tests.console.chromium import open_window
from tests.console.conftest import MakeConsole
from tests.console.served import Console


def tick(console: Console, age: float = 0.0, **fields: object) -> None:
    console.view_cache.write_report({"at": time.time() - age, "term": 1, **fields})


def test_a_scheduler_that_ticks_is_well(console: Console) -> None:
    tick(console)
    text = console.entered().get("/doctor/pulse").text
    assert "Scheduler well" in text
    assert 'data-level="ok"' in text
    assert "last tick <time" in text
    assert 'href="/doctor"' in text
    assert "alert" not in text


@pytest.mark.parametrize("age", [None, 60.0])
def test_a_scheduler_without_a_tick_for_three_intervals_is_not_well(console: Console, age: float | None) -> None:
    if age is not None:
        tick(console, age)
    browser = console.entered()
    assert 'data-level="failure"' in browser.get("/doctor/pulse").text
    assert "1 alert" in browser.get("/doctor/pulse").text
    page = browser.get("/doctor").text
    assert "there was no tick yet" in page if age is None else "the last tick was 60 s ago" in page
    assert "Start a beat" in page


def test_slots_in_error_and_exceeded_budgets_are_alerts_of_a_scheduler_that_works(make_console: MakeConsole) -> None:
    console = make_console(rows=(a_slot("linux-1", state="error", error="no image"),))
    status = {"budget": "all", "action": "warn", "running": 2.0, "day": 0.0, "month": 0.0}
    tick(console, budgets=[{**status, "per_hour": 1.0, "per_day": None, "per_month": None}])
    browser = console.entered()
    assert "2 alerts" in browser.get("/doctor/pulse").text
    assert 'data-level="warning"' in browser.get("/doctor/pulse").text
    assert "1 slot is in error" in browser.get("/doctor").text
    assert "exceeded: hour" in browser.get("/doctor").text


@pytest.mark.parametrize(
    ("row", "outcome", "text"),
    [
        (Hold(id="h", pool="*", kind="auth", refused_at=NOW, until=NOW + 9), "warning", "AWS refused the credentials"),
        (
            Hold(id="h", pool="linux", kind="quota", refused_at=NOW, until=NOW + 9, code="VcpuLimit"),
            "warning",
            "VcpuLimit",
        ),
        (a_slot("linux-1", state="terminating", refusal="OperationNotPermitted"), "failure", "refuses to end"),
        # They end by themselves.
        (Hold(id="h", pool="linux", kind="capacity", refused_at=NOW, until=NOW + 9), None, ""),
        (Hold(id="h", pool="linux", kind="auth", refused_at=NOW, until=NOW - 1), None, ""),
        (a_slot("linux-1", state="terminating"), None, ""),
    ],
)
def test_what_needs_a_person_is_an_alert(row: Row, outcome: str | None, text: str) -> None:
    found = find_alerts(View([row]), NOW)
    assert [each.outcome for each in found] == ([] if outcome is None else [outcome])
    assert all(text in each.text for each in found)


def test_a_report_of_another_version_has_no_alert() -> None:
    assert find_exceeded([{"budget": 5}]) == find_exceeded("none") == []


def test_the_doctor_writes_nothing_and_names_remedies(console: Console, redis_url: str) -> None:
    tick(console, 60.0)
    text = console.entered().get("/doctor/findings").text
    assert "is more than" not in text
    assert text.index("failure") < text.index("ok</span>")
    assert "a row was written" not in text
    with make_redis(redis_url) as client:
        assert client.llen("ticks") == 0


@pytest.mark.parametrize("width", [400, 1280])
def test_the_sidebar_leads_to_the_doctor_and_is_live(console: Console, width: int) -> None:
    tick(console)
    with open_window(f"http://127.0.0.1:{console.settings.console.port}", width=width) as window:
        window.open(f"/about?token={console.token}")
        window.await_text(".health", "Scheduler well")
        window.await_text(".health", "last tick")
        with make_redis(console.settings.view_url or "") as client:
            client.flushall()
        window.await_text(".health", "Not well")
        window.click(".health a")
        assert window.text("h1") == "Doctor"
        window.await_text("main", "cannot be read")
        assert window.errors() == []
