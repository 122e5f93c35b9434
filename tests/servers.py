"""Servers for tests: each one of our own, started on demand, skipped where no server is installed."""

import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis

from scheduler.view.connection import make_redis
from tests.guarding import Guarded
from tests.postgresql_server import PostgresServer, start_own_postgresql
from workers.embedded_redis import RedisServer, find_redis_server, start_redis

__all__ = [
    "OpenRedis",
    "PostgresServer",
    "open_redis",
    "redis_client",
    "redis_server",
    "redis_url",
    "start_own_postgresql",
    "start_own_redis",
]

OpenRedis = Callable[[str], redis.Redis]


def start_own_redis(directory: Path, login: tuple[str, str] | None = None, **config: str) -> RedisServer:
    """A Redis for one test alone, to be flushed, killed and restarted; the caller stops it."""
    if find_redis_server() is None:
        pytest.skip("no redis-server here: install Redis 6.2 or newer")
    return start_redis(directory, config=config, login=login, launch=launch_guarded)


def launch_guarded(command: Sequence[str]) -> Guarded:
    """Start a server that ends with the tests."""
    return Guarded(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """The Redis that all tests of this run share; each keeps to a prefix of its own or flushes before."""
    server = start_own_redis(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """The URL of the shared Redis, flushed."""
    with make_redis(redis_server.url) as client:
        client.flushall()
    return redis_server.url


@pytest.fixture
def redis_client(redis_url: str) -> Iterator[redis.Redis]:
    """A client of the shared Redis, which is empty."""
    with make_redis(redis_url) as client:
        yield client


@pytest.fixture
def open_redis() -> Iterator[OpenRedis]:
    """Opens clients, each a process of its own as Redis sees it; they are closed after the test."""
    with ExitStack() as clients:
        yield lambda url: clients.enter_context(make_redis(url))
