"""Control characters in texts of users reach no terminal, in any output format."""

import json
from contextlib import closing
from typing import Final

import pytest

from scheduler.model.events import Event
from scheduler.store.opening import open_store
from tests.builders import a_lease, a_request, a_slot
from tests.cli.conftest import Run
from tests.cli.terminal import ESCAPES, run_on_terminal
from tests.client.intake import FakeIntake, a_row

HOSTILE: Final = "x\x1b[2Jy\x1b]0;owned\x07z\x9b31mw\x9d\u202e\u2028v\x7f"
CONTROLS: Final = frozenset("\x00\x07\x1b\x7f\x9b\x9d\u202e\u2028\r")


def find_controls(text: str) -> set[str]:
    return set(text) & CONTROLS


@pytest.fixture
def hostile(stack: FakeIntake) -> FakeIntake:
    """Return a stack in which every text of a user has control characters."""
    request = a_request(tags={"team": HOSTILE}, labels={"zone": HOSTILE})
    leases = (a_lease("linux-1"),)
    stack.publish(a_row("r1", request=request, reason=HOSTILE, phase="leased", leases=leases, revoke_reason=HOSTILE))
    stack.publish(a_row("r2", request=request, reason=HOSTILE))
    stack.publish(a_slot("linux-1", version=1, error=HOSTILE, labels={"os": HOSTILE}, stranger=HOSTILE, state="error"))
    answers = {
        "conditions": {"ok": True, "as_of": 5.0, "slots": {"linux-1": [HOSTILE]}, "pools": {"linux": [HOSTILE]}},
        "explain": {"ok": True, "reservation": "r2", "phase": "pending", "position": 1, "of": 1, "pools": {}}
        | {"waiting": {"code": "no_slot", "detail": HOSTILE}, "change": {"kind": "x", "text": HOSTILE, "actions": []}},
        "cancel": {"ok": False, "errors": [{"index": 0, "path": HOSTILE, "expected": HOSTILE, "got": HOSTILE}]},
    }
    stack.handler = lambda verb, _document: answers.get(verb)
    return stack


@pytest.mark.parametrize(
    "words",
    [
        *(f"{command} {form}" for command in ("list", "slots --all") for form in ("", "-o wide", "-o yaml", "-o csv")),
        *("list --json", "slots --all --json", "get r1", "get r2", "get r1 --json", "get r2 -o yaml", "explain r2"),
        *("explain r2 --json", "cancel r2"),
    ],
)
def test_no_control_character_is_printed(hostile: FakeIntake, run: Run, words: str) -> None:
    found = run(*words.split())
    assert find_controls(found.out + found.err) == set()


def test_json_means_what_the_user_wrote(hostile: FakeIntake, run: Run) -> None:
    (first, *_) = json.loads(run("list", "--json").out)
    assert first["request"]["tags"] == {"team": HOSTILE}


def test_a_terminal_shows_the_escapes(hostile: FakeIntake, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = run_on_terminal(monkeypatch, 200, "explain", "r2")
    assert r"x\x1b[2Jy" in shown
    assert find_controls(ESCAPES.sub("", shown)) == set()


def test_events_show_the_escapes(database: str, run: Run) -> None:
    event = Event(at=0, name="reservation_failed", cause="holder", reservation="r1", detail={"reason": HOSTILE})
    with closing(open_store(database)) as store, store.transaction() as transaction:
        transaction.append_events([event])
    for form in ([], ["--json"]):
        found = run("events", *form)
        assert find_controls(found.out) == set()
        assert found.out.count("\n") == 1
    assert json.loads(run("events", "--json").out)["detail"]["reason"] == HOSTILE
