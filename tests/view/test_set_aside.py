"""A tick renames keys of a wrong type and a lock that never expires (sets them aside), and continues."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from scheduler.model.view import View
from scheduler.ports import EventFilter, SetAside, StoreUnavailableError, Transaction, ViewUnavailableError
from scheduler.view.connection import make_redis
from scheduler.view.redis_ports import RedisLeaderLock
from scheduler.view.redis_view_cache import RedisViewCache
from scheduler.view.set_aside import BROKER_TYPES, KEPT_SECONDS, VIEW_TYPES, set_aside
from tests.operations.harness import Harness

PREFIX = "leasehold:"
WRITES: dict[str, Any] = {
    "string": lambda client, key: client.set(key, "mine"),
    "list": lambda client, key: client.rpush(key, "mine"),
    "hash": lambda client, key: client.hset(key, "my", "own"),
    "zset": lambda client, key: client.zadd(key, {"mine": 1}),
    "set": lambda client, key: client.sadd(key, "mine"),
    "stream": lambda client, key: client.xadd(key, {"my": "own"}),
}
RIGHT = {key: "string" if right == "lock" else right for key, right in VIEW_TYPES.items()}


@pytest.fixture
def harness(redis_url: str) -> Harness:
    """A harness whose view and lock are on this Redis, after a tick."""
    harness = Harness()
    harness.ports.view_cache = RedisViewCache(make_redis(redis_url))
    harness.ports.lock = RedisLeaderLock(make_redis(redis_url))
    harness.submit("r1")
    harness.tick()
    return harness


def tick_after_interval(harness: Harness) -> None:
    """Run a tick that searches Redis for wrong keys, because an interval has passed since the last search."""
    harness.now += harness.leader.interval
    harness.tick()


def read_view(harness: Harness) -> View:
    view = harness.ports.view_cache.load()
    assert view is not None
    return view


@pytest.mark.parametrize("key", VIEW_TYPES)
def test_a_tick_sets_aside_a_key_of_the_view_with_a_wrong_type_and_continues(
    harness: Harness, redis_client: redis.Redis, key: str
) -> None:
    wrong = [kind for kind in WRITES if kind != RIGHT[key]]
    aside = f"{PREFIX}set-aside:{PREFIX}{key}"
    for number, kind in enumerate(wrong):
        redis_client.delete(PREFIX + key)
        WRITES[kind](redis_client, PREFIX + key)
        tick_after_interval(harness)
        harness.submit(f"new{number}")
        assert f"new{number}" in read_view(harness).reservations
        assert redis_client.type(aside) == kind.encode()
        assert 0 < redis_client.ttl(aside) <= KEPT_SECONDS
    events = harness.store.read_events(EventFilter(name="key_set_aside"))
    assert [event.detail for event in events] == [{"key": PREFIX + key, "found": kind} for kind in wrong]
    assert harness.meter.counts["leasehold_set_aside_keys_total", (("key", PREFIX + key),)] == len(wrong)


def test_a_leader_lock_that_never_expires_is_set_aside(harness: Harness, redis_client: redis.Redis) -> None:
    harness.submit("r2")
    redis_client.set(f"{PREFIX}leader", "stale")
    tick_after_interval(harness)
    assert set(read_view(harness).reservations) == {"r1", "r2"}
    assert redis_client.get(f"{PREFIX}set-aside:{PREFIX}leader") == b"stale"


def test_a_leader_lock_that_is_held_is_left_alone(harness: Harness, redis_client: redis.Redis) -> None:
    redis_client.set(f"{PREFIX}leader", "another", px=60_000)
    assert harness.ports.view_cache.set_aside_wrong_keys() == []
    assert not harness.ports.lock.take()


def test_only_the_last_set_aside_value_of_a_key_is_kept(harness: Harness, redis_client: redis.Redis) -> None:
    for number in range(3):
        redis_client.delete(f"{PREFIX}view:holds")
        redis_client.rpush(f"{PREFIX}view:holds", number)
        tick_after_interval(harness)
    assert redis_client.lrange(f"{PREFIX}set-aside:{PREFIX}view:holds", 0, -1) == [b"2"]
    assert len(harness.store.read_events(EventFilter(name="key_set_aside"))) == 3


def test_a_key_of_the_broker_with_a_wrong_type_is_set_aside_and_recorded_by_the_next_tick(
    harness: Harness, redis_client: redis.Redis
) -> None:
    cases = [(key, kind) for key, right in BROKER_TYPES.items() for kind in WRITES if kind != right]
    for key, kind in cases:
        WRITES[kind](redis_client, key)
        assert set_aside(redis_client, PREFIX, BROKER_TYPES) == [SetAside(key, kind)]
        assert set_aside(redis_client, PREFIX, BROKER_TYPES) == []
        assert not redis_client.exists(key)
        tick_after_interval(harness)
    events = harness.store.read_events(EventFilter(name="key_set_aside"))
    assert [(event.detail["key"], event.detail["found"]) for event in events] == cases


JUNK = b"\xff no row"
UNREADABLE: dict[str, Callable[[redis.Redis], object]] = {
    # An entry that no publish wrote, with an id above every sequence.
    "view:deltas": lambda client: client.xadd(f"{PREFIX}view:deltas", {"my": "own"}),
    # No row has this name.
    "view:leaving": lambda client: client.zadd(f"{PREFIX}view:leaving", {JUNK: 1}),
    "view:sequence": lambda client: client.set(f"{PREFIX}view:sequence", JUNK),
    # The tombstone of a row that the next publish has.
    "view:gone": lambda client: client.hset(f"{PREFIX}view:gone", "reservations/new0", JUNK),
    "view:reservations": lambda client: client.hset(f"{PREFIX}view:reservations", "r1", JUNK),
    "view:accounts": lambda client: client.hset(f"{PREFIX}view:accounts", "a1", "[]"),
    "metrics": lambda client: client.hset(f"{PREFIX}metrics", '["leasehold_ticks_total",[],""]', JUNK),
    "queue:count": lambda client: client.set(f"{PREFIX}queue:count", JUNK),
}
"""Key -> a function that writes unreadable contents; the type of the key is right."""


@pytest.mark.parametrize("key", UNREADABLE)
def test_a_tick_sets_aside_a_key_with_unreadable_contents_and_continues(
    harness: Harness, redis_client: redis.Redis, key: str
) -> None:
    UNREADABLE[key](redis_client)
    tick_after_interval(harness)
    harness.submit("new0")
    tick_after_interval(harness)
    assert set(read_view(harness).reservations) == {"r1", "new0"}
    other = RedisViewCache(redis_client).load()
    assert other is not None
    assert set(other.reservations) == {"r1", "new0"}
    assert redis_client.exists(f"{PREFIX}set-aside:{PREFIX}{key}")
    (event,) = harness.store.read_events(EventFilter(name="key_set_aside"))
    assert event.detail == {"key": PREFIX + key, "found": "unreadable"}
    assert harness.meter.counts["leasehold_set_aside_keys_total", (("key", PREFIX + key),)] == 1


def test_a_later_tick_records_a_set_aside_key_if_the_first_commit_fails(
    harness: Harness, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = harness.store.transaction

    @contextmanager
    def fail_to_commit() -> Iterator[Transaction]:
        with begin() as transaction:
            yield transaction
            raise StoreUnavailableError("the disk is full")

    redis_client.delete(f"{PREFIX}view:holds")
    redis_client.set(f"{PREFIX}view:holds", "mine")
    with monkeypatch.context() as during:
        during.setattr(harness.store, "transaction", fail_to_commit)
        with pytest.raises(StoreUnavailableError):
            tick_after_interval(harness)
    assert not harness.store.read_events(EventFilter(name="key_set_aside"))
    tick_after_interval(harness)
    tick_after_interval(harness)
    (event,) = harness.store.read_events(EventFilter(name="key_set_aside"))
    assert event.detail == {"key": f"{PREFIX}view:holds", "found": "string"}
    assert harness.meter.counts["leasehold_set_aside_keys_total", (("key", f"{PREFIX}view:holds"),)] == 1
    assert not redis_client.exists(f"{PREFIX}set-aside")


def test_a_record_of_a_set_aside_key_that_is_unreadable_itself_is_dropped(
    harness: Harness, redis_client: redis.Redis
) -> None:
    redis_client.rpush(f"{PREFIX}set-aside", JUNK, '{"key": "k", "found": "list"}')
    tick_after_interval(harness)
    (event,) = harness.store.read_events(EventFilter(name="key_set_aside"))
    assert event.detail == {"key": "k", "found": "list"}
    assert not redis_client.exists(f"{PREFIX}set-aside")


def test_an_unreadable_tombstone_or_name_fails_no_publish(harness: Harness, redis_client: redis.Redis) -> None:
    """The next tick sets their keys aside."""
    UNREADABLE["view:gone"](redis_client)
    UNREADABLE["view:leaving"](redis_client)
    harness.submit("new0")
    assert set(read_view(harness).reservations) == {"r1", "new0"}


def test_keys_are_searched_once_in_an_interval_and_after_a_tick_that_failed(
    harness: Harness, redis_client: redis.Redis
) -> None:
    wrong = f"{PREFIX}view:holds"
    redis_client.delete(wrong)
    redis_client.rpush(wrong, "mine")
    harness.tick()
    assert redis_client.type(wrong) == b"list"  # no interval has passed, and this tick did not need the key
    redis_client.rpush(f"{PREFIX}leader", "mine")
    with pytest.raises(ViewUnavailableError):
        harness.tick()
    harness.tick()
    assert redis_client.type(wrong) == b"none"
    assert redis_client.type(f"{PREFIX}set-aside:{wrong}") == b"list"
