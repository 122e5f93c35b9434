"""The page Fleet by the size of the fleet: cards, boxes with a tooltip, and the mosaic; its legend and its tiles."""

import re
from typing import Any

import pytest
from selenium.webdriver.common.action_chains import ActionChains

from scheduler.model.reservations import Reservation
from scheduler.model.slots import Slot
from testbed.processes import wait_for
from tests.builders import a_lease, a_reservation, a_slot
from tests.console.chromium import Window, open_window
from tests.console.conftest import MakeConsole

FITS = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
LIT = "[...document.querySelectorAll('[data-card].lit')].map((each) => each.dataset.card).sort()"
LEGEND = "[...document.querySelectorAll('#legend li')].map((each) => each.textContent)"


def a_fleet(count: int) -> tuple[Slot | Reservation, ...]:
    """Return a fleet of `count` slots. A gang has the first two; two accounts share the third."""
    slots: list[Any] = [
        a_slot(f"linux-{number}", zone="a", resources={"cpus": 4.0}, instance_type="m5.xlarge", market="spot")
        for number in range(1, count - 1)
    ]
    slots += [a_slot(f"linux-{count - 1}", state="empty"), a_slot(f"linux-{count}", state="empty")]
    slots[3] = a_slot("linux-4", zone="a", resources={"cpus": 4.0}, state="draining", cordoned=True)
    one = {"cpus": 1.5}
    leases = (a_lease("linux-1", resources=one), a_lease("linux-2", resources=one))
    return (
        *slots,
        a_reservation("gang", phase="leased", leases=leases),
        a_reservation("r1", phase="leased", account="ci", leases=(a_lease("linux-3", resources=one),)),
        a_reservation("r2", phase="leased", account="web", leases=(a_lease("linux-3", resources={"cpus": 0.25}),)),
        a_reservation("r3", phase="leased", account="web", leases=(a_lease("linux-4", resources=one),)),
    )


def point_at(window: Window, selector: str) -> None:
    window.use(selector, lambda each: ActionChains(window.driver).move_to_element(each).perform())


@pytest.mark.parametrize("width", [400, 1280])
def test_a_small_fleet_is_shown_as_cards(make_console: MakeConsole, width: int) -> None:
    console = make_console(rows=a_fleet(8))
    with open_window(f"http://127.0.0.1:{console.settings.console.port}", width=width) as window:
        window.open(f"/fleet?token={console.token}")
        wait_for(lambda: window.run("document.documentElement.dataset.revision"), "the fleet")
        cards = window.text("[data-card=linux-3]").split()
        for text in ("linux-3", "ready", "m5.xlarge", "spot,", "1.75", "r1,", "r2"):
            assert text in cards
        assert "no machine" in window.text("[data-card=linux-8]")
        assert "8 slots, 6 with a machine" in window.text("#pools")
        # Each slot counts once.
        assert window.run(LEGEND) == ["leased4", "free2", "empty2", "= 8 slots, of these", "draining1", "cordoned1"]
        window.click("#legend [data-key=lease]")
        assert window.run("document.querySelectorAll('.slot-card.dim').length") == 4
        window.click("#legend [data-key=lease]")
        window.click("[data-colour=account]")
        found = dict(zip(["a", "b", "c", "d", "e"], window.run(LEGEND), strict=False)).values()
        assert {"web1", "no account2", "several accounts1", "no lease4", "= 8 slots, of these"} == set(found)
        window.click("[data-colour=state]")
        # A gang.
        point_at(window, "[data-card=linux-1] .holder")
        wait_for(lambda: window.run(LIT) == ["linux-1", "linux-2"], "the light")
        point_at(window, "h1")
        wait_for(lambda: window.run(LIT) == [], "the light to go")
        window.run("(document.querySelector('[data-card=linux-2] .holder').focus(), 1)")
        wait_for(lambda: window.run(LIT) == ["linux-1", "linux-2"], "the light")
        console.publish(a_slot("linux-9", zone="b"), a_slot("linux-1", version=2, state="booting"))
        window.await_text("[data-card=linux-9]", "linux-9")
        window.await_text("[data-card=linux-1]", "booting")
        assert window.run("document.activeElement.dataset.reservation") == "gang", "the focus stays"
        window.click("[data-card=linux-9] a[data-slot]")
        window.await_text("#panel h2", "linux-9")
        assert window.run(FITS)
        assert window.errors() == []


