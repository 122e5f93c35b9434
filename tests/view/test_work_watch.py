"""Which slow work waits or is under way in the processes that share a Redis."""

import json
import time
from collections.abc import Callable
from typing import cast

import pytest
import redis

from scheduler.ports import NoWorkWatch, Waiting, Work, WorkWatch
from scheduler.protocol.names import DEFAULT_PREFIX, HEALTH, LAUNCH, RedisNames
from scheduler.view.connection import make_redis
from testbed.processes import wait_for
from workers.work_watch import RedisWorkWatch

Open = Callable[..., RedisWorkWatch]


@pytest.fixture
def open_watch(redis_client: redis.Redis) -> Open:
    def open_one(seconds: float = 60, clock: Callable[[], float] = time.time) -> RedisWorkWatch:
        return RedisWorkWatch(redis_client, redis_client, DEFAULT_PREFIX, seconds=seconds, clock=clock)

    return open_one


@pytest.fixture(params=["redis", "none"])
def watch(request: pytest.FixtureRequest, open_watch: Open) -> WorkWatch:
    """Each implementation, without other processes."""
    return open_watch() if request.param == "redis" else NoWorkWatch()


def test_work_begins_and_ends_and_may_fail(watch: WorkWatch) -> None:
    with watch.begin(["a", "b"]) as begun:
        assert begun == {"a", "b"}
    with pytest.raises(ValueError, match="failed"), watch.begin(["a"]):
        raise ValueError("failed")
    with watch.begin(["a"]) as begun:
        assert begun == {"a"}
    assert watch.read([LAUNCH]).under_way == frozenset()


def test_work_is_not_begun_while_any_process_carries_it_out(open_watch: Open) -> None:
    one, other = open_watch(), open_watch()
    with one.begin(["a"]):
        assert other.read([]) == Work(under_way=frozenset({"a"}))
        with other.begin(["a", "b"]) as begun:
            assert begun == {"b"}
        assert one.read([]).under_way == {"a"}
    with other.begin(["a"]) as begun:
        assert begun == {"a"}


def test_work_that_lasts_long_stays_under_way(open_watch: Open, redis_client: redis.Redis) -> None:
    """Its process renews it long before it would no longer count."""

    def read_end() -> float:
        found = cast("list[tuple[bytes, float]]", redis_client.zrange(key, 0, -1, withscores=True))
        return found[0][1]

    key = RedisNames(DEFAULT_PREFIX).under_way
    with open_watch(0.3).begin(["a"]):
        first = read_end()
        wait_for(lambda: read_end() > first, "a renewal")


def test_the_work_of_a_dead_process_is_under_way_only_for_a_while(open_watch: Open) -> None:
    """The process died within the context, so that it neither ends nor renews its work."""
    now = 1000.0
    context = open_watch(60, lambda: now).begin(["a"])
    context.__enter__()
    assert open_watch(60, lambda: now + 59).read([]).under_way == {"a"}
    with open_watch(60, lambda: now + 61).begin(["a"]) as begun:
        assert begun == {"a"}


def test_what_waits_is_counted_with_the_time_of_the_oldest_message(open_watch: Open, redis_client: redis.Redis) -> None:
    for sent_at in (5.0, 6.0, 7.0):
        redis_client.lpush(LAUNCH, json.dumps({"headers": {"sent_at": sent_at}}))
    redis_client.lpush(HEALTH, b"no message")
    expected = {LAUNCH: Waiting(count=3, since=5.0), HEALTH: Waiting(count=1), "other": Waiting()}
    assert open_watch().read([LAUNCH, HEALTH, "other"]).waiting == expected


def test_without_redis_nothing_is_known_and_all_work_begins() -> None:
    gone = make_redis("redis://127.0.0.1:1/0")
    watch = RedisWorkWatch(gone, gone, DEFAULT_PREFIX, seconds=60, clock=time.time)
    with watch.begin(["a"]) as begun:
        assert begun == {"a"}
        assert watch.read([LAUNCH]) == Work()
