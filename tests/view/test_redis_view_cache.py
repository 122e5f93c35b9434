"""Faults of Redis under a view: a flush, a kill, a restart with no or old data, lost keys.

No process uses the view after such a fault until it was rebuilt.
"""

import base64
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
import redis

from scheduler.model.slots import Slot
from scheduler.model.view import Gone
from scheduler.ports import ViewUnavailableError
from scheduler.view.connection import Ahead, make_redis
from scheduler.view.redis_view_cache import RedisViewCache
from testbed.servers import SERVERS, OpenRedis, start_own_redis
from tests.view.rows import LAUNCH_REQUESTS, SECRET, content, hold_at, reservation_at, run_times_at, slot_at
from workers.embedded_redis import RedisServer


@pytest.fixture(params=SERVERS)
def own_server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    server = start_own_redis(tmp_path, kind=request.param)
    yield server
    server.stop()


def open_view_caches(open_redis: OpenRedis, url: str) -> tuple[RedisViewCache, RedisViewCache]:
    """Return the view cache of a leader that built the view with one row, and that of another process."""
    leader = RedisViewCache(open_redis(url))
    leader.rebuild([slot_at(1)])
    return leader, RedisViewCache(open_redis(url))


def assert_no_view(*processes: RedisViewCache) -> None:
    for view_cache in processes:
        assert view_cache.publish([slot_at(9)]) is False
        assert view_cache.catch_up() is None
        assert view_cache.load() is None


def has_secret(client: redis.Redis) -> bool:
    """Return whether any key of this Redis contains the user data of LAUNCH_REQUESTS."""
    marks = (b"user-data-of-the-pool", base64.b64encode(SECRET.encode()))
    texts = [
        msgspec.json.encode(client.hgetall(key), enc_hook=str)
        if client.type(key) == b"hash"
        else repr(client.xrange(key)).encode()
        if client.type(key) == b"stream"
        else b""
        for key in client.scan_iter()
    ]
    return any(mark in text for mark in marks for text in texts)


