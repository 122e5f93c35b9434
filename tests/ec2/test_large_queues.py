"""The emulator's SQS takes and delivers messages of a long queue without a look at all of them for each, and loses none
while several threads use the queue.
"""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from leasehold_emulator.queues import EmulatedQueue, install_queues
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.sqs import models
from moto.sqs.models import Message, SQSBackend, sqs_backends

REGION = "eu-west-3"


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[SQSBackend]:
    """SQS of a region that no other test uses, as the emulator has it."""
    name = "is_message_valid_based_on_retention_period"
    monkeypatch.setattr(SQSBackend, name, getattr(SQSBackend, name))  # both are put back after the test
    monkeypatch.setattr(models, "Queue", models.Queue)
    install_queues()
    yield sqs_backends[DEFAULT_ACCOUNT_ID][REGION]
    sqs_backends[DEFAULT_ACCOUNT_ID][REGION].reset()


def test_a_delivery_computes_no_attributes_of_the_queue(backend: SQSBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    backend.create_queue("many")
    for number in range(20):
        backend.send_message("many", f"{number}")
    monkeypatch.setattr(EmulatedQueue, "attributes", property(lambda _: pytest.fail("all attributes are computed")))
    assert [each.body for each in backend.receive_message("many", 3, 0, 60)] == ["0", "1", "2"]


def test_a_message_is_taken_without_a_look_at_the_clock_for_each_other_message(
    backend: SQSBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.create_queue("many")
    for name in ("visible", "delayed"):
        monkeypatch.setattr(Message, name, property(lambda _: pytest.fail("a message reads the clock for itself")))
    for number in range(20):
        backend.send_message("many", f"{number}")
    assert backend.get_queue("many").attributes["ApproximateNumberOfMessages"] == 20


def test_the_attributes_count_waiting_and_received_and_delayed_messages(backend: SQSBackend) -> None:
    backend.create_queue("counted")
    for delay in (0, 0, 0, 60):
        backend.send_message("counted", "one", delay_seconds=delay)
    backend.receive_message("counted", 1, 0, 60)
    counts = backend.get_queue("counted").attributes
    names = ("", "NotVisible", "Delayed")
    assert [counts[f"ApproximateNumberOfMessages{name}"] for name in names] == [2, 1, 1]


def test_no_message_can_come_while_one_is_deleted(backend: SQSBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    backend.create_queue("shared")
    backend.send_message("shared", "one")
    queue, tried = backend.get_queue("shared"), list[bool]()
    (message,) = backend.receive_message("shared", 1, 0, 60)

    def had_handle(self: Message, handle: str) -> bool:
        with ThreadPoolExecutor(1) as pool:  # another thread wants to add a message in the middle of the deletion
            tried.append(pool.submit(queue._messages_lock.acquire, blocking=False).result())
        return handle in self.all_receipt_handles

    monkeypatch.setattr(Message, "had_receipt_handle", had_handle)
    backend.delete_message("shared", str(message.receipt_handle))
    assert set(tried) == {False}


def test_messages_may_be_received_by_another_thread_while_the_groups_are_read(backend: SQSBackend) -> None:
    backend.create_queue("shared")
    queue = backend.get_queue("shared")

    class Received(Message):
        """A message during whose examination another one is received."""

        @property
        def group_id(self) -> str | None:
            queue.pending_messages.add(Message("later", "later"))
            return "one"

        @group_id.setter
        def group_id(self, value: str | None) -> None:
            assert value is None

    queue.pending_messages.add(Received("first", "first"))
    assert queue.pending_message_groups == {"one"}


def test_a_message_is_not_delivered_after_the_retention_period(backend: SQSBackend) -> None:
    backend.create_queue("old", MessageRetentionPeriod=60)
    message: Any = backend.send_message("old", "late")
    message.sent_timestamp = (time.time() - 61) * 1000
    assert backend.receive_message("old", 1, 0, 60) == []
