"""The lengths of the queues and the ages of their oldest messages, on a real Redis."""

import json
import time
from typing import Any

import pytest
import redis

from leasehold import Client
from leasehold.client.redis.transport import RequestTransport
from scheduler.ports import ViewUnavailableError
from scheduler.protocol.names import CANARY, LAUNCH, QUEUE_NAMES, RESERVATIONS, task_name
from scheduler.view.connection import make_redis
from tasks.app import make_app
from testbed.servers import redis_client, redis_server, redis_url
from workers.queue_watch import QueueWatch, WaitingMessages
from workers.settings import read_settings

__all__ = ["redis_client", "redis_server", "redis_url"]


class Clock:
    """A clock that only the test advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watch(redis_client: redis.Redis, clock: Clock) -> QueueWatch:
    return QueueWatch(redis_client, clock)


def a_message(**headers: Any) -> str:
    return json.dumps({"body": "", "headers": {"task": "x", **headers}})


def test_the_watched_queues_are_those_of_the_tasks(watch: QueueWatch) -> None:
    assert set(watch.read()) == set(QUEUE_NAMES)
    assert set(watch.read().values()) == {WaitingMessages(0, 0.0)}


def test_the_oldest_message_is_the_one_that_is_taken_next(watch: QueueWatch, redis_client: redis.Redis) -> None:
    redis_client.lpush(LAUNCH, a_message(sent_at=940.0), a_message(sent_at=990.0))
    assert watch.read()[LAUNCH] == WaitingMessages(2, 60.0)
    redis_client.rpop(LAUNCH)
    assert watch.read()[LAUNCH] == WaitingMessages(1, 10.0)


def test_messages_of_every_priority_count(watch: QueueWatch, redis_client: redis.Redis) -> None:
    redis_client.lpush(LAUNCH, a_message(sent_at=990.0))
    redis_client.lpush(f"{LAUNCH}\x06\x169", a_message(sent_at=970.0))
    assert watch.read()[LAUNCH] == WaitingMessages(2, 30.0)


@pytest.mark.parametrize("message", [a_message(), a_message(sent_at="soon"), "no JSON", "[]"])
def test_the_age_of_a_message_without_a_time_counts_from_when_it_was_seen_first(
    message: str, watch: QueueWatch, redis_client: redis.Redis, clock: Clock
) -> None:
    redis_client.lpush(LAUNCH, message)
    assert watch.read()[LAUNCH] == WaitingMessages(1, 0.0)
    clock.now += 25
    assert watch.read()[LAUNCH] == WaitingMessages(1, 25.0)
    redis_client.rpop(LAUNCH)
    assert watch.read()[LAUNCH] == WaitingMessages(0, 0.0)
    redis_client.lpush(LAUNCH, message)
    assert watch.read()[LAUNCH] == WaitingMessages(1, 0.0)


def test_a_sender_whose_clock_is_ahead_makes_no_negative_age(watch: QueueWatch, redis_client: redis.Redis) -> None:
    redis_client.lpush(LAUNCH, a_message(sent_at=1030.0))
    assert watch.read()[LAUNCH] == WaitingMessages(1, 0.0)


def test_messages_of_tasks_and_of_the_client_contain_their_sending_time(
    redis_url: str, redis_client: redis.Redis
) -> None:
    make_app(read_settings({"broker": {"url": redis_url}})).send_task(task_name(LAUNCH, CANARY), args=["x"])
    with Client(redis_url) as client:
        assert isinstance(client._wire, RequestTransport)
        client._wire.send("release", {"reservation": "r1", "token": 3, "request": "q", "reply_to": "a"})
    found = QueueWatch(redis_client, time.time).read()
    assert (found[LAUNCH].count, found[RESERVATIONS].count) == (1, 1)
    for queue in (LAUNCH, RESERVATIONS):
        envelope = json.loads(redis_client.lindex(queue, -1))  # type: ignore[arg-type]
        assert isinstance(envelope["headers"]["sent_at"], float)


def test_a_redis_user_with_permission_to_count_only_gets_no_age(redis_url: str, redis_client: redis.Redis) -> None:
    redis_client.acl_setuser("counter", enabled=True, passwords=["+x"], keys=["*"], commands=["+llen", "+ping"])
    try:
        redis_client.lpush(LAUNCH, a_message(sent_at=940.0))
        with make_redis(redis_url.replace("redis://", "redis://counter:x@")) as counter:
            assert QueueWatch(counter, time.time).read()[LAUNCH] == WaitingMessages(1, None)
    finally:
        redis_client.acl_deluser("counter")


def test_a_broker_that_cannot_be_reached_raises_view_unavailable() -> None:
    with make_redis("redis://127.0.0.1:1/0") as client, pytest.raises(ViewUnavailableError):
        QueueWatch(client, time.time).read()