@pytest.mark.parametrize("way", ["load", "catch_up"])
@pytest.mark.parametrize("kind", LAUNCH_REQUESTS)
def test_user_data_of_an_earlier_version_is_deleted_by_the_audit(
    kind: str,
    way: str,
    redis_client: redis.Redis,
    redis_url: str,
    open_redis: OpenRedis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Processes of earlier versions publish whole launch requests while the cluster is upgraded."""
    leader, earlier = open_view_caches(open_redis, redis_url)
    slot = msgspec.structs.replace(slot_at(1, "linux-2"), launch_request=LAUNCH_REQUESTS[kind][0])
    with monkeypatch.context() as patched:
        patched.setattr("scheduler.view.codec.as_published", lambda change: change)
        assert earlier.publish([slot])
    assert has_secret(redis_client)
    leader = leader if way == "catch_up" else RedisViewCache(open_redis(redis_url))
    assert leader.catch_up() or leader.load()
    assert not leader.matches_copy()
    leader.rebuild([slot_at(1), slot])
    assert leader.matches_copy()
    assert not has_secret(redis_client)


def test_a_flushed_view_is_refused_until_it_was_rebuilt(
    redis_client: redis.Redis, redis_url: str, open_redis: OpenRedis
) -> None:
    leader, other = open_view_caches(open_redis, redis_url)
    redis_client.flushall()
    assert_no_view(leader, other)
    leader.rebuild([slot_at(2)])
    assert other.publish([slot_at(3)])
    assert content(leader.catch_up())["slots"] == content(other.load())["slots"] == {"linux-1": slot_at(3)}


def test_an_old_snapshot_after_a_restart_is_refused(own_server: RedisServer, open_redis: OpenRedis) -> None:
    leader, other = open_view_caches(open_redis, own_server.url)
    with make_redis(own_server.url) as client:
        client.save()
        leader.publish([slot_at(2)])
        own_server.kill()
        own_server.restart()
        assert client.hget("leasehold:view:slots", "linux-1") is not None
    assert_no_view(leader, other)
    assert content(leader.rebuild([slot_at(2)]))["slots"] == {"linux-1": slot_at(2)}


def test_a_snapshot_in_the_middle_of_a_rebuild_is_refused(own_server: RedisServer, open_redis: OpenRedis) -> None:
    leader, other = open_view_caches(open_redis, own_server.url)

    def rows() -> Iterator[Slot]:
        yield slot_at(1)
        with make_redis(own_server.url) as client:
            client.save()
        own_server.kill()
        own_server.restart()

    with pytest.raises(ViewUnavailableError):
        leader.rebuild(rows())
    assert_no_view(leader, other)


def test_a_rebuild_ends_with_an_error_when_another_one_overtakes_it(redis_url: str, open_redis: OpenRedis) -> None:
    leader, other = open_view_caches(open_redis, redis_url)

    def rows() -> Iterator[Slot]:
        yield slot_at(1, "old")
        other.rebuild([slot_at(2, "new")])

    with pytest.raises(ViewUnavailableError, match="another process"):
        leader.rebuild(rows())
    assert content(leader.load())["slots"] == {"new": slot_at(2, "new")}


def test_a_view_under_construction_cannot_be_copied_and_accepts_publishes(
    redis_url: str, open_redis: OpenRedis
) -> None:
    leader, other = open_view_caches(open_redis, redis_url)

    def rows() -> Iterator[Slot]:
        assert other.load() is None
        assert other.publish([slot_at(2)])
        yield slot_at(1)

    assert content(leader.rebuild(rows()))["slots"] == {"linux-1": slot_at(2)}


def test_an_interrupted_rebuild_leaves_no_view(redis_url: str, open_redis: OpenRedis) -> None:
    leader, other = open_view_caches(open_redis, redis_url)

    def rows() -> Iterator[Slot]:
        yield slot_at(1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        leader.rebuild(rows())
    assert leader.catch_up() is None
    assert other.load() is None
    assert content(other.rebuild([slot_at(3)]))["slots"] == {"linux-1": slot_at(3)}


def test_after_a_load_that_ended_early_each_command_gets_its_own_answer(redis_client: redis.Redis) -> None:
    """A load asks for the next rows before it decodes those that it has. Here the answer arrives late and is not
    read.
    """
    with closing(Ahead(redis_client)) as ahead:
        ahead.send("BLPOP", "leasehold:nothing", 1)
    assert redis_client.ping() is True


@pytest.mark.parametrize("fault", ["CLIENT KILL TYPE normal", "SCRIPT FLUSH"])
def test_a_publish_of_many_rows_is_sent_again_if_redis_drops_the_connection_or_the_script(
    redis_client: redis.Redis, redis_url: str, open_redis: OpenRedis, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """The rows are sent in several calls on one connection; here it is lost, or the script is, before the second."""
    leader, other = open_view_caches(open_redis, redis_url)
    send, faults = Ahead.send, [fault]

    def send_after_fault(ahead: Ahead, *command: bytes | str | int) -> None:
        if faults:
            redis_client.execute_command(faults.pop())  # type: ignore[no-untyped-call]
        send(ahead, *command)

    monkeypatch.setattr(Ahead, "send", send_after_fault)
    rows = {f"linux-{number}": slot_at(2, f"linux-{number}") for number in range(1, 1800)}
    assert other.publish([*rows.values()]) is True
    assert faults == []
    assert content(leader.catch_up())["slots"] == rows


def test_a_publish_of_many_rows_stops_when_the_view_is_lost(
    redis_client: redis.Redis, redis_url: str, open_redis: OpenRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, other = open_view_caches(open_redis, redis_url)
    send = Ahead.send

    def send_after_flush(ahead: Ahead, *command: bytes | str | int) -> None:
        redis_client.delete("leasehold:view:generation")
        send(ahead, *command)

    monkeypatch.setattr(Ahead, "send", send_after_flush)
    assert other.publish([slot_at(2, f"linux-{number}") for number in range(1800)]) is False


def test_unreadable_rows_among_many_give_no_view(
    redis_client: redis.Redis, redis_url: str, open_redis: OpenRedis
) -> None:
    _, other = open_view_caches(open_redis, redis_url)
    redis_client.hset("leasehold:view:slots", mapping={f"odd-{number}": "unreadable" for number in range(5000)})
    assert other.load() is None


@pytest.mark.parametrize(
    "damage",
    [
        # the stream was lost
        lambda client: client.delete("leasehold:view:deltas"),
        # the oldest entries of the stream were lost
        lambda client: client.xtrim("leasehold:view:deltas", maxlen=1, approximate=False),
        # an entry in the middle was lost
        lambda client: client.xdel("leasehold:view:deltas", "2-0"),
        # the last entry was lost
        lambda client: client.xdel("leasehold:view:deltas", "3-0"),
    ],
)
def test_a_reader_that_finds_a_gap_reloads(
    redis_client: redis.Redis, redis_url: str, open_redis: OpenRedis, damage: object
) -> None:
    leader, other = open_view_caches(open_redis, redis_url)
    other.publish([slot_at(2)])
    assert leader.catch_up() is not None
    other.publish([slot_at(3)])
    other.publish([slot_at(4)])
    assert callable(damage)
    damage(redis_client)
    assert leader.catch_up() is None
    assert content(leader.load())["slots"] == {"linux-1": slot_at(4)}


@pytest.mark.parametrize(
    ("key", "field"),
    [("slots", "linux-1"), ("reservations", "r1"), ("holds", hold_at(1).id), ("run_times", run_times_at(1).id)],
)
def test_a_copy_does_not_match_a_view_that_was_damaged(
    redis_client: redis.Redis, redis_url: str, open_redis: OpenRedis, key: str, field: str
) -> None:
    leader, other = open_view_caches(open_redis, redis_url)
    other.publish([reservation_at(1), hold_at(1), run_times_at(1)])
    assert leader.matches_copy()
    redis_client.hdel(f"leasehold:view:{key}", field)
    assert not leader.matches_copy()
    redis_client.flushall()
    assert not leader.matches_copy()


@pytest.mark.parametrize("value", [0, None, "odd"])
def test_a_view_whose_counter_was_lost_is_rebuilt(
    redis_client: redis.Redis, redis_url: str, open_redis: OpenRedis, value: int | str | None
) -> None:
    leader, other = open_view_caches(open_redis, redis_url)
    other.publish([slot_at(2)])
    if value is None:
        redis_client.delete("leasehold:view:sequence")
    else:
        redis_client.set("leasehold:view:sequence", value)
    assert leader.catch_up() is None
    assert leader.load() is None
    assert content(leader.rebuild([slot_at(3)]))["slots"] == {"linux-1": slot_at(3)}


def test_the_number_of_stored_deltas_is_limited(
    redis_client: redis.Redis, redis_url: str, open_redis: OpenRedis
) -> None:
    leader = RedisViewCache(open_redis(redis_url), deltas_kept=500)
    leader.rebuild([])
    for version in range(1, 1001):
        leader.publish([slot_at(version)])
    length = redis_client.xlen("leasehold:view:deltas")
    assert isinstance(length, int)
    assert 500 <= length <= 700
    assert leader.catch_up() is None
    assert content(leader.load())["slots"] == {"linux-1": slot_at(1000)}


def test_a_view_cache_catches_up_on_many_changes_in_parts(redis_url: str, open_redis: OpenRedis) -> None:
    leader, other = open_view_caches(open_redis, redis_url)
    other.publish([slot_at(1, f"s-{number}") for number in range(1203)])
    for version in range(2, 252):
        other.publish([slot_at(version)])
    view = leader.catch_up()
    assert view is not None
    assert len(view.slots) == 1204
    assert view.slots["linux-1"].version == 251


def test_tombstones_and_ended_reservations_are_deleted_after_their_time(
    redis_client: redis.Redis, redis_url: str, open_redis: OpenRedis
) -> None:
    view_cache = RedisViewCache(open_redis(redis_url), kept_seconds=0)
    view_cache.rebuild([])
    view_cache.publish([reservation_at(2, phase="released"), slot_at(1), Gone("slots", "linux-1", 2)])

    def is_forgotten() -> bool:
        # Each publish deletes the rows whose time is over by the clock of Redis.
        view_cache.publish([reservation_at(1, "r2")])
        return redis_client.zcard("leasehold:view:leaving") == 0

    while not is_forgotten():
        pass
    assert "r1" not in view_cache.read_kept()
    assert redis_client.hlen("leasehold:view:gone") == 0
    assert content(view_cache.catch_up())["reservations"] == {"r2": reservation_at(1, "r2")}


def test_a_reservation_that_failed_and_restarts_is_not_forgotten(
    redis_client: redis.Redis, redis_url: str, open_redis: OpenRedis
) -> None:
    view_cache = RedisViewCache(open_redis(redis_url))
    view_cache.rebuild([])
    view_cache.publish([reservation_at(2, phase="failed"), reservation_at(3, phase="pending")])
    assert redis_client.zcard("leasehold:view:leaving") == 0


def test_rows_of_another_version_make_the_view_unusable_until_a_rebuild(
    redis_client: redis.Redis, redis_url: str, open_redis: OpenRedis
) -> None:
    leader, other = open_view_caches(open_redis, redis_url)
    redis_client.hset("leasehold:view:slots", "odd", '{"version":1,"marked_at":1.0,"id":"odd","pool":7}')
    assert other.load() is None
    leader.rebuild([slot_at(1)])
    assert content(other.load())["slots"] == {"linux-1": slot_at(1)}
    redis_client.incr("leasehold:view:sequence")
    redis_client.xadd("leasehold:view:deltas", {"count": 1, "slots": '[{"version":"one"}]'}, id="1-0")
    assert other.catch_up() is None


def test_an_unreachable_redis_raises_view_unavailable_until_it_is_back(
    own_server: RedisServer, open_redis: OpenRedis
) -> None:
    leader, other = open_view_caches(open_redis, own_server.url)
    own_server.kill()
    for call in (leader.catch_up, leader.load, leader.read_report, lambda: other.publish([slot_at(2)])):
        with pytest.raises(ViewUnavailableError, match="Redis"):
            call()
    own_server.restart()
    assert other.publish([slot_at(2)]) is False
    assert content(leader.rebuild([slot_at(2)]))["slots"] == {"linux-1": slot_at(2)}


def test_two_clusters_with_different_prefixes_share_a_redis(redis_url: str, open_redis: OpenRedis) -> None:
    first, second = (RedisViewCache(open_redis(redis_url), prefix) for prefix in ("first:", "second:"))
    first.rebuild([slot_at(1)])
    assert second.load() is None
    second.rebuild([])
    assert content(first.catch_up())["slots"] == {"linux-1": slot_at(1)}
