"""The three modes of `access.mode`: which messages a worker accepts, and which ones it counts."""

from typing import Final

import pytest

from scheduler.operations.principals import add_principal
from scheduler.protocol.names import RESERVATIONS, task_name
from scheduler.protocol.verbs import Role
from scheduler.store.memory import MemoryStore
from scheduler.view.memory import MemoryMeter
from tasks.app import app
from tasks.base import UnprovenError, verify_sender
from tests.builders import NOW
from workers.access import Access
from workers.services import PerProcess
from workers.settings import read_settings

TASK: Final = task_name(RESERVATIONS, "submit")
ROLES: Final[frozenset[Role]] = frozenset({"producer"})
COUNTER: Final = ("leasehold_unsigned_messages_total", (("queue", RESERVATIONS),))


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> MemoryMeter:
    """The meter of this process, which has a database with one principal."""
    store, meter = MemoryStore(lambda: NOW), MemoryMeter()
    add_principal(store, {"name": "alice", "role": "producer"})
    monkeypatch.setattr(app.services, "_access", PerProcess(lambda: Access(store, lambda: NOW)), raising=False)
    monkeypatch.setattr(app.services, "_meter", PerProcess(lambda: meter), raising=False)
    return meter


@pytest.mark.parametrize(("mode", "is_accepted", "count"), [("open", True, 0), ("warn", True, 1), ("signed", False, 0)])
def test_an_unsigned_message_is_accepted_counted_or_refused(
    mode: str, is_accepted: bool, count: int, meter: MemoryMeter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app.services, "settings", read_settings({"access": {"mode": mode}}))
    if is_accepted:
        assert verify_sender(app.services, {}, TASK, ROLES) is None
    else:
        with pytest.raises(UnprovenError, match="signature"):
            verify_sender(app.services, {}, TASK, ROLES)
    assert meter.counts.get(COUNTER, 0) == count


@pytest.mark.parametrize("mode", ["open", "warn", "signed"])
def test_a_wrong_signature_is_refused_in_every_mode(
    mode: str, meter: MemoryMeter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app.services, "settings", read_settings({"access": {"mode": mode}}))
    headers = {"principal": "alice", "cluster": "c", "signed_at": repr(NOW), "signature": "0" * 64, "id": "m"}
    with pytest.raises(UnprovenError, match="signature"):
        verify_sender(app.services, headers, TASK, ROLES)
    assert meter.counts.get(COUNTER, 0) == 0
