"""Every implementation of the ports of belief, by the names of the tests' parameters: in memory, and on each kind of
server that is here.
"""

from collections.abc import Callable, Iterator

import pytest

from scheduler.ports import LeaderLock, Meter, Notifier, ViewCache
from scheduler.view.connection import make_redis
from scheduler.view.in_memory_redis import InMemoryRedis
from scheduler.view.memory import LockHolder, MemoryLeaderLock, MemoryMeter, MemoryNotifier, MemoryViewCache
from scheduler.view.redis_leader_lock import RedisLeaderLock
from scheduler.view.redis_meter import RedisMeter
from scheduler.view.redis_notifier import RedisNotifier
from scheduler.view.redis_view_cache import RedisViewCache
from tests.builders import NOW
from tests.servers import SERVERS, FindRedis, OpenRedis, find_redis, open_redis, redis_client

__all__ = ["find_redis", "open_redis", "redis_client"]

MakeBoard = Callable[[], ViewCache]
MakeLock = Callable[[], LeaderLock]
MakeBell = Callable[[Callable[[], None]], Notifier]
WORLDS = ("memory", *SERVERS)


@pytest.fixture(params=SERVERS)
def redis_url(request: pytest.FixtureRequest, find_redis: FindRedis) -> str:
    """The URL of a shared server, flushed: a test that asks for it runs on each kind of server."""
    return find_redis(request.param)


@pytest.fixture(params=WORLDS)
def make_board(request: pytest.FixtureRequest, find_redis: FindRedis, open_redis: OpenRedis) -> MakeBoard:
    """Makes boards of several processes over one view, which was not built yet."""
    if request.param == "memory":
        redis = InMemoryRedis(lambda: NOW)
        return lambda: MemoryViewCache(redis)
    url = find_redis(request.param)
    return lambda: RedisViewCache(open_redis(url))


@pytest.fixture(params=WORLDS)
def make_lock(request: pytest.FixtureRequest, find_redis: FindRedis, open_redis: OpenRedis) -> MakeLock:
    """Makes locks of several processes that contend for one lock_holder, free at first."""
    if request.param == "memory":
        lock_holder = LockHolder()
        return lambda: MemoryLeaderLock(lock_holder)
    url = find_redis(request.param)
    return lambda: RedisLeaderLock(open_redis(url))


@pytest.fixture(params=WORLDS)
def make_bell(request: pytest.FixtureRequest, find_redis: FindRedis) -> Iterator[MakeBell]:
    """Makes a bell that sends ticks by the function given."""
    if request.param == "memory":
        yield MemoryNotifier
        return
    with make_redis(find_redis(request.param)) as client:
        yield lambda send_tick: RedisNotifier(client, send_tick)


@pytest.fixture(params=WORLDS)
def meter(request: pytest.FixtureRequest, find_redis: FindRedis, open_redis: OpenRedis) -> Meter:
    """A meter of each kind, empty."""
    if request.param == "memory":
        return MemoryMeter()
    return RedisMeter(open_redis(find_redis(request.param)))
