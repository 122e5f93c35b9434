"""Callbacks arrive as Celery tasks on the queue of the producer."""

from typing import Any

import pytest
from kombu import Connection

from testbed.processes import PATIENCE
from testbed.stack import Stack

pytestmark = pytest.mark.timeout(120)
QUEUE = "a-producers-queue"
CALLBACKS = {
    "on_lease": {"task": "producer.project.started", "queue": QUEUE},
    "on_end": {"task": "producer.project.ended", "queue": QUEUE},
}


def test_both_callbacks_arrive_with_the_facts_of_the_lease(stack: Stack) -> None:
    stack.ask("submit", {"id": "called-back", "pool": "warm", **CALLBACKS})
    (row,) = stack.await_phase(["called-back"], "leased")
    stack.ask("release", {"reservation": "called-back", "token": row.token})
    started, ended = _receive(stack, 2)
    assert [started[0], ended[0]] == ["producer.project.started", "producer.project.ended"]
    (lease,) = started[1]["leases"]
    machine = next(slot for slot in stack.slots("warm") if slot.id == lease["slot"])
    assert (started[1]["event"], started[1]["reservation"]) == ("leased", "called-back")
    assert (lease["token"], lease["instance_id"], lease["address"]) == (row.token, machine.instance_id, machine.address)
    assert (lease["type"], lease["zone"]) == (machine.instance_type, machine.zone)
    assert (ended[1]["event"], ended[1]["leases"]) == ("released", [])
    assert stack.services.ports.store.find_outgoing(sent_before=float("inf")) == []


def _receive(stack: Stack, count: int) -> list[tuple[str, dict[str, Any]]]:
    """Return (task, argument) of the next messages on the queue, read as the producer's worker would."""
    found = []
    with Connection(str(stack.settings.broker_url)) as connection, connection.SimpleQueue(QUEUE) as queue:
        for _ in range(count):
            message = queue.get(timeout=PATIENCE)
            arguments, _keywords, _embedded = message.payload
            found.append((message.headers["task"], arguments[0]))
            message.ack()
    return found
