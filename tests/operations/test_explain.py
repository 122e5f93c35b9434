"""Explain: the reason of a wait on the current rows, the smallest change, and conditions. Nothing is written."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from scheduler.explain.matrix import CODE_OF
from scheduler.model.faults import InvalidInputError
from scheduler.model.view import Row
from scheduler.operations.explain import describe_conditions, explain
from scheduler.operations.rules.apply import apply_rules
from scheduler.store.memory import MemoryStore
from tests.operations.harness import CONFIG, NOW, Harness


def a_full_harness() -> Harness:
    """Return a harness where the pool is at max_slots and two of five reservations wait for it."""
    harness = Harness()
    for number in range(5):
        harness.submit(f"r{number}")
    harness.tick()
    return harness


def test_a_wait_is_explained_with_its_position_and_the_smallest_change() -> None:
    found = explain(a_full_harness().ports, "r4")
    change = {
        "kind": "max_slots",
        "text": "pool linux is at its max_slots of 3: 5 would do",
        "wait_seconds": 0.0,
        "actions": [{"rules": {"pools": {"linux": {"max_slots": 5}}}}],
        "undo": [],
    }
    assert found["waiting"]["code"] == "at_max_slots"
    assert (found["position"], found["of"], found["served"], found["change"]) == (5, 5, False, change)


def test_an_explanation_uses_the_current_rows_and_not_the_last_tick() -> None:
    harness = a_full_harness()
    harness.ask("cancel", reservation="r3")
    assert explain(harness.ports, "r4")["change"]["actions"] == [{"rules": {"pools": {"linux": {"max_slots": 4}}}}]


def test_a_reservation_that_does_not_wait_has_no_change() -> None:
    harness = Harness().leased()
    assert explain(harness.ports, "r1") == {"reservation": "r1", "phase": "leased", "reason": None, "as_of": NOW}
    assert explain(harness.ports, "unknown") == {}


@pytest.mark.parametrize(("verb", "phase"), [("cancel", "cancelled"), ("release", "released")])
def test_a_reservation_that_ends_before_the_rows_are_read_does_not_wait(verb: str, phase: str) -> None:
    class LateStore(MemoryStore):
        """A store where a command is committed before the rows are read."""

        meanwhile: Callable[[], object] = staticmethod(lambda: None)

        def read_rows(self) -> Iterator[Row]:
            self.meanwhile()
            return super().read_rows()

    store = LateStore(lambda: NOW)
    harness = Harness(store=store)
    harness.submit("r1")
    store.meanwhile = lambda: harness.ask(verb, reservation="r1")
    assert explain(harness.ports, "r1") == {"reservation": "r1", "phase": phase, "reason": None, "as_of": NOW}


def test_explaining_writes_nothing() -> None:
    harness = a_full_harness()

    def read_all() -> tuple[Any, ...]:
        store = harness.ports.store
        return (list(store.read_rows()), len(harness.events), store.find_reservations())

    before = read_all()
    explain(harness.ports, "r4")
    describe_conditions(harness.ports)
    assert read_all() == before


def test_without_time_the_explanation_reports_an_incomplete_search() -> None:
    found = explain(a_full_harness().ports, "r4", patience=0.0)
    assert (found["change"], found["is_complete"]) == (None, False)
    assert found["waiting"]["code"] == "at_max_slots"


def test_conditions_are_those_of_one_pool_or_of_all() -> None:
    harness = a_full_harness()
    both = {"pools": {**CONFIG["pools"], "other": {"system": "s", "max_slots": 1}}}
    apply_rules(harness.ports, both)
    harness.ask("cordon", slot="other-1")
    assert set(describe_conditions(harness.ports)["slots"]) == {"linux-1", "linux-2", "linux-3", "other-1"}
    assert describe_conditions(harness.ports, "other")["slots"] == {"other-1": ["cordoned: takes no new leases"]}
    with pytest.raises(InvalidInputError, match=r'pool: expected one of linux, other \(did you mean "linux"'):
        describe_conditions(harness.ports, "lunix")


def test_a_wait_is_explained_with_every_condition() -> None:
    found = explain(a_full_harness().ports, "r4")["conditions"]
    assert [each["name"] for each in found] == [*CODE_OF]
    not_met = [each for each in found if each["met"] is False]
    assert [each["name"] for each in not_met] == ["max_slots", "free_capacity"]
    assert not_met[0]["evidence"] == "active slots: linux: 3 of 3"
