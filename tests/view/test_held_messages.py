"""How many messages the intake's main process holds, and the records that it keeps of them in Redis."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from scheduler.protocol.names import LAUNCH, RESERVATIONS, TICKS
from tasks import held_messages
from tasks.held_messages import QoS
from tasks.queues import HELD_A_PROCESS, MOST_BYTES, TICK

PROCESSES = 2
SUBMIT = "leasehold.reservations.submit"


class FakeChannel:
    """The part of a channel that keeps records."""

    unacked_key, unacked_index_key, visibility_timeout = "unacked", "unacked_index", 300
    connection_errors = (redis.ConnectionError,)
    do_restore = False

    def __init__(self, client: redis.Redis, queue: str) -> None:
        self._client, self.active_queues = client, [queue]

    @contextmanager
    def conn_or_acquire(self, _client: object = None) -> Iterator[redis.Redis]:
        yield self._client


class Loop:
    """The loop of a worker, whose timers a test runs."""

    def __init__(self) -> None:
        self.ready: list[Callable[[], object]] = []

    def call_later(self, _seconds: float, act: Callable[[], object]) -> None:
        """Call `act` later."""
        self.ready.append(act)


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    """A loop that runs, and a clock."""
    loop = Loop()
    monkeypatch.setattr(held_messages, "get_event_loop", lambda: loop)
    monkeypatch.setattr(held_messages, "read_clock", lambda: 1000.0)
    return loop


def make_qos(client: redis.Redis, prefetch: int, queue: str = RESERVATIONS) -> QoS:
    return QoS(FakeChannel(client, queue), prefetch)


def hold(qos: QoS, tag: str, task: str = SUBMIT, body: str = "[]", queue: str = RESERVATIONS) -> None:
    delivery = {"exchange": "", "routing_key": queue}
    message: Any = SimpleNamespace(headers={"task": task}, body=body, delivery_info=delivery, _raw={"body": body})
    qos.append(message, tag)


@pytest.mark.usefixtures("loop")
def test_a_worker_holds_many_short_requests_and_few_other_messages(redis_client: redis.Redis) -> None:
    qos = make_qos(redis_client, PROCESSES * HELD_A_PROCESS)
    for number in range(PROCESSES * HELD_A_PROCESS - 1):
        hold(qos, f"t{number}")
    assert (qos.can_consume(), qos.room) == (True, 1)
    hold(qos, "last")
    assert (qos.can_consume(), qos.room) == (False, 0)

    others = make_qos(redis_client, PROCESSES * HELD_A_PROCESS)
    hold(others, "o1", body="x" * (MOST_BYTES + 1))
    assert others.can_consume()
    hold(others, "o2", body="x" * (MOST_BYTES + 1))
    assert (others.can_consume(), others.room) == (False, 0)
    others.ack("o1")
    assert others.can_consume()
    others.reject("o2")
    hold(others, "o3")
    assert others.room == PROCESSES * HELD_A_PROCESS - 1


@pytest.mark.usefixtures("loop")
def test_workers_of_other_queues_hold_a_message_for_each_thread(redis_client: redis.Redis) -> None:
    qos = make_qos(redis_client, PROCESSES, LAUNCH)
    hold(qos, "t1", "leasehold.launch.slot")
    assert qos.can_consume()
    hold(qos, "t2", "leasehold.launch.slot")
    assert not qos.can_consume()


@pytest.mark.usefixtures("loop")
def test_a_message_whose_record_is_stored_already_is_held_without_another_record(redis_client: redis.Redis) -> None:
    qos = make_qos(redis_client, 10)
    assert qos.accept_recorded("t1", lambda: hold(qos, "t1"))
    assert redis_client.hlen("unacked") == 0
    hold(qos, "t2")
    assert redis_client.hkeys("unacked") == [b"t2"]
    assert redis_client.zscore("unacked_index", "t2") == 1000.0


@pytest.mark.usefixtures("loop")
def test_the_record_of_a_message_that_is_refused_is_deleted(redis_client: redis.Redis) -> None:
    qos = make_qos(redis_client, 10)
    redis_client.hset("unacked", "t1", "[]")
    redis_client.zadd("unacked_index", {"t1": 1000.0})
    assert not qos.accept_recorded("t1", lambda: None)
    qos.forget(["t1"])
    assert (redis_client.hlen("unacked"), redis_client.zcard("unacked_index")) == (0, 0)


def test_acknowledgements_are_collected_and_sent_together(redis_client: redis.Redis, loop: Loop) -> None:
    qos = make_qos(redis_client, 2)
    hold(qos, "t1")
    hold(qos, "t2")
    qos.ack("t1")
    qos.ack("t2")
    assert qos.can_consume()
    assert redis_client.hlen("unacked") == 2
    (act,) = loop.ready
    act()
    assert (redis_client.hlen("unacked"), redis_client.zcard("unacked_index")) == (0, 0)


def test_a_message_for_a_tick_gets_a_record_only_if_the_tick_lasts(redis_client: redis.Redis, loop: Loop) -> None:
    qos = make_qos(redis_client, 2, TICKS)
    hold(qos, "short", TICK, queue=TICKS)
    hold(qos, "long", TICK, queue=TICKS)
    qos.ack("short")
    assert qos.held == 1
    assert redis_client.hlen("unacked") == 0
    loop.ready.pop(0)()
    assert (loop.ready, redis_client.hkeys("unacked")) == ([], [b"long"])
    assert redis_client.zscore("unacked_index", "long") == 1000.0
    qos.ack("long")
    (act,) = loop.ready
    act()
    assert (redis_client.hlen("unacked"), redis_client.zcard("unacked_index")) == (0, 0)


@pytest.mark.usefixtures("loop")
def test_a_message_for_a_tick_that_is_returned_to_its_queue_gets_its_record_first(redis_client: redis.Redis) -> None:
    qos = make_qos(redis_client, 2, TICKS)
    hold(qos, "rejected", TICK, queue=TICKS)
    qos.reject("rejected")
    assert redis_client.hlen("unacked") == 0
    hold(qos, "left", TICK, queue=TICKS)
    qos.restore_unacked_once()
    assert redis_client.hkeys("unacked") == [b"left"]


@pytest.mark.usefixtures("loop")
def test_a_worker_that_stops_acknowledges_first(redis_client: redis.Redis) -> None:
    qos = make_qos(redis_client, 2)
    hold(qos, "t1")
    qos.ack("t1")
    qos.restore_unacked_once()
    assert redis_client.hlen("unacked") == 0


@pytest.mark.usefixtures("loop")
def test_a_message_is_held_until_it_is_acknowledged(redis_client: redis.Redis) -> None:
    qos = make_qos(redis_client, 10)
    hold(qos, "t1")
    hold(qos, "t2")
    assert qos.held == 2
    qos.ack("t1")
    assert qos.held == 1
