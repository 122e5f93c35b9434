"""A producer that uses only Celery: its requests are executed, and each refused message is counted and recorded."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery

from scheduler.model.events import Event
from scheduler.ports import EventFilter
from scheduler.protocol.names import LAUNCH, RESERVATIONS
from testbed.processes import wait_for
from testbed.stack import ROOT, Stack
from tests.system.bad_messages import an_envelope

SUBMIT = "leasehold.reservations.submit"
REFUSED = "leasehold_messages_refused_total"
PAGE = Path(ROOT / "docs" / "reference" / "protocol.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def producer(stack: Stack) -> Celery:
    """A Celery application that knows only the URL of the broker."""
    return Celery(broker=stack.redis_server.url)


def await_reservation(stack: Stack, name: str) -> None:
    """Wait until the reservation is stored, and cancel it."""
    store = stack.services.ports.store
    wait_for(lambda: store.find_reservations(ids=[name]), f"the reservation {name}")
    stack.ask("cancel", {"reservation": name})


def test_the_example_of_the_page_is_accepted(stack: Stack, tmp_path: Path) -> None:
    code = PAGE.partition("## Plain Celery")[2].partition("```python\n")[2].partition("```")[0]
    statements = [line for line in code.splitlines() if line and not line.startswith(("import", "from"))]
    assert len(code.splitlines()) <= 10
    assert len(statements) <= 10
    script = tmp_path / "producer.py"
    script.write_text(code.replace("redis://127.0.0.1:6379/0", stack.redis_server.url).replace("x86_64", "warm"))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "pending\n", "")
    await_reservation(stack, "shop-1")


@pytest.mark.parametrize(
    "arguments",
    [
        lambda document: {"args": [document]},
        lambda document: {"kwargs": {"document": document}},
        lambda document: {"kwargs": document},
        lambda document: {"kwargs": {"items": [document]}},
    ],
    ids=["positional", "keyword", "fields", "fields of a list"],
)
def test_every_form_of_a_plain_request_is_executed(
    stack: Stack, producer: Celery, arguments: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    name = f"plain-{uuid4().hex}"
    producer.send_task(SUBMIT, **arguments({"id": name, "pool": "warm"}), queue=RESERVATIONS)
    await_reservation(stack, name)


def test_a_copy_of_a_plain_request_changes_nothing(stack: Stack, producer: Celery) -> None:
    """The message id is the request id, so a `priority` that is delivered twice is executed once."""
    name, message = f"plain-{uuid4().hex}", uuid4().hex
    stack.submit(name, pool="warm")
    first = {"reservation": name, "priority": 5}
    task = "leasehold.reservations.priority"
    producer.send_task(task, args=[first], queue=RESERVATIONS, task_id=message)
    wait_for(lambda: stack.find(name).priority == 5, "the first priority")
    stack.ask("priority", {"reservation": name, "priority": 7})
    assert stack.ask("priority", {**first, "request": message})["ok"]
    assert stack.find(name).priority == 7
    stack.ask("cancel", {"reservation": name})


def count_refused(stack: Stack) -> dict[tuple[str, ...], float]:
    return dict(stack.services.ports.meter.read().counters[REFUSED])  # type: ignore[attr-defined]


def await_event(stack: Stack, message: str) -> Event:
    def look() -> Event | None:
        found = stack.services.ports.store.read_events(EventFilter(name="message_refused", newest=True))
        return next((event for event in found if event.detail["message"] == message), None)

    return wait_for(look, f"the event of {message}")


FOREIGN_ADDRESS = {"id": "r", "pool": "warm", "reply_to": "leader"}
FORGED = {"reservation": "no", "token": -77}
RENEW, MISSPELLED = "leasehold.reservations.renew", "leasehold.reservations.sumbit"
SLOT = "leasehold.launch.slot"


@pytest.mark.parametrize(
    ("queue", "task", "body", "defect", "fault"),
    [
        (RESERVATIONS, SUBMIT, [[{"id": "r", "pool": 3}], {}, None], "document", ("pool", "3")),
        (RESERVATIONS, SUBMIT, [[{"id": "r"}], {"pool": "warm"}, None], "arguments", ("kwargs", '["pool"]')),
        (RESERVATIONS, RENEW, [[FORGED], {}, None], "document", ("token", "***")),
        (RESERVATIONS, SUBMIT, [[FOREIGN_ADDRESS], {}, None], "address", ("reply_to", "***")),
        (RESERVATIONS, MISSPELLED, [[{}], {}, None], "task", ("headers.task", f'"{MISSPELLED}"')),
        (LAUNCH, SLOT, [["secret-body"], {}], "envelope", ("body", "a list")),
        (LAUNCH, SLOT, [["warm-1", 7], {}, None], "arguments", ("launch_id", "7")),
    ],
)
def test_a_refused_message_is_counted_and_recorded_as_an_event(
    stack: Stack, queue: str, task: str, body: Any, defect: str, fault: tuple[str, str]
) -> None:
    """The event contains neither secrets nor the body."""
    message = f"refused-{uuid4().hex}"
    before = count_refused(stack)
    for kept in stack.redis.scan_iter("leasehold:refused:*"):
        stack.redis.delete(kept)
    stack.redis.lpush(queue, json.dumps(an_envelope(queue, task, body, message)))
    event = await_event(stack, message)
    expected = {"queue": queue, "task": task, "message": message, "defect": defect, "path": fault[0], "got": fault[1]}
    assert {name: event.detail[name] for name in expected} == expected
    assert event.detail["expected"]
    assert "secret-body" not in str(event)
    after = count_refused(stack)
    assert after[queue, defect] == before[queue, defect] + 1


def test_a_message_that_is_not_json_is_counted(stack: Stack) -> None:
    before = count_refused(stack)
    stack.redis.lpush(LAUNCH, "no message, password=hush")
    wait_for(lambda: count_refused(stack)[LAUNCH, "envelope"] > before[LAUNCH, "envelope"], "the count")
