"""Every implementation of the ports of belief, by the names of the tests' parameters: in memory, and on each kind of
server that is here.
"""

from collections.abc import Callable, Iterator

import pytest

from scheduler.ports import Bell, Board, Lock, Meter
from scheduler.view.connection import make_redis
from scheduler.view.memory import MemoryBell, MemoryBoard, MemoryLock, MemoryMeter, Seat
from scheduler.view.redis_bell import RedisBell
from scheduler.view.redis_board import RedisBoard
from scheduler.view.redis_lock import RedisLock
from scheduler.view.redis_meter import RedisMeter
from scheduler.view.shelf import Shelf
from tests.builders import NOW
from tests.servers import SERVERS, FindRedis, OpenRedis, find_redis, open_redis, redis_client

__all__ = ["find_redis", "open_redis", "redis_client"]

MakeBoard = Callable[[], Board]
MakeLock = Callable[[], Lock]
MakeBell = Callable[[Callable[[], None]], Bell]
WORLDS = ("memory", *SERVERS)


@pytest.fixture(params=SERVERS)
def redis_url(request: pytest.FixtureRequest, find_redis: FindRedis) -> str:
    """The URL of a shared server, flushed: a test that asks for it runs on each kind of server."""
    return find_redis(request.param)


@pytest.fixture(params=WORLDS)
def make_board(request: pytest.FixtureRequest, find_redis: FindRedis, open_redis: OpenRedis) -> MakeBoard:
    """Makes boards of several processes over one view, which was not built yet."""
    if request.param == "memory":
        shelf = Shelf(lambda: NOW)
        return lambda: MemoryBoard(shelf)
    url = find_redis(request.param)
    return lambda: RedisBoard(open_redis(url))


@pytest.fixture(params=WORLDS)
def make_lock(request: pytest.FixtureRequest, find_redis: FindRedis, open_redis: OpenRedis) -> MakeLock:
    """Makes locks of several processes that contend for one seat, free at first."""
    if request.param == "memory":
        seat = Seat()
        return lambda: MemoryLock(seat)
    url = find_redis(request.param)
    return lambda: RedisLock(open_redis(url))


@pytest.fixture(params=WORLDS)
def make_bell(request: pytest.FixtureRequest, find_redis: FindRedis) -> Iterator[MakeBell]:
    """Makes a bell that sends ticks by the function given."""
    if request.param == "memory":
        yield MemoryBell
        return
    with make_redis(find_redis(request.param)) as client:
        yield lambda send_tick: RedisBell(client, send_tick)


@pytest.fixture(params=WORLDS)
def meter(request: pytest.FixtureRequest, find_redis: FindRedis, open_redis: OpenRedis) -> Meter:
    """A meter of each kind, empty."""
    if request.param == "memory":
        return MemoryMeter()
    return RedisMeter(open_redis(find_redis(request.param)))
