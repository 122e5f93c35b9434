"""What is particular to the memory store."""

import pytest

from scheduler.ports import EventFilter, StoreUnavailableError
from scheduler.store.memory import MemoryStore
from tests.builders import a_slot
from tests.store.conftest import Clock
from tests.store.test_contract import an_event, save


@pytest.fixture
def memory(clock: Clock) -> MemoryStore:
    return MemoryStore(clock)


def test_a_second_transaction_waits_for_the_first(memory: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.store.memory_transaction._LOCK_SECONDS", 0.01)
    with memory.transaction(), pytest.raises(StoreUnavailableError, match="locked"), memory.transaction():
        pass
    assert save(memory, a_slot()) == memory.find_slots()


def test_all_events_can_be_looked_at(memory: MemoryStore) -> None:
    with memory.transaction() as transaction:
        transaction.append_events([an_event()])
        assert memory.events == []
    assert memory.events == memory.read_events(EventFilter())
