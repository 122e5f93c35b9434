"""A lost message, a killed worker or an unreachable Redis causes a delay; nothing is done twice or forgotten."""

import base64
import json
import os
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager

import pytest

from leasehold import Client
from leasehold.client.models import Reservation
from scheduler.model.transitions import ENDED
from scheduler.ports import EventFilter
from scheduler.protocol.names import RESERVATIONS
from testbed.processes import PATIENCE, wait_for
from testbed.stack import Stack

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
def awaiting_start(stack: Stack, *names: str) -> Iterator[None]:
    """Wait at the end of this block until the intake has sent the event that it started the task of a message that
    contains one of these names. Events about other tasks, like canaries, come at any time.
    """
    started: set[str] = set()
    with closing(stack.redis.pubsub(ignore_subscribe_messages=True)) as channel:  # type: ignore[no-untyped-call]
        channel.psubscribe("*celeryev/*")
        channel.get_message(timeout=5)
        yield

        def is_started() -> bool:
            while (message := channel.get_message()) is not None:
                started.update(_list_started(message))
            return not started.isdisjoint(_find_held(stack, names))

        wait_for(is_started, f"the start of the task of {names[0]} …")


def _list_started(message: dict[str, bytes]) -> list[str]:
    """Return the ids of the tasks whose start in the intake this message reports."""
    found = json.loads(base64.b64decode(json.loads(message["data"])["body"]))
    events = found if isinstance(found, list) else [found]
    place = ("task-started", RESERVATIONS)
    return [each["uuid"] for each in events if (each["type"], each["hostname"].split("@")[0]) == place]


def _find_held(stack: Stack, names: Sequence[str]) -> set[str]:
    """Return the ids of the messages with one of these names that workers hold. A worker records them before it starts
    their tasks, and keeps the record until their tasks have ended.
    """
    held = [json.loads(each)[0] for each in stack.redis.hvals("unacked")]
    bodies = {each["headers"]["id"]: base64.b64decode(each["body"]).decode() for each in held}
    return {id_ for id_, body in bodies.items() if any(json.dumps(name) in body for name in names)}


@contextmanager
def writes_paused(stack: Stack) -> Iterator[None]:
    """Let Redis answer no writing command within this block, so that a task publishes and answers nothing. It answers
    reading ones, because a task reads there before it begins its transaction.
    """
    stack.redis.client_pause(int(10 * PATIENCE * 1000), all=False)
    try:
        yield
    finally:
        stack.redis.client_unpause()


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
    """Kill the worker after the commit and before it publishes, kicks and answers, while Redis takes no writes."""
    with ExitStack() as pause:
        with database_locked(stack):
            with awaiting_start(stack, name):
                producer = Producer(stack, name)
            pause.enter_context(writes_paused(stack))
        wait_for(lambda: is_stored(stack, name), "the commit")
        stack.processes[RESERVATIONS].kill()
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
        with awaiting_start(stack, "held"):
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
