"""More requests than the workers answer in time: callers are answered or asked to come again, and copies do no work."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from leasehold import Client
from scheduler.view.redis_meter import RedisMeter
from tests.system.processes import wait_for
from tests.system.stack import Stack

pytestmark = pytest.mark.timeout(240)
QUERIES = 600
"""Two workers answer them in several seconds, on any machine."""
SUBMITS = 20
COPIES = 3


@contextmanager
def standing_still(stack: Stack) -> Iterator[None]:
    """The main process of the intake worker is stopped, and continued afterwards."""
    pid = stack.processes["reservations"].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def send(stack: Stack, verb: str, request: str, copies: int = 1, **fields: Any) -> str:
    """Send copies of one request, as a client that understands `retry_after` does; returns the list for its answer."""
    address = f"leasehold:reply:{request}"
    for _ in range(copies):
        headers = {"sent_at": time.time(), "patience": 600.0}
        stack.send(verb, {"request": request, "reply_to": address, **fields}, headers=headers)
    return address


def read_answers(stack: Stack, address: str) -> list[dict[str, Any]]:
    """What was answered there."""
    return [msgspec.json.decode(each) for each in stack.redis.lrange(address, 0, -1)]


def count_requests(stack: Stack, name: str) -> float:
    """A counter of all workers, over all labels."""
    return sum(RedisMeter(stack.redis).read().counters[name].values())


def test_a_queue_that_is_too_long_is_answered_come_again_and_loses_nothing(stack: Stack) -> None:
    shed, skipped = "leasehold_shed_requests_total", "leasehold_skipped_requests_total"
    before = {name: count_requests(stack, name) for name in (shed, skipped)}
    run = uuid4().hex[:8]
    with standing_still(stack):
        questions = [
            send(stack, "leases", f"{run}-q{number}", slot="nowhere", machine="m1") for number in range(QUERIES)
        ]
        submits = [
            send(stack, "submit", f"{run}-s{number}", COPIES, id=f"{run}-s{number}", pool="linux", priority=0)
            for number in range(SUBMITS)
        ]
    wait_for(lambda: stack.redis.llen("reservations") == 0, "the queue to be worked off", 120)
    wait_for(lambda: all(stack.redis.exists(address) for address in (*questions, *submits)), "all answers", 120)

    # Each question was answered or put off, once; a part of them was put off.
    answers = [read_answers(stack, address) for address in questions]
    assert {len(each) for each in answers} == {1}
    put_off = [each[0]["retry_after"] for each in answers if "retry_after" in each[0]]
    assert put_off
    assert all(seconds >= 1 for seconds in put_off)
    # What waits for longer to be put off was carried out, and each copy was answered or did no work.
    answered = [read_answers(stack, address) for address in submits]
    assert all(answer["ok"] for each in answered for answer in each)
    assert len(stack.services.ports.store.find_reservations(ids=[f"{run}-s{n}" for n in range(SUBMITS)])) == SUBMITS
    idle = SUBMITS * COPIES - sum(map(len, answered))
    assert idle > 0

    def is_counted() -> bool:
        stack.await_canary("reservations")
        counted = {name: count_requests(stack, name) - before[name] for name in before}
        return counted == {shed: len(put_off), skipped: idle}

    wait_for(is_counted, "the counters")
    for number in range(SUBMITS):
        assert stack.ask("cancel", {"reservation": f"{run}-s{number}"})["ok"]


def test_a_client_is_answered_though_its_request_was_put_off(stack: Stack) -> None:
    """It comes again by itself; its caller notices nothing but the time."""
    shed = count_requests(stack, "leasehold_shed_requests_total")
    found: list[object] = []
    with Client(stack.redis_url("leasehold")) as client:
        asking = threading.Thread(target=lambda: found.append(client.recall("nobody", timeout=200)))
        with standing_still(stack):
            for number in range(QUERIES):
                send(stack, "leases", f"{uuid4().hex}-{number}", slot="nowhere", machine="m1")
            asking.start()
        asking.join()
    assert len(found) == 1

    def is_counted() -> bool:
        stack.await_canary("reservations")
        return count_requests(stack, "leasehold_shed_requests_total") > shed

    wait_for(is_counted, "requests that were put off")
