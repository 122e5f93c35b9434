"""The page Fleet in Debian's Chromium: it is live, works by keyboard, and changes slots on a real stack."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from leasehold.stack import Stack
from scheduler.view.connection import make_redis
from testbed.processes import wait_for
from tests.builders import a_lease, a_reservation, a_slot
from tests.console.chromium import Window, open_window
from tests.console.conftest import MakeConsole
from tests.console.served import Console

pytestmark = pytest.mark.timeout(240)
RULES = {
    "pools": {
        "lab": {
            "system": "x86_64-linux",
            "max_slots": 3,
            "min_slots": 2,
            "resources": {"cpus": 4},
            "ec2": {"image": "ami-04681a1dbd79675a5"},
            "offerings": [{"name": "m5.large", "market": "spot", "price": 0.04}],
        }
    }
}


def count_slots(window: Window) -> int:
    return int(window.run("window.leasehold && window.leasehold.fleet ? window.leasehold.fleet.slots().size : 0"))


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("stack")
    with Stack(folder, rules=RULES, environment={"LEASEHOLD_TICKS__INTERVAL": "1"}) as running:
        yield running


def test_a_slot_is_cordoned_and_uncordoned_with_the_keyboard(stack: Stack) -> None:
    url = stack.console_url or ""
    origin, path = url.split("/?")[0], f"/?{url.split('/?')[1]}"
    with open_window(origin) as window:
        window.open(path)
        assert "token" not in window.driver.current_url
        wait_for(
            lambda: window.run("window.leasehold.fleet.slots().get('lab-1')?.state") == "ready", "lab-1 to be ready"
        )
        window.run("(document.querySelector('#pools a[data-slot=lab-1]').focus(), 1)")
        window.press("\ue006")  # enter
        chosen = window.use("#panel h2", lambda each: each.text)
        window.await_text("#panel", "Life")
        window.click("#panel button[hx-post$='/cordon']")
        assert "Cordon" in window.use("dialog p", lambda each: each.text)
        window.press("\ue00c")  # escape
        wait_for(lambda: not window.find_all("dialog"), "the question to close")
        assert window.run("document.activeElement.getAttribute('hx-post')").endswith("/cordon"), "the focus is back"
        assert "cordoned" not in window.text("#panel")
        window.click("#panel button[hx-post$='/cordon']")
        window.click("dialog button[value=yes]")
        window.await_text("#panel", f"{chosen} takes no new leases.")
        with stack.client() as client:
            slot = client.slot(chosen)
            assert slot is not None
            assert slot.cordoned
        wait_for(lambda: window.run("window.leasehold.fleet.slots().get(arguments[0]).flags & 1", chosen), "the box")
        window.click("#panel button[hx-post$='/uncordon']")
        window.await_text("#panel", f"{chosen} takes new leases again.")
        window.press("\ue00c")  # escape
        wait_for(lambda: not window.find_all("#panel"), "the panel to close")
        assert window.run("document.activeElement.dataset.slot") == chosen, "the focus is where the panel was opened"
        assert window.errors() == []
    log = (stack.folder.logs / "console.log").read_text()
    assert "action=console.change" in log
    assert "person=local token" in log or "person='local token'" in log


def test_changes_appear_without_a_reload_and_the_page_survives_the_loss_of_redis(
    make_console: MakeConsole, redis_url: str
) -> None:
    slots = [a_slot(f"linux-{number}", zone="a", resources={"cpus": 4.0}) for number in range(1, 11)]
    console: Console = make_console(rows=tuple(slots))
    with open_window(f"http://127.0.0.1:{console.settings.console.port}") as window:
        window.open(f"/?token={console.token}")
        wait_for(lambda: count_slots(window) == 10, "the boxes")
        row = a_reservation("r1", phase="leased", leases=(a_lease("linux-3", resources={"cpus": 3.0}),))
        console.publish(row, a_slot("linux-11", zone="b"))
        wait_for(lambda: count_slots(window) == 11, "the new box")
        shares = "JSON.stringify(window.leasehold.fleet.slots().get('linux-3').leases.map((lease) => lease.share))"
        wait_for(lambda: window.run(shares) == "[75]", "the lease")
        with make_redis(redis_url) as client:
            client.flushall()
        window.await_text("#banner", "cannot be read")
        assert count_slots(window) == 11
        console.view_cache.rebuild([msgspec.structs.replace(slots[0], version=9, state="draining")])
        wait_for(lambda: not window.find_all("#banner"), "the banner to go")
        wait_for(lambda: count_slots(window) == 1, "the new fleet")
        assert window.errors() == []


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [400, 1280])
def test_no_page_is_wider_than_the_window(make_console: MakeConsole, width: int, dark: bool) -> None:
    row = a_reservation("r1" * 60, phase="leased", leases=(a_lease("linux-1"),))
    slots = [a_slot(f"linux-{number}", zone="a" * 40, address="very-long-" * 8) for number in range(1, 200)]
    console = make_console(rows=(*slots, row))
    with open_window(f"http://127.0.0.1:{console.settings.console.port}", width=width, dark=dark) as window:
        window.open(f"/fleet?slot=linux-1&token={console.token}")
        window.await_text("#panel", "Life")
        for path in ("/fleet?slot=linux-1", "/about", "/nothing"):
            window.open(path)
            window.find("h1")
            assert window.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), path


def test_every_control_has_a_name_and_every_table_a_caption(console: Console) -> None:
    console.publish(a_slot("linux-1"))
    nameless = """[...document.querySelectorAll(
        'button, a[href], input:not([type=hidden]), select, canvas[tabindex], [role=region]')]
        .filter((each) => !(each.textContent.trim() || each.labels?.length || each.getAttribute('aria-label')))
        .map((each) => each.outerHTML.slice(0, 200))"""
    with open_window(f"http://127.0.0.1:{console.settings.console.port}") as window:
        window.open(f"/fleet?slot=linux-1&token={console.token}")
        window.await_text("#panel", "Life")
        for path in ("/fleet?slot=linux-1", "/about"):
            window.open(path)
            window.find("h1")
            assert window.run(nameless) == []
            assert window.run("[...document.querySelectorAll('table')].filter((each) => !each.caption).length") == 0
            assert window.run("[...document.querySelectorAll('th')].filter((each) => !each.scope).length") == 0
            assert window.run("document.documentElement.lang") == "en"


def test_a_tab_of_an_old_session_is_sent_to_the_login(console: Console, tmp_path: Path) -> None:
    console.publish(a_slot("linux-1"))
    with open_window(f"http://127.0.0.1:{console.settings.console.port}") as window:
        window.open(f"/fleet?token={console.token}")
        wait_for(lambda: count_slots(window) == 1, "the box")
        window.driver.delete_all_cookies()
        # The page also sends requests by itself: the first of all leads to the login.
        window.run("(document.querySelector('a[data-slot=linux-1]')?.click(), 1)")
        window.await_text("body", "Principal")
        assert "/login?next=%2Ffleet" in window.driver.current_url
