"""Servers for tests, started on demand; tests are skipped if no server is installed.

`redis_server` is the one that the stack prefers, Valkey. Tests of commands that speak to the server run on every
installed kind (`SERVERS`): with a redis-server on the PATH, on Redis too.
"""

import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
import redis

from scheduler.view.connection import make_redis
from testbed.guarding import Guarded
from testbed.postgresql_server import PostgresServer, start_own_postgresql
from workers.embedded_redis import NO_SERVER, RedisServer, list_redis_servers, start_redis

__all__ = [
    "SERVERS",
    "FindRedis",
    "OpenRedis",
    "PostgresServer",
    "find_redis",
    "open_redis",
    "redis_client",
    "redis_server",
    "redis_url",
    "start_own_postgresql",
    "start_own_redis",
]

OpenRedis = Callable[[str], redis.Redis]
FindRedis = Callable[[str], str]
"""Returns the URL of the shared server of a kind (of `SERVERS`), flushed."""
_BINARIES: Final = {binary.name: binary for binary in reversed(list_redis_servers())}
SERVERS: Final = tuple(reversed(_BINARIES))
"""The kinds of installed servers: `valkey-server`, `redis-server`."""


def start_own_redis(
    directory: Path, login: tuple[str, str] | None = None, kind: str | None = None, **config: str
) -> RedisServer:
    """Start a server for one test, which may flush, kill and restart it; the caller stops it. `kind`: of `SERVERS`."""
    if not SERVERS:
        pytest.skip(NO_SERVER)
    binary = _BINARIES[kind or SERVERS[0]]
    return start_redis(directory, config=config, binary=binary, login=login, launch=launch_guarded)


def launch_guarded(command: Sequence[str]) -> Guarded:
    """Start a server that ends with the tests."""
    return Guarded(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Yield the Redis that all tests of this run share. A test uses its own prefix or flushes it before."""
    server = start_own_redis(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """Return the URL of the shared Redis, flushed."""
    with make_redis(redis_server.url) as client:
        client.flushall()
    return redis_server.url


@pytest.fixture(scope="session")
def find_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FindRedis]:
    """Yield a function that starts a shared server of each kind at its first use."""
    running: dict[str, RedisServer] = {}

    def find(kind: str) -> str:
        if kind not in running:
            running[kind] = start_own_redis(tmp_path_factory.mktemp(kind), kind=kind)
        with make_redis(running[kind].url) as client:
            client.flushall()
        return running[kind].url

    yield find
    for server in running.values():
        server.stop()


@pytest.fixture
def redis_client(redis_url: str) -> Iterator[redis.Redis]:
    """Yield a client of the shared, empty Redis."""
    with make_redis(redis_url) as client:
        yield client


@pytest.fixture
def open_redis() -> Iterator[OpenRedis]:
    """Yield a function that opens clients with connections of their own, which are closed after the test."""
    with ExitStack() as clients:
        yield lambda url: clients.enter_context(make_redis(url))
