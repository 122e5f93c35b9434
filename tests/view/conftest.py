"""The implementations of the ports of the view: in memory, and on each kind of Redis server that is installed.

The tests run once with each implementation.
"""

from collections.abc import Callable, Iterator

import pytest

from scheduler.ports import Forecasts, LeaderLock, Meter, Notifier, ViewCache
from scheduler.view.connection import make_redis
from scheduler.view.forecasts import RedisForecasts
from scheduler.view.memory import (
    InMemoryRedis,
    LockHolder,
    MemoryLeaderLock,
    MemoryMeter,
    MemoryNotifier,
    MemoryViewCache,
)
from scheduler.view.redis_meter import RedisMeter
from scheduler.view.redis_ports import RedisLeaderLock, RedisNotifier
from scheduler.view.redis_view_cache import RedisViewCache
from testbed.servers import SERVERS, FindRedis, OpenRedis, find_redis, open_redis, redis_client
from tests.builders import NOW
from tests.memory_forecasts import MemoryForecasts

__all__ = ["find_redis", "open_redis", "redis_client"]

MakeViewCache = Callable[[], ViewCache]
MakeLock = Callable[[], LeaderLock]
MakeNotifier = Callable[[Callable[[], None]], Notifier]
MakeLockAndNotifier = Callable[[Callable[[], None]], tuple[LeaderLock, Notifier]]
BACKENDS = ("memory", *SERVERS)


@pytest.fixture(params=SERVERS)
def redis_url(request: pytest.FixtureRequest, find_redis: FindRedis) -> str:
    """The URL of a flushed shared server; a test that uses it runs once with each kind of server."""
    return find_redis(request.param)


@pytest.fixture(params=BACKENDS)
def make_view_cache(request: pytest.FixtureRequest, find_redis: FindRedis, open_redis: OpenRedis) -> MakeViewCache:
    """A function that makes the view caches of several processes. They share one view, which is not built yet."""
    if request.param == "memory":
        redis = InMemoryRedis(lambda: NOW)
        return lambda: MemoryViewCache(redis)
    url = find_redis(request.param)
    return lambda: RedisViewCache(open_redis(url))


@pytest.fixture(params=BACKENDS)
def make_lock(request: pytest.FixtureRequest, find_redis: FindRedis, open_redis: OpenRedis) -> MakeLock:
    """A function that makes the locks of several processes. They contend for one lock, which is free."""
    if request.param == "memory":
        lock_holder = LockHolder()
        return lambda: MemoryLeaderLock(lock_holder)
    url = find_redis(request.param)
    return lambda: RedisLeaderLock(open_redis(url))


@pytest.fixture(params=BACKENDS)
def make_notifier(request: pytest.FixtureRequest, find_redis: FindRedis) -> Iterator[MakeNotifier]:
    """A function that makes a notifier; the notifier calls the given function to send a tick message."""
    if request.param == "memory":
        yield MemoryNotifier
        return
    with make_redis(find_redis(request.param)) as client:
        yield lambda send_tick: RedisNotifier(client, send_tick)


@pytest.fixture(params=BACKENDS)
def make_lock_and_notifier(
    request: pytest.FixtureRequest, find_redis: FindRedis, open_redis: OpenRedis
) -> MakeLockAndNotifier:
    """A function that makes a lock and a notifier of one cluster; the notifier calls the given function to send a tick
    message.
    """
    if request.param == "memory":

        def make(send_tick: Callable[[], None]) -> tuple[LeaderLock, Notifier]:
            notifier = MemoryNotifier(send_tick)
            return MemoryLeaderLock(hear=notifier.hear), notifier

        return make
    client = open_redis(find_redis(request.param))
    return lambda send_tick: (RedisLeaderLock(client), RedisNotifier(client, send_tick))


@pytest.fixture(params=BACKENDS)
def meter(request: pytest.FixtureRequest, find_redis: FindRedis, open_redis: OpenRedis) -> Meter:
    if request.param == "memory":
        return MemoryMeter()
    return RedisMeter(open_redis(find_redis(request.param)))


@pytest.fixture(params=BACKENDS)
def forecasts(request: pytest.FixtureRequest, find_redis: FindRedis, open_redis: OpenRedis) -> Forecasts:
    """The port to the forecasts; nothing was published."""
    return MemoryForecasts() if request.param == "memory" else RedisForecasts(open_redis(find_redis(request.param)))
