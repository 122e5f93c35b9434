"""The work of an operator in Debian's Chromium on a real stack: a reservation waits, the page gives the reason, the
suggested change is pressed, a slot is drained, and other rules are compared and applied.
"""

from collections.abc import Iterator

import pytest

from leasehold.stack import Stack
from testbed.processes import wait_for
from tests.console.chromium import Window, open_window

pytestmark = pytest.mark.timeout(240)
RULES = {
    "pools": {
        "lab": {
            "system": "x86_64-linux",
            "max_slots": 1,
            "resources": {"cpus": 4},
            "idle_scale_down": 600,
            "ec2": {"image": "ami-04681a1dbd79675a5"},
        }
    }
}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    environment = {"LEASEHOLD_TICKS__INTERVAL": "1"}
    with Stack(tmp_path_factory.mktemp("stack"), rules=RULES, environment=environment) as running:
        yield running


@pytest.fixture
def window(stack: Stack) -> Iterator[Window]:
    """Return a window that has opened the address of the console with its token."""
    origin, token = (stack.console_url or "").split("/?")
    with open_window(origin) as opened:
        opened.open(f"/?{token}")
        yield opened
        assert opened.errors() == []


def test_an_operator_finds_the_reason_of_a_wait_and_ends_it(stack: Stack, window: Window) -> None:
    with stack.client() as client:
        client.reserve(id="first", system="x86_64-linux", resources={"cpus": 4})
        client.wait("first", timeout=60)
        window.open("/reservations?phase=pending")
        client.reserve(id="second", system="x86_64-linux", resources={"cpus": 4})
        # The page is not loaded again: the list follows the view.
        window.await_text("#rows", "at_max_slots")
        window.click("#rows a[href$='/reservations/second']")
        window.await_text("#why", "max_slots of 1")
        assert window.text("#headline").startswith("waits ")
        assert window.text("#headline").split(": ", 1)[1] in window.text("#why .lead")
        # What fails is open, what is met is folded.
        assert "not met" in window.text("#why .matrix")
        assert window.run("[...document.querySelectorAll('#why details')].map((each) => each.open)") == [False, False]
        window.click("#press")
        window.click("dialog button[value=yes]")
        window.await_text("#pressed", "done")
        wait_for(lambda: "leased" in window.text("#course .badge"), "the lease on the page", patience=60)
        row = client.get("second")
        assert row is not None
        assert row.phase == "leased"
        assert client.rules().document["pools"]["lab"]["max_slots"] == 2
        # What was changed stays on the page although the page follows the reservation, and it can be undone.
        window.await_text("#pressed", "leasehold rules rollback")
        window.click("#undo")
        window.click("dialog button[value=yes]")
        window.await_text("#pressed", "as in version")
        assert client.rules().document["pools"]["lab"]["max_slots"] == 1
        client.apply_rules(
            RULES | {"pools": {"lab": RULES["pools"]["lab"] | {"max_slots": 2}}}, expected=client.rules().version
        )


def test_a_slot_is_drained_from_its_box(stack: Stack, window: Window) -> None:
    wait_for(lambda: window.run("window.leasehold.fleet.slots().get('lab-1')?.state") == "ready", "lab-1 in the fleet")
    window.run("(document.querySelector('#pools a[data-slot=lab-1]').focus(), 1)")
    window.press("\ue006")  # enter
    chosen = window.use("#panel h2", lambda each: each.text)
    window.click("#panel button[hx-post$='/drain']")
    window.click("dialog button[value=yes]")
    with stack.client() as client:
        wait_for(lambda: (slot := client.slot(chosen)) is not None and slot.state == "draining", "the drain")


def test_rules_are_compared_and_applied(stack: Stack, window: Window) -> None:
    with stack.client() as client:
        before = client.rules()
        window.open("/what-if")
        text = window.use("#rules", lambda each: each.get_attribute("value")) or ""
        assert "max_slots" in text
        changed = text.replace("idle_scale_down = 600", "idle_scale_down = 300")
        window.run("(document.querySelector('#rules').value = arguments[0], 1)", "[pools.lab]\nmax_slots = 'x'")
        window.click("#rules-form button.primary")
        window.await_text("#preview", "These rules are not possible")
        window.run("(document.querySelector('#rules').value = arguments[0], 1)", changed)
        window.click("#rules-form button.primary")
        window.await_text("#preview .diff", "[pools.lab]\n- idle_scale_down = 600\n+ idle_scale_down = 300")
        # The consequences stand above the difference.
        assert window.text("#preview").index("No machine, lease or balance") < window.text("#preview").index("300")
        assert client.rules().version == before.version
        window.click("#apply")
        window.click("dialog button[value=yes]")
        window.await_text("#applied", "done")
        assert client.rules().version == before.version + 1
        # A second press comes from a page that is out of date, and is refused.
        window.run("(document.querySelector('#apply').disabled = false, 1)")
        window.click("#apply")
        window.click("dialog button[value=yes]")
        window.await_text("#applied", "expected")
        assert client.rules().version == before.version + 1


def test_a_bulk_cancel_shows_what_it_does_before_and_after(stack: Stack, window: Window) -> None:
    with stack.client() as client:
        for number in range(3):
            client.reserve(id=f"bulk-{number}", system="x86_64-linux", resources={"cpus": 4}, priority=0)
        window.open("/reservations?id=bulk-")
        wait_for(lambda: len(window.find_all("#rows tbody tr")) == 3, "three rows")
        window.click("#check-all")
        window.await_text("#selected", "3 selected")
        window.click("#bulk button[value=cancel]")
        window.await_text("#bulk-result", "Cancel: 3 reservations")
        assert [client.get(f"bulk-{number}").phase for number in range(3)] == ["pending"] * 3  # type: ignore[union-attr]
        window.click("[data-bulk-ids]")
        window.click("dialog button[value=yes]")
        window.await_text("#bulk-result", "3 of 3 done")
        assert [client.get(f"bulk-{number}").phase for number in range(3)] == ["cancelled"] * 3  # type: ignore[union-attr]
