"""A refused message is recorded as one event as soon as the database is available."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from scheduler.operations.machines.check import record_refused
from scheduler.ports import RefusedMessage, StoreUnavailableError, Transaction
from scheduler.store.memory import MemoryStore
from tests.operations.harness import NOW, Harness


def a_refused(message: str = "m1", **changes: object) -> RefusedMessage:
    fields = {"at": NOW - 1, "queue": "launch", "task": "leasehold.launch.slot", "message": message}
    fault = {"defect": "arguments", "path": "launch_id", "expected": "str", "got": "7"}
    return RefusedMessage(**{**fields, **fault, **changes})  # type: ignore[arg-type]


def test_a_refused_message_is_recorded_once() -> None:
    harness = Harness()
    before = len(harness.events)
    harness.meter.note_refused(a_refused(more_faults=2))
    assert [record_refused(harness.ports) for _ in range(2)] == [1, 0]
    (event,) = harness.events[before:]
    assert (event.name, event.at, event.cause, event.slot, event.reservation) == (
        "message_refused",
        NOW - 1,
        "holder",
        None,
        None,
    )
    assert event.detail == {
        "queue": "launch",
        "task": "leasehold.launch.slot",
        "message": "m1",
        "defect": "arguments",
        "path": "launch_id",
        "expected": "str",
        "got": "7",
        "more_faults": 2,
    }


class AwayStore(MemoryStore):
    """A database that refuses transactions while it is `away`."""

    away = True

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:  # type: ignore[override]
        if self.away:
            raise StoreUnavailableError("away")
        with super().transaction() as transaction:
            yield transaction


def test_a_refused_message_is_kept_while_the_database_is_unavailable() -> None:
    store = AwayStore(lambda: NOW)
    store.away = False
    harness = Harness(store=store)
    harness.meter.note_refused(a_refused())
    store.away = True
    with pytest.raises(StoreUnavailableError):
        record_refused(harness.ports)
    store.away = False
    assert record_refused(harness.ports) == 1
    assert harness.events[-1].detail["message"] == "m1"
