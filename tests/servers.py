"""Servers for tests: each one of our own, started on demand, skipped where no server is installed.

`redis_server` is the one that the stack takes, Valkey. Tests of what speaks to the server itself run on every kind that
is there (`SERVERS`): with a redis-server on the PATH, on Redis too.
"""

import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
import redis

from scheduler.view.connection import make_redis
from tests.guarding import Guarded
from tests.postgresql_server import PostgresServer, start_own_postgresql
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
"""The URL of the shared server of this kind (of `SERVERS`), flushed."""
_BINARIES: Final = {binary.name: binary for binary in reversed(list_redis_servers())}
SERVERS: Final = tuple(reversed(_BINARIES))
"""The kinds of servers that can be started here, each once: `valkey-server`, `redis-server` where it is installed."""


def start_own_redis(
    directory: Path, login: tuple[str, str] | None = None, kind: str | None = None, **config: str
) -> RedisServer:
    """A server for one test alone, to be flushed, killed and restarted; the caller stops it. `kind`: of `SERVERS`."""
    if not SERVERS:
        pytest.skip(NO_SERVER)
    binary = _BINARIES[kind or SERVERS[0]]
    return start_redis(directory, config=config, binary=binary, login=login, launch=launch_guarded)


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


@pytest.fixture(scope="session")
def find_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FindRedis]:
    """One shared server of each kind, started when it is first asked for."""
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
    """A client of the shared Redis, which is empty."""
    with make_redis(redis_url) as client:
        yield client


@pytest.fixture
def open_redis() -> Iterator[OpenRedis]:
    """Opens clients, each a process of its own as Redis sees it; they are closed after the test."""
    with ExitStack() as clients:
        yield lambda url: clients.enter_context(make_redis(url))
