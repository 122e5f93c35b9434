"""The emulator's SQS delivers messages of a long queue without a look at all of them for each."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.sqs.models import Queue, SQSBackend, sqs_backends

from workers.ec2.emulator.notices import install_retention

REGION = "eu-west-3"


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[SQSBackend]:
    """SQS of a region that no other test uses, as the emulator has it."""
    name = "is_message_valid_based_on_retention_period"
    monkeypatch.setattr(SQSBackend, name, getattr(SQSBackend, name))  # it is put back after the test
    install_retention()
    yield sqs_backends[DEFAULT_ACCOUNT_ID][REGION]
    sqs_backends[DEFAULT_ACCOUNT_ID][REGION].reset()


def test_a_delivery_computes_no_attributes_of_the_queue(backend: SQSBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    backend.create_queue("many")
    for number in range(20):
        backend.send_message("many", f"{number}")
    monkeypatch.setattr(Queue, "attributes", property(lambda _: pytest.fail("all attributes are computed")))
    assert [each.body for each in backend.receive_message("many", 3, 0, 60)] == ["0", "1", "2"]


def test_a_message_is_not_delivered_after_the_retention_period(backend: SQSBackend) -> None:
    backend.create_queue("old", MessageRetentionPeriod=60)
    message: Any = backend.send_message("old", "late")
    message.sent_timestamp = (time.time() - 61) * 1000
    assert backend.receive_message("old", 1, 0, 60) == []