def test_a_fleet_of_hundreds_has_boxes_with_a_tooltip_and_a_larger_one_is_a_mosaic(make_console: MakeConsole) -> None:
    console = make_console(rows=a_fleet(60))
    with open_window(f"http://127.0.0.1:{console.settings.console.port}") as window:
        window.open(f"/fleet?token={console.token}")
        wait_for(lambda: window.run("document.documentElement.dataset.revision"), "the fleet")
        assert window.run("document.querySelectorAll('[data-card]').length") == 0
        window.run("(document.querySelector('#pools canvas').focus(), 1)")
        window.await_text("#tip", "linux-1")
        window.await_text("#tip", "m5.xlarge spot a")
        window.await_text("#tip", "cpus: 1.5 of 4")
        window.await_text("#tip", "gang")
        window.press("\ue00c")  # escape
        assert window.find_all("#tip") == []
        window.press("\ue006")  # enter
        window.await_text("#panel h2", "linux-1")
        window.press("\ue00c")  # escape
        wait_for(lambda: not window.find_all("#panel"), "the panel to close")
        assert window.run("document.activeElement.tagName") == "CANVAS", "the focus is where the panel was opened"
        window.press("\ue00c")  # the tooltip that came with the focus
        canvas = window.find("#pools canvas")
        ActionChains(window.driver).move_to_element_with_offset(
            canvas, 6 - canvas.size["width"] // 2, 6 - canvas.size["height"] // 2
        ).perform()
        window.await_text("#tip", "gang")
        console.publish(*(a_slot(f"linux-{number}") for number in range(61, 402)))
        wait_for(lambda: window.run("document.querySelector('#pools').dataset.form") == "mosaic", "the mosaic")
        assert sum(int(re.sub(r"\D", "", each)) for each in window.run(LEGEND)[:3]) == 401
        assert window.errors() == []


@pytest.mark.parametrize(
    ("query", "found"),
    [("use=machine", "6 slots"), ("use=leased", "4 slots"), ("use=free", "2 slots"), ("use=x", "8 slots")],
)
def test_a_tile_leads_to_the_slots_that_it_counts(make_console: MakeConsole, query: str, found: str) -> None:
    browser = make_console(rows=a_fleet(8)).entered()
    assert f"<caption>{found}" in browser.get(f"/fleet?{query}").text
    page = browser.get("/fleet").text
    assert 'href="/fleet?use=leased#table-title"><span class="figure" data-figure="leased">4' in page
    assert 'href="/fleet?use=machine#table-title"><span class="figure" data-figure="machines">6' in page
    assert ("this part of the address was ignored" in browser.get(f"/fleet?{query}").text.lower()) == (query == "use=x")


def test_an_empty_fleet_teaches_the_first_commands(make_console: MakeConsole) -> None:
    browser = make_console().entered()
    assert "leasehold apply" in browser.get("/fleet").text
    assert "leasehold up" in browser.get("/queues").text


def test_slots_of_a_reservation_are_found_by_it_and_by_a_slot_of_it(make_console: MakeConsole) -> None:
    browser = make_console(rows=a_fleet(8)).entered()
    assert '"slots":["linux-1","linux-2"]' in browser.get("/fleet/together?reservation=gang").text
    assert '"slots":["linux-1","linux-2"]' in browser.get("/fleet/together?slot=linux-2").text
    assert browser.get("/fleet/together?slot=gone").text == '{"slots":[],"lines":[]}'
