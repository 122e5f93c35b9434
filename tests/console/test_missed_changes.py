"""A page shows the changes that its stream did not bring, without a further change, in Debian's Chromium."""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from examples.browser import resize
from scheduler.model.reservations import Reservation
from scheduler.model.waits import Waits
from testbed.processes import wait_for
from tests.builders import a_reservation, a_slot
from tests.console.chromium import Window, open_window
from tests.console.conftest import MakeConsole
from tests.console.served import Console

pytestmark = pytest.mark.timeout(240)
STREAM = "*/live*"
COUNTS = "#counts"
CUT = """[...document.querySelectorAll('main *')]
    .filter((each) => each.checkVisibility() && each.clientWidth && !each.closest('.hidden, input, select'))
    .filter((each) => each.scrollWidth > each.clientWidth + 1 && getComputedStyle(each).overflowX !== 'visible')
    .map((each) => each.outerHTML.slice(0, 120))"""
"""The elements whose content is wider than they are, so that it is cut or scrolls."""


@contextmanager
def without_stream(window: Window) -> Iterator[None]:
    """Let the streams of pages that are opened in the block fail. Such a page begins a stream some seconds later."""
    window.driver.execute_cdp_cmd("Network.enable", {})
    window.driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": [STREAM]})
    try:
        yield
    finally:
        window.driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})


@contextmanager
def opened(console: Console) -> Iterator[Window]:
    with open_window(f"http://127.0.0.1:{console.settings.console.port}") as window:
        window.open(f"/about?token={console.token}")
        yield window


def cancelled(row: Reservation) -> Reservation:
    return msgspec.structs.replace(row, phase="cancelled", version=row.version + 1, reason="not wanted any more")


def test_the_list_shows_a_change_between_its_answer_and_its_stream(make_console: MakeConsole) -> None:
    console = make_console(rows=(a_reservation("r1", sequence=1),))
    with opened(console) as window:
        with without_stream(window):
            window.open("/reservations")
            window.await_text("#rows", "r1")
            console.publish(a_reservation("r2", sequence=2))
        window.await_text("#rows", "r2")
        assert "2\npending" in window.text(COUNTS)


def test_the_list_shows_a_change_while_the_page_had_no_stream(make_console: MakeConsole) -> None:
    console = make_console(rows=(a_reservation("r1", sequence=1),))
    with opened(console) as window:
        window.open("/reservations")
        window.await_text("#rows", "r1")
        # A hidden page ends its stream, and begins another when it is shown.
        feed = console.app.state.backend.feed
        window.run("(window.leasehold.disconnect(), 1)")
        wait_for(lambda: feed.subscriptions == 0, "the end of the stream")
        console.publish(a_reservation("r2", sequence=2))
        wait_for(lambda: "r2" in feed.view.reservations, "the change in the feed")
        window.run("(window.leasehold.connect(), 1)")
        window.await_text("#rows", "r2")
        assert "2\npending" in window.text(COUNTS)


def test_a_reservation_shows_a_change_between_its_answer_and_its_stream(make_console: MakeConsole) -> None:
    row = a_reservation("r1", sequence=1)
    console = make_console(rows=(row,))
    with opened(console) as window:
        with without_stream(window):
            window.open("/reservations/r1")
            window.await_text("#course .badge", "pending")
            console.publish(cancelled(row))
        window.await_text("#course .badge", "cancelled")


def test_the_map_shows_a_change_while_its_document_was_on_the_way(make_console: MakeConsole) -> None:
    console = make_console(rows=(a_slot("linux-1"),))
    with opened(console) as window:
        window.open("/fleet")
        wait_for(lambda: window.run("window.leasehold?.fleet?.slots().size") == 1, "the box")
        # The document was made before the change, and arrives after `hello`, which has the revision of the change.
        window.driver.execute_script("""
            window.leasehold.disconnect();
            const send = window.fetch;
            window.held = false;
            window.fetch = async (...given) => {
              if (window.held || !String(given[0]).endsWith("/fleet/slots.json")) return send(...given);
              window.held = true;
              const answer = await send(...given);
              await new Promise((resolve) => { window.release = resolve; });
              return answer;
            };
            document.dispatchEvent(new CustomEvent("live:hello", { detail: { revision: 1e9, valid: true } }));
        """)
        wait_for(lambda: window.run("!!window.release"), "the document on its way")
        console.publish(a_slot("linux-2"))
        window.run("(document.addEventListener('live:hello', () => (window.greeted = true)), 1)")
        window.run("(window.leasehold.connect(), 1)")
        wait_for(lambda: window.run("window.greeted"), "hello")
        window.run("(window.release(), 1)")
        wait_for(lambda: window.run("window.leasehold.fleet.slots().size") == 2, "the second box")


