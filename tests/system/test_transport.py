"""The transport of the workers and the connections of the client, on a Redis of this test."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from kombu import Connection, pools
from kombu.exceptions import OperationalError

from leasehold.client.redis.transport import RequestTransport
from leasehold.errors import Unavailable
from scheduler.protocol.names import RESERVATIONS, TICKS
from scheduler.view.connection import make_redis
from scheduler.view.redis_ports import RedisNotifier
from tasks.app import PUBLISH_RETRIES, make_app
from tasks.dispatch import CeleryDispatcher
from tasks.messages import check_message
from tasks.queues import TICK
from tasks.transport import Transport
from testbed.proxy import EVERY, Proxy
from testbed.servers import start_own_redis
from workers.embedded_redis import RedisServer
from workers.settings import read_settings


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    started = start_own_redis(tmp_path)
    yield started
    started.stop()


@pytest.fixture
def connection(server: RedisServer) -> Iterator[Connection]:
    with Connection(server.url, transport=Transport) as opened:
        yield opened


@pytest.fixture
def broker(server: RedisServer) -> Iterator[redis.Redis]:
    """A direct connection to Redis."""
    with make_redis(server.url) as client:
        yield client


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[Proxy]:
    with Proxy(server.port) as opened:
        yield opened


@contextmanager
def open_app(port: int) -> Iterator[Celery]:
    made = make_app(read_settings({"broker": {"url": f"redis://127.0.0.1:{port}/0"}}))
    made.conf.broker_transport = "tasks.transport:Transport"
    try:
        yield made
    finally:
        made.pool.force_close_all()  # type: ignore[attr-defined] # the stubs declare another type of pool
        # kombu keeps the pools of a process by address, and the system may give this port to the proxy of a later test.
        for group in (pools.producers, pools.connections):
            with suppress(KeyError):
                del group[made.connection_for_write()]


@pytest.fixture
def app(proxy: Proxy) -> Iterator[Celery]:
    with open_app(proxy.port) as opened:
        yield opened


@pytest.fixture
def wire(proxy: Proxy) -> Iterator[RequestTransport]:
    opened = RequestTransport(f"redis://127.0.0.1:{proxy.port}/0")
    yield opened
    opened.close()


def a_dispatcher(app: Celery) -> CeleryDispatcher:
    return CeleryDispatcher(app, tick_seconds=5)


def test_a_channel_keeps_one_client_as_long_as_its_connection_pool(connection: Connection) -> None:
    channel: Any = connection.channel()
    with channel.conn_or_acquire() as first, channel.conn_or_acquire() as second:
        assert first is second
        assert first is not channel.client
    # kombu calls this when the connection is lost.
    channel._disconnect_pools()
    with channel.conn_or_acquire() as third:
        assert third is not first
        assert third.connection_pool is channel.pool
        assert third.ping()


def test_a_publish_on_a_closed_channel_uses_a_new_one(connection: Connection) -> None:
    producer = connection.Producer()
    closed: Any = producer.channel
    for _ in range(2):
        producer.publish({}, exchange="", routing_key=TICKS, retry=True, retry_policy=PUBLISH_RETRIES)
        closed.close()
    assert producer.channel is not closed
    assert connection.SimpleQueue(TICKS).qsize() == 2


def test_a_pooled_connection_whose_channel_was_closed_takes_messages(app: Celery, broker: redis.Redis) -> None:
    with app.producer_or_acquire() as producer:
        producer.channel.close()
    a_dispatcher(app).send_tick()
    assert broker.llen(TICKS) == 1


def test_an_application_at_the_address_of_an_earlier_one_sends_its_messages(server: RedisServer) -> None:
    for _ in range(2):
        with open_app(server.port) as app:
            a_dispatcher(app).send_tick()
    with make_redis(server.url) as client:
        assert client.llen(TICKS) == 2


@pytest.mark.parametrize("lost", [{1}, {2}, {1, 2}, {2, 3}, {1, 3}])
def test_connections_lost_while_a_message_is_sent_lose_no_message(
    lost: set[int], app: Celery, proxy: Proxy, broker: redis.Redis
) -> None:
    """Connection 1 belongs to the channel; it publishes on connection 2."""
    proxy.lost = lost
    a_dispatcher(app).send_tick()
    assert broker.llen(TICKS) == 1
    assert proxy.taken > max(lost)


def test_after_a_failed_kick_the_next_one_is_sent(app: Celery, proxy: Proxy, broker: redis.Redis) -> None:
    notifier = RedisNotifier(broker, a_dispatcher(app).send_tick)
    proxy.lost = EVERY
    with pytest.raises(OperationalError):
        notifier.kick()
    assert broker.llen(TICKS) == 0
    proxy.lost = ()
    notifier.kick()
    assert broker.llen(TICKS) == 1


def test_a_written_message_for_a_tick_is_the_one_that_is_sent(app: Celery, broker: redis.Redis) -> None:
    dispatcher = a_dispatcher(app)
    dispatcher.send_tick()
    (sent,) = (json.loads(each) for each in broker.lrange(TICKS, 0, -1))
    written = json.loads(dispatcher.write_tick())
    assert check_message(TICKS, written, {TICK})
    for each in (sent, written):
        expires = datetime.fromisoformat(each["headers"].pop("expires")).timestamp()
        assert expires == pytest.approx(time.time() + 10, abs=60)
        # The signals of tasks/app.py add the time of sending to a message that Celery sends.
        each["headers"].pop("sent_at")
        for name in ("id", "root_id"):
            assert each["headers"].pop(name)
        for name in ("correlation_id", "delivery_tag"):
            assert each["properties"].pop(name)
    assert written == sent


def test_a_message_leaves_no_other_key_in_redis(app: Celery, broker: redis.Redis) -> None:
    a_dispatcher(app).send_tick()
    assert broker.keys() == [TICKS.encode()]


def is_taken(wire: RequestTransport) -> bool:
    """Send a message; return whether the broker took it. The client may raise only Unavailable."""
    try:
        wire.send("submit", {"request": "r1"})
    except Unavailable:
        return False
    return True


@pytest.mark.parametrize("lost", [{1}, {2}, {1, 2}, {2, 3}, {1, 3}, {1, 2, 3}])
def test_a_client_whose_connections_were_lost_while_sending_sends_the_next_message(
    lost: set[int], wire: RequestTransport, broker: redis.Redis, proxy: Proxy
) -> None:
    proxy.lost = lost
    taken = sum(is_taken(wire) for _ in range(3))
    # A connection that works is kept, so that later ones are not opened.
    assert taken == 3 or proxy.taken > max(lost)
    assert 0 < taken <= broker.llen(RESERVATIONS)


def test_a_client_whose_connections_were_lost_between_two_messages_sends_the_next_one(
    wire: RequestTransport, broker: redis.Redis
) -> None:
    assert is_taken(wire)
    broker.client_kill_filter(_type="normal", skipme=True)
    assert any(is_taken(wire) for _ in range(2))
    assert broker.llen(RESERVATIONS) >= 2
