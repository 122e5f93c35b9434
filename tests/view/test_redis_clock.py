"""Cluster time through Redis: the clock of processes without a connection to the database."""

import time
from typing import Any, cast

import pytest
import redis

from scheduler.protocol.clock import KEPT_SECONDS, ProcessOffset, read_offsets
from scheduler.view.connection import make_redis
from scheduler.view.redis_clock import RedisClock
from scheduler.view.redis_view_cache import RedisViewCache
from testbed.servers import redis_client, redis_server, redis_url

__all__ = ["redis_client", "redis_server", "redis_url"]

PREFIX = "leasehold:"
ABOUT = 30.0
"""Tolerance in seconds for a slow machine; far less than the offsets in these tests."""


class JumpingRedis:
    """A Redis whose clock is `seconds` ahead."""

    def __init__(self, client: redis.Redis) -> None:
        self._client, self.seconds = client, 0.0

    def pipeline(self, **options: Any) -> Any:
        pipeline: Any = self._client.pipeline(**options)
        execute = pipeline.execute

        def execute_later(_: bool = True) -> list[Any]:
            (seconds, microseconds), published = execute()
            return [(seconds + self.seconds, microseconds), published]

        pipeline.execute = execute_later
        return pipeline

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def publish(client: redis.Redis, ahead: float) -> float:
    """Publish cluster time as a leader does, `ahead` seconds ahead of Redis, and return it."""
    seconds, microseconds = client.time()
    now = float(seconds + microseconds / 1e6 + ahead)
    RedisViewCache(client, PREFIX).publish_time(now)
    return now


def read_all(client: redis.Redis, now: float) -> list[ProcessOffset]:
    return read_offsets(cast("dict[bytes, bytes]", client.hgetall(f"{PREFIX}clocks")), now)


def test_before_the_first_tick_the_clock_is_the_time_of_redis(redis_client: redis.Redis) -> None:
    clock = RedisClock(redis_client, PREFIX, wall=lambda: 0.0)
    assert clock.now() == pytest.approx(redis_client.time()[0], abs=ABOUT)


@pytest.mark.parametrize("ahead", [-3600.0, 0.0, 3600.0])
def test_the_offset_that_the_leader_publishes_is_added(redis_client: redis.Redis, ahead: float) -> None:
    now = publish(redis_client, ahead)
    clock = RedisClock(redis_client, PREFIX, wall=lambda: now - 600)
    assert clock.now() == pytest.approx(now, abs=ABOUT)
    assert clock.offset == pytest.approx(600, abs=ABOUT)


def test_a_jump_of_redis_does_not_move_the_clock(redis_client: redis.Redis) -> None:
    """After a jump the published offset is wrong until the next tick."""
    jumping = JumpingRedis(redis_client)
    now = publish(redis_client, 0.0)
    clock = RedisClock(jumping, PREFIX)  # type: ignore[arg-type]
    clock.look()
    jumping.seconds = 600
    for _ in range(3):
        assert clock.look() == pytest.approx(now, abs=ABOUT)
    publish(redis_client, -600.0)
    assert clock.look() == pytest.approx(now, abs=ABOUT)
    jumping.seconds = 0
    assert clock.look() == pytest.approx(now, abs=ABOUT)


def test_a_correction_published_twice_is_followed(redis_client: redis.Redis) -> None:
    publish(redis_client, 0.0)
    clock = RedisClock(redis_client, PREFIX)
    clock.look()
    now = publish(redis_client, 600.0)
    clock.look()
    publish(redis_client, 600.0)
    assert clock.look() == pytest.approx(now, abs=ABOUT)


def test_a_flush_does_not_move_the_clock(redis_client: redis.Redis) -> None:
    now = publish(redis_client, 3600.0)
    clock = RedisClock(redis_client, PREFIX)
    clock.look()
    redis_client.flushall()
    for _ in range(3):
        assert clock.look() == pytest.approx(now, abs=ABOUT)


def test_without_redis_the_clock_is_the_wall_clock() -> None:
    with make_redis("redis://127.0.0.1:1/0") as client:
        assert RedisClock(client, PREFIX, wall=lambda: 77.0).now() == 77.0


def test_each_named_process_records_the_offset_of_its_wall_clock(
    redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "alpha")
    now = publish(redis_client, 0.0)
    RedisClock(redis_client, PREFIX, process="launch", wall=lambda: time.time() + 20).look()
    RedisClock(redis_client, PREFIX, process="beat").look()
    RedisClock(redis_client, PREFIX).look()
    beat, launch = read_all(redis_client, now)
    assert (beat.process, beat.host, launch.process, launch.host) == ("beat", "alpha", "launch", "alpha")
    assert (beat.seconds, launch.seconds) == pytest.approx((0, 20), abs=1)
    assert read_all(redis_client, now + ABOUT + KEPT_SECONDS) == []
    redis_client.hset(f"{PREFIX}clocks", "ticks beta", "no JSON")
    assert len(read_all(redis_client, now)) == 2


def test_offsets_of_processes_that_have_ended_are_deleted(redis_client: redis.Redis) -> None:
    redis_client.hset(f"{PREFIX}clocks", "ticks gone", "[0.0, 5000.0]")
    RedisClock(redis_client, PREFIX, process="ticks").look()
    assert redis_client.hexists(f"{PREFIX}clocks", "ticks gone") == 0
