"""The Pulse's contract, in memory and on Redis, where the client's own heartbeats are listened to."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import redis

from leasehold import Client
from scheduler.ports import Heard, Heartbeats
from scheduler.view.connection import make_redis
from scheduler.view.memory import MemoryHeartbeats
from scheduler.view.redis_heartbeats import KEPT_SECONDS, RedisHeartbeats
from tests.builders import NOW
from tests.servers import FindRedis
from tests.view.conftest import WORLDS

SHORT = 5.0
"""Seconds that a test's step takes at most, on a busy machine too."""


@dataclass
class World:
    """Heartbeats somewhere: how a host sends one, who listens, and how all of them get lost."""

    heartbeats: Heartbeats
    beat: Callable[..., None]
    forget: Callable[[], object]


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest, find_redis: FindRedis) -> Iterator[World]:
    """Nobody has beaten yet."""
    if request.param == "memory":
        heartbeats = MemoryHeartbeats(lambda: NOW, kept_since=NOW)
        yield World(heartbeats, heartbeats.beat, heartbeats.forget)
        return
    url = find_redis(request.param)
    with make_redis(url) as connection, Client(url) as client:
        yield World(RedisHeartbeats(connection), client.hosts.heartbeat, connection.flushdb)


def test_who_beats_is_heard_and_nobody_else(world: World) -> None:
    world.beat("lab-1", "m1")
    heard = world.heartbeats.listen({"lab-1": "m1", "lab-2": "m2"})
    assert heard.ages.keys() == {"lab-1"}
    assert 0 <= heard.ages["lab-1"] < SHORT


def test_only_the_machine_that_the_slot_belongs_to_is_heard(world: World) -> None:
    world.beat("lab-1", "a stranger")
    assert world.heartbeats.listen({"lab-1": "m1"}).ages == {}


def test_the_version_that_a_host_knows_comes_with_its_heartbeat(world: World) -> None:
    world.beat("lab-1", "m1", "0:7:180")
    world.beat("lab-2", "m2")
    world.beat("lab-3", "a-stranger", "0:7:180")
    heard = world.heartbeats.listen({"lab-1": "m1", "lab-2": "m2", "lab-3": "m3"})
    assert heard.ages.keys() == {"lab-1", "lab-2"}
    assert heard.versions == {"lab-1": "0:7:180"}


def test_looking_changes_nothing(world: World) -> None:
    world.beat("lab-1", "m1")
    world.heartbeats.listen({"lab-1": "m1"})
    assert world.heartbeats.listen({"lab-1": "m1"}).ages.keys() == {"lab-1"}


def test_what_was_lost_is_kept_anew_from_then_on(world: World) -> None:
    world.beat("lab-1", "m1")
    world.heartbeats.listen({"lab-1": "m1"})
    world.forget()
    heard = world.heartbeats.listen({"lab-1": "m1"})
    assert heard == Heard({}, heard.kept_for)
    assert 0 <= heard.kept_for < SHORT


def test_ages_are_what_redis_counted_down(redis_url: str, redis_client: redis.Redis) -> None:
    redis_client.set("leasehold:heartbeat:lab-1", "m1", px=(KEPT_SECONDS - 100) * 1000)
    age = RedisHeartbeats(redis_client).listen({"lab-1": "m1"}).ages["lab-1"]
    assert 100 <= age < 100 + SHORT


@pytest.mark.parametrize(
    "seconds",
    [
        # It would look alive for longer than it says it is.
        KEPT_SECONDS + 100,
        # For ever.
        None,
    ],
)
def test_a_heartbeat_from_the_future_is_none(seconds: int | None, redis_client: redis.Redis) -> None:
    redis_client.set("leasehold:heartbeat:lab-1", "m1", ex=seconds)
    assert RedisHeartbeats(redis_client).listen({"lab-1": "m1"}).ages == {}


@pytest.mark.parametrize(
    ("stored", "least", "most"),
    [
        # This server's, from 1000 s ago.
        ("{run_id} {ago}", 1000, 1000 + SHORT),
        # Another server's: a restart, or a snapshot that was put back.
        ("0123 {ago}", 0, SHORT),
    ],
)
def test_a_restarted_redis_keeps_heartbeats_only_since_then(
    stored: str, least: float, most: float, redis_client: redis.Redis
) -> None:
    ago = redis_client.time()[0] - 1000
    run_id = redis_client.info("server")["run_id"]
    redis_client.set("leasehold:heartbeats:since", stored.format(run_id=run_id, ago=ago))
    assert least <= RedisHeartbeats(redis_client).listen({}).kept_for < most


def test_many_hosts_are_read_in_batches(redis_client: redis.Redis, redis_url: str) -> None:
    hosts = {f"lab-{number}": "m1" for number in range(2001)}
    with Client(redis_url) as client:
        for name in ("lab-0", "lab-1000", "lab-2000"):
            client.hosts.heartbeat(name, "m1")
    assert RedisHeartbeats(redis_client).listen(hosts).ages.keys() == {"lab-0", "lab-1000", "lab-2000"}
