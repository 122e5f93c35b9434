"""The contract of the port `Heartbeats`, in memory and on Redis, where the client sends the heartbeats."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import redis

from leasehold import Client
from scheduler.ports import Heard, Heartbeats
from scheduler.view.connection import make_redis
from scheduler.view.memory import MemoryHeartbeats
from scheduler.view.redis_ports import KEPT_SECONDS, RedisHeartbeats
from testbed.servers import FindRedis
from tests.builders import NOW
from tests.view.conftest import BACKENDS

SHORT = 5.0
"""Upper limit in seconds for a step of a test, also on a busy machine."""


@dataclass
class Backend:
    """An implementation of the port, a function that sends a heartbeat, and one that deletes all heartbeats."""

    heartbeats: Heartbeats
    beat: Callable[..., None]
    forget: Callable[[], object]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, find_redis: FindRedis) -> Iterator[Backend]:
    """Each implementation, without a heartbeat."""
    if request.param == "memory":
        heartbeats = MemoryHeartbeats(lambda: NOW, kept_since=NOW)
        yield Backend(heartbeats, heartbeats.beat, heartbeats.forget)
        return
    url = find_redis(request.param)
    with make_redis(url) as connection, Client(url) as client:
        yield Backend(RedisHeartbeats(connection), client.hosts.heartbeat, connection.flushdb)


def test_only_slots_with_a_heartbeat_are_returned(backend: Backend) -> None:
    backend.beat("lab-1", "m1")
    heard = backend.heartbeats.listen({"lab-1": "m1", "lab-2": "m2"})
    assert heard.ages.keys() == {"lab-1"}
    assert 0 <= heard.ages["lab-1"] < SHORT


def test_a_heartbeat_of_another_machine_is_ignored(backend: Backend) -> None:
    backend.beat("lab-1", "another")
    assert backend.heartbeats.listen({"lab-1": "m1"}).ages == {}


def test_a_heartbeat_contains_the_version_that_the_host_knows(backend: Backend) -> None:
    backend.beat("lab-1", "m1", "0:7:180")
    backend.beat("lab-2", "m2")
    backend.beat("lab-3", "another", "0:7:180")
    heard = backend.heartbeats.listen({"lab-1": "m1", "lab-2": "m2", "lab-3": "m3"})
    assert heard.ages.keys() == {"lab-1", "lab-2"}
    assert heard.versions == {"lab-1": "0:7:180"}


def test_the_heartbeats_of_the_run_that_has_registered_count(backend: Backend) -> None:
    """The other agent writes the key of the slot, too, for workers of earlier versions."""
    backend.beat("lab-1", "m1", "0:7:180", "a-1")
    backend.beat("lab-1", "m1", "0:6:180", "b-1")
    assert backend.heartbeats.listen({"lab-1": "m1"}, {"lab-1": "a-1"}).versions == {"lab-1": "0:7:180"}
    assert backend.heartbeats.listen({"lab-1": "m1"}).versions == {"lab-1": "0:6:180"}


def test_a_heartbeat_that_another_host_writes_over_harms_no_agent_with_a_run(backend: Backend) -> None:
    backend.beat("lab-1", "m1", "0:7:180", "a-1")
    backend.beat("lab-1", "another")
    heard = backend.heartbeats.listen({"lab-1": "m1"}, {"lab-1": "a-1"})
    assert (heard.versions, heard.ignored) == ({"lab-1": "0:7:180"}, {"machine": 1})


@pytest.mark.parametrize("garbage", ["", "a b c", "\x00\xff" * 9, "m1 " + "9" * 2000, "m1\n"])
def test_garbage_in_place_of_a_heartbeat_is_ignored_and_counted(garbage: str, redis_client: redis.Redis) -> None:
    redis_client.set("leasehold:heartbeat:lab-1", garbage, px=KEPT_SECONDS * 1000)
    redis_client.set("leasehold:heartbeat:lab-2", "m2", px=KEPT_SECONDS * 1000)
    heard = RedisHeartbeats(redis_client).listen({"lab-1": "m1", "lab-2": "m2", "lab-3": "m3"})
    assert (set(heard.ages), heard.ignored) == ({"lab-2"}, {"garbage": 1})


def test_a_key_of_another_type_hides_only_its_own_heartbeat(redis_client: redis.Redis) -> None:
    redis_client.lpush("leasehold:heartbeat:lab-1", "m1")
    redis_client.lpush("leasehold:heartbeat:lab-2", "m2")
    for key in ("lab-2:a-1", "lab-3"):
        redis_client.set(f"leasehold:heartbeat:{key}", "m2", px=KEPT_SECONDS * 1000)
    heard = RedisHeartbeats(redis_client).listen({"lab-1": "m1", "lab-2": "m2", "lab-3": "m2"}, {"lab-2": "a-1"})
    assert (set(heard.ages), heard.ignored) == ({"lab-2", "lab-3"}, {"garbage": 2})


def test_reading_heartbeats_changes_nothing(backend: Backend) -> None:
    backend.beat("lab-1", "m1")
    backend.heartbeats.listen({"lab-1": "m1"})
    assert backend.heartbeats.listen({"lab-1": "m1"}).ages.keys() == {"lab-1"}


def test_after_a_flush_heartbeats_are_kept_from_that_time_on(backend: Backend) -> None:
    backend.beat("lab-1", "m1")
    backend.heartbeats.listen({"lab-1": "m1"})
    backend.forget()
    heard = backend.heartbeats.listen({"lab-1": "m1"})
    assert heard == Heard({}, heard.kept_for)
    assert 0 <= heard.kept_for < SHORT


def test_the_age_of_a_heartbeat_comes_from_the_expiry_in_redis(redis_url: str, redis_client: redis.Redis) -> None:
    redis_client.set("leasehold:heartbeat:lab-1", "m1", px=(KEPT_SECONDS - 100) * 1000)
    age = RedisHeartbeats(redis_client).listen({"lab-1": "m1"}).ages["lab-1"]
    assert 100 <= age < 100 + SHORT


@pytest.mark.parametrize(
    "seconds",
    [
        # Its key expires later than that of any new heartbeat: the host would seem online for too long.
        KEPT_SECONDS + 100,
        # Its key never expires.
        None,
    ],
)
def test_a_heartbeat_from_the_future_is_ignored(seconds: int | None, redis_client: redis.Redis) -> None:
    redis_client.set("leasehold:heartbeat:lab-1", "m1", ex=seconds)
    heard = RedisHeartbeats(redis_client).listen({"lab-1": "m1"})
    assert (heard.ages, heard.ignored) == ({}, {"garbage": 1})


@pytest.mark.parametrize(
    ("stored", "least", "most"),
    [
        # Written by this server 1000 s ago.
        ("{run_id} {ago}", 1000, 1000 + SHORT),
        # Written by another server: Redis was restarted, or a snapshot was restored.
        ("0123 {ago}", 0, SHORT),
    ],
)
def test_a_restarted_redis_has_kept_heartbeats_since_its_restart(
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
