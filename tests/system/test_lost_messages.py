"""A message lost, a worker killed, a Redis gone: each costs a delay, and nothing is done twice or forgotten."""

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


class Asking(threading.Thread):
    """A producer that asks for one reservation and waits for its answer."""

    def __init__(self, stack: Stack, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._stack = stack
        self.answers: list[Reservation] = []
        self.start()

    def run(self) -> None:
        """As any producer does."""
        with Client(self._stack.redis_server.url, timeout=2 * PATIENCE) as client:
            self.answers.append(client.reserve(id=self.name, pool="warm"))


@contextmanager
def database_locked(stack: Stack) -> Iterator[None]:
    """Nobody else can write within this block: a task that is to change something waits at its first statement."""
    with sqlite3.connect(stack.folder / "leasehold.db", isolation_level=None) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")
    connection.close()


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """The process answers no message within this block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def await_taken(stack: Stack) -> None:
    """Until a worker has a message of the queue `reservations` that it has not acknowledged."""
    wait_for(
        lambda: any(b"leasehold.reservations.submit" in body for body in stack.redis.hvals("unacked")),
        "a request that is under way",
    )


@contextmanager
def awaiting_start(stack: Stack) -> Iterator[None]:
    """The end of this block waits until the intake has begun with a task, as its event tells."""
    with closing(stack.redis.pubsub(ignore_subscribe_messages=True)) as channel:  # type: ignore[no-untyped-call]
        channel.psubscribe("*celeryev/*")
        channel.get_message(timeout=5)
        yield
        wait_for(lambda: _tells_of_start(channel.get_message(timeout=1)), "the start of the task")


def _tells_of_start(message: dict[str, bytes] | None) -> bool:
    if message is None:
        return False
    found = json.loads(base64.b64decode(json.loads(message["data"])["body"]))
    events = found if isinstance(found, list) else [found]
    return any((each["type"], each["hostname"].split("@")[0]) == ("task-started", RESERVATIONS) for each in events)


def is_stored(stack: Stack, name: str) -> bool:
    return bool(stack.services.ports.store.find_reservations(ids=[name]))


def lose_the_message(stack: Stack, name: str) -> Asking:
    """It vanishes from the queue before any worker has seen it."""
    stack.processes[RESERVATIONS].kill()
    asking = Asking(stack, name)
    wait_for(lambda: stack.redis.llen(RESERVATIONS), "the message")
    stack.redis.delete(RESERVATIONS)
    return asking


def kill_before_the_commit(stack: Stack, name: str) -> Asking:
    """The worker has the message, and dies before anything of it is written."""
    with database_locked(stack):
        asking = Asking(stack, name)
        await_taken(stack)
        stack.processes[RESERVATIONS].kill()
    assert not is_stored(stack, name)
    return asking


def kill_between_commit_and_answer(stack: Stack, name: str) -> Asking:
    """It is written; the worker dies before it has published, kicked and answered: Redis stands still."""
    with database_locked(stack):
        with awaiting_start(stack):
            asking = Asking(stack, name)
        os.kill(stack.redis_server.pid, signal.SIGSTOP)
    try:
        wait_for(lambda: is_stored(stack, name), "the commit")
        stack.processes[RESERVATIONS].kill()
    finally:
        os.kill(stack.redis_server.pid, signal.SIGCONT)
    assert asking.answers == []
    return asking


@pytest.mark.parametrize("damage", [lose_the_message, kill_before_the_commit, kill_between_commit_and_answer])
def test_the_client_gets_its_one_answer_and_nothing_is_doubled(
    stack: Stack, damage: Callable[[Stack, str], Asking]
) -> None:
    name = damage.__name__.replace("_", "-")
    asking = damage(stack, name)
    stack.processes[RESERVATIONS].start()
    asking.join(2 * PATIENCE)
    assert [(row.id, row.phase in {"pending", "leased"}) for row in asking.answers] == [(name, True)]
    (row,) = stack.await_phase([name], "leased")
    events = stack.services.ports.store.read_events(EventFilter(reservation=name))
    assert [event.name for event in events] == ["reservation_submitted", "reservation_leased"]
    assert stack.ask("release", {"reservation": name, "token": row.token})["ok"]


def test_a_worker_survives_the_end_of_its_redis_while_it_holds_a_message(stack: Stack) -> None:
    """Celery 5.7.0 exits here ('NoneType' object has no attribute 'hostname'): why the lock stays on 5.6.3."""
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


def test_a_holder_without_answers_lets_go_by_its_own_clock(stack: Stack) -> None:
    """Not later than the database gives the slot to another reservation."""
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
        wait_for(lambda: stack.find("cut-off").phase in ENDED, "its end")
