"""A request is tested by the rules in force, although a process keeps the rules that it read last."""

from collections.abc import Mapping
from typing import Any

import pytest

from scheduler.operations.commands import submit
from scheduler.ports import StaleWriteError
from tests.operations.harness import CONFIG, Harness

SMALLER: dict[str, Any] = {**CONFIG, "limits": {"instances_per_reservation": 1}}
TWO = {"components": [{"name": "main", "count": 2}]}


@pytest.fixture
def harness() -> Harness:
    """A fleet with a process that keeps its rules."""
    return Harness()


def change_rules(harness: Harness, document: Mapping[str, Any]) -> None:
    """Store other rules, as another process does."""
    with harness.store.transaction() as transaction:
        transaction.save_rules(document, transaction.rules_version())


def test_rules_that_another_process_stored_hold_for_the_next_request(harness: Harness) -> None:
    assert harness.submit("r1", **TWO)["ok"]
    change_rules(harness, SMALLER)
    assert not harness.submit("r2", **TWO)["ok"]
    assert [row.id for row in harness.store.find_reservations()] == ["r1"]


def test_a_request_is_not_carried_out_while_rules_change_again_and_again(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.submit("r1")
    inner = submit.foresee

    def change_first(*arguments: Any) -> Any:
        change_rules(harness, SMALLER)
        return inner(*arguments)

    monkeypatch.setattr("scheduler.operations.commands.intake.foresee", change_first)
    with pytest.raises(StaleWriteError, match="the rules changed"):
        harness.submit("r2")
    assert [row.id for row in harness.store.find_reservations()] == ["r1"]
