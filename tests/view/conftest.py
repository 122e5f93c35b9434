"""Every implementation of the ports of belief, by the names of the tests' parameters."""

from collections.abc import Callable, Iterator

import pytest

from scheduler.ports import Bell, Board, Lock
from scheduler.view.connection import make_redis
from scheduler.view.memory import MemoryBell, MemoryBoard, MemoryLock, Seat
from scheduler.view.redis_bell import RedisBell
from scheduler.view.redis_board import RedisBoard
from scheduler.view.redis_lock import RedisLock
from scheduler.view.shelf import Shelf
from tests.builders import NOW
from tests.servers import OpenRedis, open_redis, redis_client, redis_server, redis_url

__all__ = ["open_redis", "redis_client", "redis_server", "redis_url"]

MakeBoard = Callable[[], Board]
MakeLock = Callable[[], Lock]
MakeBell = Callable[[Callable[[], None]], Bell]
WORLDS = ("memory", "redis")


@pytest.fixture(params=WORLDS)
def make_board(request: pytest.FixtureRequest) -> MakeBoard:
    """Makes boards of several processes over one view, which was not built yet."""
    if request.param == "memory":
        shelf = Shelf(lambda: NOW)
        return lambda: MemoryBoard(shelf)
    url: str = request.getfixturevalue("redis_url")
    open_: OpenRedis = request.getfixturevalue("open_redis")
    return lambda: RedisBoard(open_(url))


@pytest.fixture(params=WORLDS)
def make_lock(request: pytest.FixtureRequest) -> MakeLock:
    """Makes locks of several processes that contend for one seat, free at first."""
    if request.param == "memory":
        seat = Seat()
        return lambda: MemoryLock(seat)
    url: str = request.getfixturevalue("redis_url")
    open_: OpenRedis = request.getfixturevalue("open_redis")
    return lambda: RedisLock(open_(url))


@pytest.fixture(params=WORLDS)
def make_bell(request: pytest.FixtureRequest) -> Iterator[MakeBell]:
    """Makes a bell that sends ticks by the function given."""
    if request.param == "memory":
        yield MemoryBell
        return
    with make_redis(request.getfixturevalue("redis_url")) as client:
        yield lambda send_tick: RedisBell(client, send_tick)
