"""Callbacks are sent at least once, also when the broker is down at the first attempt. Uses a real Redis."""

import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from scheduler.operations.machines.check import recover
from scheduler.ports import OutboxMessage, ViewUnavailableError
from scheduler.view.connection import make_redis
from scheduler.view.redis_ports import RedisNotifier
from tasks.app import make_app
from tasks.dispatch import CeleryDispatcher
from testbed.servers import start_own_redis
from tests.operations.harness import Harness, Mailbox
from workers.embedded_redis import RedisServer
from workers.settings import read_settings

QUEUE = "producer"
ON_LEASE = {"task": "producer.started", "queue": QUEUE}


class CallbackMailbox(Mailbox):
    """Keeps messages of tasks and sends callbacks to a real broker."""

    def __init__(self, url: str) -> None:
        super().__init__()
        app = make_app(read_settings({"broker": {"url": url}}))
        app.conf.task_publish_retry = False
        self._celery = CeleryDispatcher(app, tick_seconds=5)

    def send_callback(self, outgoing: OutboxMessage) -> None:
        self._celery.send_callback(outgoing)


class KillingNotifier(RedisNotifier):
    """A notifier that kills its Redis before the first notice, so after the commit."""

    def __init__(self, server: RedisServer) -> None:
        super().__init__(make_redis(server.url, connect_seconds=1), lambda: None)
        self._server = server

    def notify(self, notices: Mapping[str, Mapping[str, Any]]) -> None:
        self._server.kill()
        super().notify(notices)


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    server = start_own_redis(tmp_path / "redis")
    yield server
    server.stop()


@pytest.fixture
def harness(redis_server: RedisServer) -> Harness:
    """A harness whose callbacks are sent to that Redis; the next tick leases r1."""
    made = Harness()
    made.mailbox = made.ports.dispatcher = CallbackMailbox(redis_server.url)
    made.submit("r1", on_lease=ON_LEASE)
    made.tick()
    made.play_tasks()
    return made


def waiting(harness: Harness) -> list[str]:
    """Return the ids of the callbacks that are not sent yet."""
    return [each.id for each in harness.store.find_outgoing(sent_before=float("inf"))]


def take(server: RedisServer) -> list[dict[str, Any]]:
    """Return the arguments of the messages on the producer's queue."""
    with make_redis(server.url) as client:
        bodies = [json.loads(each)["body"] for each in client.lrange(QUEUE, 0, -1)]
    return [json.loads(base64.b64decode(body))[0][0] for body in bodies]


def test_a_callback_is_sent_later_when_the_broker_is_down_at_first(harness: Harness, redis_server: RedisServer) -> None:
    harness.ports.notifier = KillingNotifier(redis_server)
    # A lost notice is not repeated, and the commit stays.
    with pytest.raises(ViewUnavailableError):
        harness.tick()
    assert (harness.phase(), len(waiting(harness))) == ("leased", 1)

    harness.now += 11
    recover(harness.ports)
    assert len(waiting(harness)) == 1

    redis_server.restart()
    harness.now += 11
    recover(harness.ports)
    (callback,) = take(redis_server)
    assert (callback["event"], callback["reservation"], callback["leases"][0]["token"]) == (
        "leased",
        "r1",
        harness.token(),
    )
    assert waiting(harness) == []

    harness.now += 11
    recover(harness.ports)
    assert len(take(redis_server)) == 1


def test_a_callback_that_the_broker_takes_at_once_is_sent_once(harness: Harness, redis_server: RedisServer) -> None:
    harness.tick()
    harness.now += 11
    recover(harness.ports)
    assert (len(take(redis_server)), waiting(harness)) == (1, [])


def test_a_lost_notice_loses_no_callback(harness: Harness, redis_server: RedisServer, tmp_path: Path) -> None:
    """The view may be on another Redis than the broker; here only the Redis of the view fails."""
    harness.ports.notifier = KillingNotifier(start_own_redis(tmp_path / "view"))
    with pytest.raises(ViewUnavailableError):
        harness.tick()
    harness.now += 11
    recover(harness.ports)
    assert (len(take(redis_server)), waiting(harness)) == (1, [])
