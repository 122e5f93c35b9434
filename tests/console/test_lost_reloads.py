"""A part of a page whose reload failed is loaded again without a further change, in Debian's Chromium."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from leasehold.console.pages.events import MOST_NEW
from scheduler.model.events import Event
from testbed.processes import wait_for
from tests.builders import a_reservation, a_slot
from tests.console.chromium import Window, open_window
from tests.console.conftest import MakeConsole

pytestmark = pytest.mark.timeout(240)

COUNT_FAILURES = """
window.failures = 0;
document.addEventListener("htmx:sendError", () => window.failures++);
const send = window.fetch;
window.fetch = (...given) => send(...given).catch((error) => { window.failures++; throw error; });
"""


@contextmanager
def blocked(window: Window, pattern: str) -> Iterator[None]:
    """Let requests to addresses of this pattern fail, until one has failed in the block."""
    window.driver.execute_cdp_cmd("Network.enable", {})
    window.driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": [pattern]})
    window.driver.execute_script(COUNT_FAILURES)
    try:
        yield
        wait_for(lambda: window.run("window.failures > 0"), f"a request to {pattern} that fails")
    finally:
        window.driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})


def test_the_list_of_reservations_is_loaded_again(make_console: MakeConsole) -> None:
    console = make_console(rows=(a_reservation("r1", sequence=1),))
    with open_window(f"http://127.0.0.1:{console.settings.console.port}") as window:
        window.open(f"/reservations?token={console.token}")
        window.await_text("#rows", "r1")
        with blocked(window, "*/reservations*"):
            console.publish(a_reservation("r2", sequence=2))
        window.await_text("#rows", "r2")


def test_the_table_of_the_fleet_is_loaded_again(make_console: MakeConsole) -> None:
    console = make_console(rows=(a_slot("linux-1"),))
    with open_window(f"http://127.0.0.1:{console.settings.console.port}") as window:
        window.open(f"/fleet?token={console.token}")
        wait_for(lambda: window.run("window.leasehold?.fleet?.slots().size") == 1, "the box")
        with blocked(window, "*/fleet/table*"):
            console.publish(a_slot("linux-2"))
        window.await_text("#table", "linux-2")


def test_events_are_loaded_again(make_console: MakeConsole) -> None:
    console = make_console()
    with open_window(f"http://127.0.0.1:{console.settings.console.port}") as window:
        window.open(f"/events?token={console.token}")
        window.find("#events")
        window.run("(window.leasehold.disconnect(), 1)")  # the stream would bring the event
        with blocked(window, "*/events/new*"):
            with console.store.transaction() as transaction:
                transaction.append_events([Event(at=1.0, name="slot_ready", cause="cloud", slot="s-1")])
            window.click("#follow")
            window.click("#follow")
        window.await_text("#events", "s-1")


def test_a_page_that_missed_more_events_than_it_shows_has_the_newest_ones_without_a_gap(
    make_console: MakeConsole,
) -> None:
    console = make_console()

    def store(*slots: str) -> None:
        with console.store.transaction() as transaction:
            transaction.append_events([Event(at=1.0, name="slot_ready", cause="cloud", slot=each) for each in slots])

    store("first")
    with open_window(f"http://127.0.0.1:{console.settings.console.port}") as window:
        window.open(f"/events?token={console.token}")
        window.await_text("#events", "first")
        window.run("(window.leasehold.disconnect(), 1)")  # as a hidden page
        store(*(f"s-{number}" for number in range(MOST_NEW + 100)), "last")
        window.click("#follow")
        window.click("#follow")
        window.await_text("#events tr:first-child", "last")
        rows = window.run("[...document.querySelectorAll('#events tbody a')].map((each) => each.textContent)")
    assert rows == ["last", *(f"s-{number}" for number in range(MOST_NEW + 99, 100, -1))]
