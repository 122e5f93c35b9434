"""Callbacks: at least once, whatever the broker answers at the dispatch. On a real Redis that is killed."""

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
from tests.operations.harness import Harness, Mailbox
from tests.servers import start_own_redis
from workers.embedded_redis import RedisServer
from workers.settings import read_settings

QUEUE = "producer"
ON_LEASE = {"task": "producer.started", "queue": QUEUE}


class Post(Mailbox):
    """Slow work waits here as ever; callbacks go to a real broker."""

    def __init__(self, url: str) -> None:
        super().__init__()
        app = make_app(read_settings({"broker": {"url": url}}))
        app.conf.task_publish_retry = False
        self._celery = CeleryDispatcher(app, tick_seconds=5, resend_seconds=10, sweep_seconds=2)

    def send_callback(self, outgoing: OutboxMessage) -> None:
        """See Dispatcher."""
        self._celery.send_callback(outgoing)


class CutOff(RedisNotifier):
    """Its Redis is killed after the commit and before the announcement."""

    def __init__(self, server: RedisServer) -> None:
        super().__init__(make_redis(server.url, connect_seconds=1), lambda: None)
        self._server = server

    def notify(self, reservation: str, notice: Mapping[str, Any]) -> None:
        """See Bell."""
        self._server.kill()
        super().notify(reservation, notice)


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    server = start_own_redis(tmp_path / "redis")
    yield server
    server.stop()


@pytest.fixture
def harness(redis_server: RedisServer) -> Harness:
    """A fleet whose callbacks go through that Redis; r1 is about to be leased."""
    made = Harness()
    made.mailbox = made.ports.dispatcher = Post(redis_server.url)
    made.submit("r1", on_lease=ON_LEASE)
    made.tick()
    made.play_tasks()
    return made


def waiting(harness: Harness) -> list[str]:
    """The callbacks that were not taken yet."""
    return [each.id for each in harness.store.find_outgoing(sent_before=float("inf"))]


def take(server: RedisServer) -> list[dict[str, Any]]:
    """The arguments of the messages on the producer's queue."""
    with make_redis(server.url) as client:
        bodies = [json.loads(each)["body"] for each in client.lrange(QUEUE, 0, -1)]
    return [json.loads(base64.b64decode(body))[0][0] for body in bodies]


def test_a_broker_that_is_down_when_a_lease_begins_gets_its_callback_later(
    harness: Harness, redis_server: RedisServer
) -> None:
    harness.ports.notifier = CutOff(redis_server)
    # The notice is a hint and is not made good; it does not undo what is committed either.
    with pytest.raises(ViewUnavailableError):
        harness.tick()
    assert (harness.phase(), len(waiting(harness))) == ("leased", 1)

    harness.now += 11
    recover(harness.ports)
    assert len(waiting(harness)) == 1

    redis_server.restart()
    harness.now += 11
    recover(harness.ports)
    (told,) = take(redis_server)
    assert (told["event"], told["reservation"], told["leases"][0]["token"]) == ("leased", "r1", harness.token())
    assert waiting(harness) == []

    harness.now += 11
    recover(harness.ports)
    assert len(take(redis_server)) == 1


def test_a_broker_that_takes_it_at_once_gets_it_once(harness: Harness, redis_server: RedisServer) -> None:
    harness.tick()
    harness.now += 11
    recover(harness.ports)
    assert (len(take(redis_server)), waiting(harness)) == (1, [])


def test_a_notice_that_is_lost_loses_no_callback(harness: Harness, redis_server: RedisServer, tmp_path: Path) -> None:
    """The view's Redis may be another one than the broker: the broker is up."""
    harness.ports.notifier = CutOff(start_own_redis(tmp_path / "view"))
    with pytest.raises(ViewUnavailableError):
        harness.tick()
    harness.now += 11
    recover(harness.ports)
    assert (len(take(redis_server)), waiting(harness)) == (1, [])
