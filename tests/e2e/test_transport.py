"""The transport of our workers, on a Redis of its own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection

from tasks.transport import Transport
from tests.servers import start_own_redis


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    server = start_own_redis(tmp_path)
    with Connection(server.url, transport=Transport) as opened:
        yield opened
    server.stop()


def test_a_channel_keeps_one_client_for_as_long_as_its_pool_of_connections_lives(connection: Connection) -> None:
    channel: Any = connection.channel()
    with channel.conn_or_acquire() as first, channel.conn_or_acquire() as second:
        assert first is second
        assert first is not channel.client
    # As kombu does when the connection is lost.
    channel._disconnect_pools()
    with channel.conn_or_acquire() as third:
        assert third is not first
        assert third.connection_pool is channel.pool
        assert third.ping()
