"""Connections of the client that are lost while it sends a message, on a Redis of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from leasehold.errors import Unavailable
from leasehold.wire import QUEUE, Wire
from scheduler.view.connection import make_redis
from tests.proxy import Proxy
from tests.servers import start_own_redis
from workers.embedded_redis import RedisServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    started = start_own_redis(tmp_path)
    yield started
    started.stop()


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[Proxy]:
    """What the client takes for Redis."""
    with Proxy(server.port) as opened:
        yield opened


@pytest.fixture
def broker(server: RedisServer) -> Iterator[redis.Redis]:
    """Redis itself."""
    with make_redis(server.url) as client:
        yield client


@pytest.fixture
def wire(proxy: Proxy) -> Iterator[Wire]:
    opened = Wire(f"redis://127.0.0.1:{proxy.port}/0")
    yield opened
    opened.close()


def is_taken(wire: Wire) -> bool:
    """Whether the broker took one message more. The client says that it did not with this error alone."""
    try:
        wire.send("submit", {"request": "r1"})
    except Unavailable:
        return False
    return True


@pytest.mark.parametrize("lost", [{1}, {2}, {1, 2}, {2, 3}, {1, 3}, {1, 2, 3}])
def test_who_lost_connections_while_a_message_was_sent_sends_the_next_one(
    lost: set[int], wire: Wire, broker: redis.Redis, proxy: Proxy
) -> None:
    proxy.lost = lost
    taken = sum(is_taken(wire) for _ in range(3))
    assert proxy.taken > max(lost)
    assert 0 < taken <= broker.llen(QUEUE)


def test_who_lost_connections_between_two_messages_sends_the_next_one(wire: Wire, broker: redis.Redis) -> None:
    assert is_taken(wire)
    broker.client_kill_filter(_type="normal", skipme=True)
    assert any(is_taken(wire) for _ in range(2))
    assert broker.llen(QUEUE) >= 2
