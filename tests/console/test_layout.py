"""What every page shares: the navigation, times relative to now, and figures."""

import re
import time

import pytest

from leasehold.console.page import format_ago, format_dollars, format_time, format_utc
from leasehold.texts.values import format_amount
from testbed.processes import wait_for
from tests.builders import a_reservation, a_slot
from tests.console.chromium import open_window
from tests.console.conftest import MakeConsole

NOW = 1_800_000_000.0
SECONDS = (-90_000.5, -3_700.0, -61.0, -1.0, -0.5, 0.0, 0.9, 1.0, 59.9, 60.0, 3_599.0, 3_600.0, 12_345.0, 90_061.0, 9e6)
AMOUNTS = (0.0, 4.0, 0.5, 0.25, 2 / 3, 0.0012, -0.0012, 16_000.0, 1_234.567, -3.14159, 123_456_789.999)


def test_a_time_is_shown_relative_to_now_and_its_hover_has_the_absolute_one_in_utc() -> None:
    shown = format_time(time.time() - 130)
    assert re.fullmatch(
        r'<time datetime="[-\d]{10}T[:.\d]{12}\+00:00" title="[-\d]{10} [:\d]{8} UTC" data-ago>2 min ago</time>', shown
    )
    assert format_time(None) == format_utc(None) == ""
    assert format_utc(NOW) == '<time datetime="2027-01-15T08:00:00.000+00:00">2027-01-15 08:00:00</time>'


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "now"), (-0.4, "now"), (8, "8 s ago"), (-750, "in 12 min"), (12_000, "3 h 20 min ago")]
)
def test_a_relative_time_names_its_direction(seconds: float, text: str) -> None:
    assert format_ago(NOW - seconds, NOW) == text


@pytest.mark.parametrize(
    ("amount", "text"), [(4.0, "4"), (0.5, "0.5"), (2 / 3, "0.67"), (1_234.567, "1,234.57"), (0.0012, "<0.01")]
)
def test_an_amount_has_two_decimals_at_most(amount: float, text: str) -> None:
    assert format_amount(amount) == text


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0.0, "$0.00"),
        (0.042, "$0.04"),
        (0.0031, "<$0.01"),
        (1_234.5, "$1,234.50"),
        (-0.0031, ">-$0.01"),
        (-2.5, "-$2.50"),
    ],
)
def test_dollars_have_two_decimals(amount: float, text: str) -> None:
    assert format_dollars(amount) == text


def test_the_navigation_is_a_menu_in_a_narrow_window_and_times_go_on(make_console: MakeConsole) -> None:
    """The scripts of pages write times and amounts as the templates do."""
    row = a_reservation("r1", created_at=time.time() - 40)
    console = make_console(rows=(a_slot("linux-1"), row))
    with open_window(f"http://127.0.0.1:{console.settings.console.port}", width=400) as window:
        window.open(f"/reservations/r1?token={console.token}")
        assert window.text("h1") == "r1"
        assert window.find_all("nav[aria-label=Pages] a") == []
        assert window.use(".side .menu", lambda each: each.get_attribute("aria-expanded")) == "false"
        window.click(".side .menu")
        assert len(window.find_all("nav[aria-label=Pages] a")) == len(console.app.state.pages)
        assert window.find_all(".side .name")
        window.use(".side .menu", lambda each: each.send_keys("\ue004\ue00c"))  # tab, escape
        wait_for(lambda: window.find_all("nav[aria-label=Pages] a") == [], "the menu to close")
        assert window.run("document.activeElement.className") == "menu"
        # The page counts on: the text changes although nothing loads.
        window.run("(document.querySelector('#course time').dateTime = new Date(Date.now() - 7200e3).toISOString(), 1)")
        wait_for(lambda: "2 h 0 min ago" in window.text("#course"), "the time to go on")
        written = window.run(
            "[arguments[0].map((each) => window.leasehold.ago(arguments[2] - each, arguments[2])),"
            " arguments[1].map(window.leasehold.amount)]",
            list(SECONDS),
            list(AMOUNTS),
            NOW,
        )
        assert written == [[format_ago(NOW - each, NOW) for each in SECONDS], [format_amount(each) for each in AMOUNTS]]
        assert window.errors() == []