def test_the_list_shows_the_reason_of_a_wait_as_soon_as_a_tick_has_found_it(make_console: MakeConsole) -> None:
    console = make_console(rows=(a_reservation("r1", sequence=1),))
    with opened(console) as window:
        window.open("/reservations")
        window.await_text("#rows", "not in the report")
        console.view_cache.write_report({"at": 5.0}, Waits(["r1"], [("at_max_slots", "the pool is full")]))
        window.await_text("#rows", "at_max_slots")


def test_a_list_that_changes_keeps_the_focus(make_console: MakeConsole) -> None:
    console = make_console(rows=(a_reservation("r1", sequence=1),))
    with opened(console) as window:
        window.open("/reservations")
        window.find("#rows a[href$='/reservations/r1']")
        window.run("(document.querySelector(\"#rows a[href$='/reservations/r1']\").focus(), 1)")
        console.publish(a_reservation("r2", sequence=2))
        window.await_text("#rows", "r2")
        assert window.run("document.activeElement.textContent") == "r1"


def test_a_search_and_a_filter_apply_at_once_and_a_narrow_window_has_cards(make_console: MakeConsole) -> None:
    sentence = "asks 64 cpus, and the largest machine of every pool has 8 of them, so that no change of a limit helps"
    rows = [a_reservation(f"r{number}", sequence=number, account=f"acc-{number % 2}") for number in range(1, 9)]
    console = make_console(rows=(*rows, a_reservation("a-name-of-many-words-" * 4, sequence=9)))
    console.view_cache.write_report({"at": 5.0}, Waits(["r7"], [("never_fits", sentence)]))
    with opened(console) as window:
        window.open("/reservations?sort=-id")
        window.find("#rows a[href$='/r7']")
        ActionChains(window.driver).send_keys("/").send_keys("largest").perform()
        wait_for(lambda: len(window.find_all("#rows tbody tr")) == 1, "the row that the search finds")
        wait_for(lambda: window.driver.current_url.endswith("/reservations?text=largest&sort=-id"), "the address")
        ActionChains(window.driver).send_keys(Keys.ESCAPE).perform()
        wait_for(lambda: len(window.find_all("#rows tbody tr")) == 9, "all rows")
        assert window.run("document.activeElement.id") == "search"
        # A row is one line; a narrow window shows the same as a card, with the whole sentence.
        line = "[...document.querySelectorAll('#rows tbody tr')].map((each) => each.offsetHeight)"
        assert max(window.run(line)) <= 1.2 * min(window.run(line))
        resize(window.driver, width=400)
        assert window.run(CUT) == []
        assert sentence in window.text("#rows")
        window.click("#filter summary")
        window.use("#f-account", lambda each: each.send_keys("acc-1"))
        wait_for(lambda: window.run("document.querySelector('#names-account').options.length") == 1, "the name")
        wait_for(lambda: len(window.find_all("#rows tbody tr")) == 4, "the rows of the account")
        window.click("#sort-id")
        wait_for(lambda: window.driver.current_url.endswith("account=acc-1&sort=id"), "the order in the address")
        window.await_text("#rows tbody tr:first-child", "r1")
        assert window.run("document.activeElement.id") == "sort-id"
        assert window.find_all(".bulk")
        window.open("/reservations?text=nothing-has-this")
        window.find("#rows .empty")
        assert window.find_all(".bulk") == [], "no row, and nothing to change"
        assert window.errors() == []
