"""A client reads, previews and applies the rules; what workers answer becomes typed results."""

from typing import Any, Final

import pytest

from leasehold import Client, Refused
from leasehold.client.rules import Departure, RuleChange, RulesApplied, RulesVersion
from tests.client.intake import FakeIntake

RULES: Final[dict[str, Any]] = {"pools": {"linux": {"system": "x86_64-linux", "max_slots": 5}}}
CHANGE: Final[dict[str, Any]] = {"path": "pools.linux.max_slots", "before": 3, "after": 5, "kind": "changed"}
LEAVING: Final = {"slot": "linux-1", "action": "drain", "reason": "unconfigured", "reservations": ["r1"]}
ANSWERS: Final[dict[str, Any]] = {
    "rules": {
        "version": 2,
        "document": RULES,
        "hidden": [],
        "history": [{"version": 2, "applied_at": 5.0, "source": "ops", "changes": ["a: 1 -> 2"]}],
    },
    "preview": {
        "version": 2,
        "changed": True,
        "changes": [CHANGE],
        "departures": [LEAVING],
        "endings": [],
        "accounts": [{"account": "ci", "before": [1, 0, 0, 0, 0], "after": None}],
        "unservable": [{"reservation": "r2", "code": "no_pool", "detail": "no pool serves it"}],
        "launches": {"linux": 2},
        "takes_away": True,
        "lengths": {"departures": 900},
        "next_tick": {
            "present": [],
            "proposed": [{"do": "drain", "slot": "linux-1", "reason": "unconfigured"}],
            "totals": {"present": {}, "proposed": {"drain": 900}},
            "waiting": {"present": {"booting": 1}, "proposed": {"no_pool": 1}},
        },
    },
    "apply": {"version": 3, "changed": True},
}


@pytest.fixture(autouse=True)
def _answering(intake: FakeIntake) -> None:
    intake.handler = lambda verb, _: {"ok": True, **ANSWERS[verb]}


def test_the_rules_are_read_with_their_history(intake: FakeIntake, client: Client) -> None:
    found = client.rules(history=1)
    assert (found.version, found.document) == (2, RULES)
    assert found.history == (RulesVersion(version=2, applied_at=5.0, source="ops", changes=("a: 1 -> 2",)),)
    assert repr(found) == "<RulesInForce version 2>"
    assert intake.seen[0][1]["history"] == 1


def test_a_preview_has_the_consequences_and_the_decisions_under_both_rules(client: Client) -> None:
    found = client.preview_rules(RULES)
    assert found.changes == (RuleChange(**CHANGE),)
    assert found.departures == (Departure(slot="linux-1", action="drain", reason="unconfigured", reservations=("r1",)),)
    assert (found.accounts[0].after, found.launches, found.lengths) == (None, {"linux": 2}, {"departures": 900})
    assert found.next_tick.proposed[0]["do"] == "drain"
    assert (found.next_tick.totals.proposed, found.next_tick.waiting.present) == ({"drain": 900}, {"booting": 1})
    assert repr(found) == "<RulesPreview 1 changes to version 2, takes away>"


def test_rules_are_applied_to_the_version_that_the_caller_saw(intake: FakeIntake, client: Client) -> None:
    assert client.apply_rules(RULES, expected=2, source="mine") == RulesApplied(version=3, changed=True)
    verb, document = intake.seen[0]
    assert verb == "apply"
    assert {name: document[name] for name in ("rules", "expected", "source")} == {
        "rules": RULES,
        "expected": 2,
        "source": "mine",
    }


def test_faults_of_rules_are_raised(intake: FakeIntake, client: Client) -> None:
    error = {"index": 0, "path": "rules.pools.linux.max_slots", "expected": "a whole number >= 0", "got": "-1"}
    intake.handler = lambda *_: {"ok": False, "errors": [error]}
    for call in (lambda: client.preview_rules(RULES), lambda: client.apply_rules(RULES, expected=2)):
        with pytest.raises(Refused, match=r"max_slots"):
            call()
