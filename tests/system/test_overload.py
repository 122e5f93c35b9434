"""More requests than the workers answer in time: each is answered or postponed, and copies are not executed."""

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
from testbed.processes import wait_for
from testbed.stack import Stack

pytestmark = pytest.mark.timeout(240)
QUERIES = 600
"""Requests that two workers need several seconds for, on any machine."""
SUBMITS = 20
COPIES = 3


@contextmanager
def paused_intake(stack: Stack) -> Iterator[None]:
    """Stop the main process of the intake worker within this block."""
    pid = stack.processes["reservations"].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def send(stack: Stack, verb: str, request: str, copies: int = 1, **fields: Any) -> str:
    """Send copies of one request, as a client that supports `retry_after`; return the reply address."""
    address = f"leasehold:reply:{request}"
    for _ in range(copies):
        headers = {"sent_at": time.time(), "patience": 600.0}
        stack.send(verb, {"request": request, "reply_to": address, **fields}, headers=headers)
    return address


def read_answers(stack: Stack, address: str) -> list[dict[str, Any]]:
    return [msgspec.json.decode(each) for each in stack.redis.lrange(address, 0, -1)]


def count_requests(stack: Stack, name: str) -> float:
    """Return a counter, summed over all labels and workers."""
    return sum(RedisMeter(stack.redis).read().counters[name].values())


def test_requests_in_a_long_queue_are_answered_or_postponed_and_none_is_lost(stack: Stack) -> None:
    shed, skipped = "leasehold_shed_requests_total", "leasehold_skipped_requests_total"
    before = {name: count_requests(stack, name) for name in (shed, skipped)}
    run = uuid4().hex[:8]
    with paused_intake(stack):
        queries = [send(stack, "leases", f"{run}-q{number}", slot="nowhere", machine="m1") for number in range(QUERIES)]
        submits = [
            send(stack, "submit", f"{run}-s{number}", COPIES, id=f"{run}-s{number}", pool="linux", priority=0)
            for number in range(SUBMITS)
        ]
    wait_for(lambda: stack.redis.llen("reservations") == 0, "an empty queue", 120)
    wait_for(lambda: all(stack.redis.exists(address) for address in (*queries, *submits)), "all answers", 120)

    # Each query was answered or postponed once; some were postponed.
    answers = [read_answers(stack, address) for address in queries]
    assert {len(each) for each in answers} == {1}
    postponed = [each[0]["retry_after"] for each in answers if "retry_after" in each[0]]
    assert postponed
    assert all(seconds >= 1 for seconds in postponed)

    def is_counted() -> bool:
        """Each copy of each submit was answered or skipped, and the counters contain them."""
        stack.await_canary("reservations")
        found = [answer for address in submits for answer in read_answers(stack, address)]
        late = [*postponed, *(answer for answer in found if "retry_after" in answer)]
        counted = {name: count_requests(stack, name) - before[name] for name in before}
        return counted == {shed: len(late), skipped: SUBMITS * COPIES - len(found)}

    wait_for(is_counted, "the counters")
    answered = [read_answers(stack, address) for address in submits]
    assert sum(map(len, answered)) < SUBMITS * COPIES
    # Submits are postponed later than queries, if five times as long a wait is expected. A slow machine gets there.
    assert all(answer["ok"] or answer["retry_after"] >= 5 for each in answered for answer in each)
    for number, each in enumerate(answered):
        if not any(answer["ok"] for answer in each):
            name = f"{run}-s{number}"
            assert stack.ask("submit", {"request": name, "id": name, "pool": "linux", "priority": 0})["ok"]
    assert len(stack.services.ports.store.find_reservations(ids=[f"{run}-s{n}" for n in range(SUBMITS)])) == SUBMITS
    for number in range(SUBMITS):
        assert stack.ask("cancel", {"reservation": f"{run}-s{number}"})["ok"]


def test_a_client_gets_an_answer_after_its_request_was_postponed(stack: Stack) -> None:
    """The client sends the request again; its caller only waits longer."""
    shed = count_requests(stack, "leasehold_shed_requests_total")
    found: list[object] = []
    with Client(stack.redis_url("leasehold")) as client:
        caller = threading.Thread(target=lambda: found.append(client.recall("unknown", timeout=200)))
        with paused_intake(stack):
            for number in range(QUERIES):
                send(stack, "leases", f"{uuid4().hex}-{number}", slot="nowhere", machine="m1")
            caller.start()
        caller.join()
    assert len(found) == 1

    def is_counted() -> bool:
        stack.await_canary("reservations")
        return count_requests(stack, "leasehold_shed_requests_total") > shed

    wait_for(is_counted, "postponed requests")
