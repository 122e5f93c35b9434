"""A lost message, a killed worker or an unreachable Redis causes a delay; nothing is done twice or forgotten."""

import base64
import json
import os
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from leasehold import Client
from leasehold.client.models import Reservation
from leasehold.common.names import RESERVATIONS
from scheduler.model.transitions import ENDED
from scheduler.ports import EventFilter
from tests.system.processes import PATIENCE, wait_for
from tests.system.stack import Stack

pytestmark = pytest.mark.timeout(180)


class Producer(threading.Thread):
    """A producer that submits one reservation and waits for its answer."""

    def __init__(self, stack: Stack, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._stack = stack
        self.answers: list[Reservation] = []
        self.start()

    def run(self) -> None:
        """Submit the reservation."""
        with Client(self._stack.redis_server.url, timeout=2 * PATIENCE) as client:
            self.answers.append(client.reserve(id=self.name, pool="warm"))


@contextmanager
def database_locked(stack: Stack) -> Iterator[None]:
    """Lock the database within this block: a task that writes waits at its first statement."""
    with sqlite3.connect(stack.folder / "leasehold.db", isolation_level=None) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")
    connection.close()


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop the process within this block, so that it answers no message."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def await_taken(stack: Stack) -> None:
    """Wait until a worker has an unacknowledged message of the queue `reservations`."""
    wait_for(
        lambda: any(b"leasehold.reservations.submit" in body for body in stack.redis.hvals("unacked")),
        "a request that is under way",
    )


@contextmanager
def awaiting_start(stack: Stack) -> Iterator[None]:
    """Wait at the end of this block until the intake has sent the event that a task started."""
    with closing(stack.redis.pubsub(ignore_subscribe_messages=True)) as channel:  # type: ignore[no-untyped-call]
        channel.psubscribe("*celeryev/*")
        channel.get_message(timeout=5)
        yield
        wait_for(lambda: _is_start_of_task(channel.get_message(timeout=1)), "the start of the task")


def _is_start_of_task(message: dict[str, bytes] | None) -> bool:
    if message is None:
        return False
    found = json.loads(base64.b64decode(json.loads(message["data"])["body"]))
    events = found if isinstance(found, list) else [found]
    return any((each["type"], each["hostname"].split("@")[0]) == ("task-started", RESERVATIONS) for each in events)


def is_stored(stack: Stack, name: str) -> bool:
    return bool(stack.services.ports.store.find_reservations(ids=[name]))


def lose_the_message(stack: Stack, name: str) -> Producer:
    """Delete the message from the queue before a worker takes it."""
    stack.processes[RESERVATIONS].kill()
    producer = Producer(stack, name)
    wait_for(lambda: stack.redis.llen(RESERVATIONS), "the message")
    stack.redis.delete(RESERVATIONS)
    return producer


def kill_before_the_commit(stack: Stack, name: str) -> Producer:
    """Kill the worker after it took the message and before it writes to the database."""
    with database_locked(stack):
        producer = Producer(stack, name)
        await_taken(stack)
        stack.processes[RESERVATIONS].kill()
    assert not is_stored(stack, name)
    return producer


def kill_between_commit_and_answer(stack: Stack, name: str) -> Producer:
    """Kill the worker after the commit and before it publishes, kicks and answers, while Redis is stopped."""
    with database_locked(stack):
        with awaiting_start(stack):
            producer = Producer(stack, name)
        os.kill(stack.redis_server.pid, signal.SIGSTOP)
    try:
        wait_for(lambda: is_stored(stack, name), "the commit")
        stack.processes[RESERVATIONS].kill()
    finally:
        os.kill(stack.redis_server.pid, signal.SIGCONT)
    assert producer.answers == []
    return producer


@pytest.mark.parametrize("damage", [lose_the_message, kill_before_the_commit, kill_between_commit_and_answer])
def test_the_client_gets_one_answer_and_the_request_is_executed_once(
    stack: Stack, damage: Callable[[Stack, str], Producer]
) -> None:
    name = damage.__name__.replace("_", "-")
    producer = damage(stack, name)
    stack.processes[RESERVATIONS].start()
    producer.join(2 * PATIENCE)
    assert [(row.id, row.phase in {"pending", "leased"}) for row in producer.answers] == [(name, True)]
    (row,) = stack.await_phase([name], "leased")
    events = stack.services.ports.store.read_events(EventFilter(reservation=name))
    assert [event.name for event in events] == ["reservation_submitted", "reservation_leased"]
    assert stack.ask("release", {"reservation": name, "token": row.token})["ok"]


def test_a_worker_survives_a_restart_of_redis_while_it_has_a_message(stack: Stack) -> None:
    """Celery 5.7.0 exits here ('NoneType' object has no attribute 'hostname'), so requirements.lock stays on 5.6.3."""
    worker = stack.processes[RESERVATIONS]
    pid = worker.pid
    with database_locked(stack):
        with awaiting_start(stack):
            stack.send("submit", {"request": "held", "id": "held", "pool": "warm"})
        assert stack.redis.hlen("unacked")
        stack.redis_server.kill()
    wait_for(lambda: is_stored(stack, "held"), "the request that was under way")
    stack.redis_server.restart()
    stack.await_canary(RESERVATIONS)
    assert (worker.pid, worker.is_alive) == (pid, True)
    (row,) = stack.await_phase(["held"], "leased")
    assert stack.ask("release", {"reservation": "held", "token": row.token})["ok"]


def test_a_holder_without_answers_stops_by_its_own_clock(stack: Stack) -> None:
    """That is not later than the expiry in the database, after which another reservation may get the slot."""
    with Client(stack.redis_server.url, timeout=PATIENCE) as client:
        with client.lease(id="cut-off", pool="warm", ttl=3, wait=PATIENCE) as lease, stopped(stack.redis_server.pid):
            last = stack.find("cut-off").expires_at
            assert last is not None
            now = stack.services.ports.store.read_cluster().now
            assert lease.seconds_left is not None
            assert now + lease.seconds_left <= last
            assert lease.lost.wait(PATIENCE)
            assert not lease.is_held
            assert lease.reason == "it could not be renewed in time"
        wait_for(lambda: stack.find("cut-off").phase in ENDED, "the end of the reservation")
