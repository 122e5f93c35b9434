"""Commands of several ports travel in one round trip, and have the same effects in the same order as alone."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis

from scheduler.ports import Remembered, ViewUnavailableError
from scheduler.protocol.names import TICKS
from scheduler.view.connection import Bundle
from scheduler.view.redis_ports import RedisLeaderLock, RedisNotifier, RedisRecord
from scheduler.view.redis_view_cache import RedisViewCache
from testbed.servers import OpenRedis
from tests.builders import a_reservation, a_slot

ONE, TWO = "1" * 32, "2" * 32

KICK, NOTICE = "leasehold:kick", "leasehold:notice:r1"


class Cluster:
    """The ports of one process, and what they send."""

    def __init__(self, client: redis.Redis, other: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
        self.client, self.other, self.bundle = client, other, Bundle(client)
        self.view_cache, self.record = RedisViewCache(client, bundle=self.bundle), RedisRecord(client)
        self.notifier = RedisNotifier(client, lambda: None, write_tick=lambda: "a tick", bundle=self.bundle)
        self.lock = RedisLeaderLock(client, early=[self.view_cache, self.record])
        self.sent = 0
        send: Callable[..., Any] = redis.connection.AbstractConnection.send_packed_command

        def count(*arguments: Any, **options: Any) -> Any:
            self.sent += 1
            return send(*arguments, **options)

        monkeypatch.setattr(redis.connection.AbstractConnection, "send_packed_command", count)

    def count(self, act: Callable[[], object]) -> int:
        """Return the number of round trips that a call takes."""
        before = self.sent
        act()
        return self.sent - before

    def watch(self, act: Callable[[], object]) -> list[str]:
        """Return the commands that Redis receives during a call."""
        seen: list[str] = []
        with self.other.monitor() as monitor:  # type: ignore[no-untyped-call]
            act()
            self.client.echo("end")
            while (command := monitor.next_command()["command"]) != "ECHO end":
                seen.append(command)
        return seen

    def announce(self, *names: str) -> None:
        """Publish reservations, a notice, and a request for a tick, as one announcement."""
        with self.bundle.open():
            self.view_cache.publish([a_reservation(name) for name in names])
            self.notifier.notify({"r1": {"event": "leased"}})
            self.notifier.kick()

    def is_announced(self, *names: str) -> bool:
        """Return whether these rows are in the view and one message for a tick was sent."""
        return {*names} <= self.view_cache.read_kept().keys() and self.client.llen(TICKS) == 1


@pytest.fixture
def cluster(redis_url: str, open_redis: OpenRedis, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """The ports of a process whose scripts Redis knows, and a view with one slot."""
    cluster = Cluster(open_redis(redis_url), open_redis(redis_url), monkeypatch)
    cluster.view_cache.rebuild([a_slot("linux-1")])
    cluster.announce("r0")
    cluster.lock.take()
    cluster.view_cache.catch_up()
    cluster.lock.release()
    cluster.client.delete(TICKS, KICK)
    return cluster


def test_an_announcement_takes_one_round_trip_in_its_order(cluster: Cluster) -> None:
    counts: list[int] = []
    seen = cluster.watch(lambda: counts.append(cluster.count(partial(cluster.announce, "r1"))))
    assert counts == [1]
    assert cluster.is_announced("r1")
    places = [
        next(place for place, command in enumerate(seen) if command.startswith(start))
        for start in ("XADD leasehold:view:deltas", f"PUBLISH {NOTICE}", f"LPUSH {TICKS}")
    ]
    assert places == sorted(places)


def test_after_redis_dropped_the_scripts_the_rows_are_there_before_the_tick_is_requested(cluster: Cluster) -> None:
    cluster.client.script_flush()
    seen = cluster.watch(partial(cluster.announce, "r1"))
    assert cluster.is_announced("r1")
    kicks = [place for place, command in enumerate(seen) if command.startswith(f"SET {KICK}")]
    (row,) = (place for place, command in enumerate(seen) if command.startswith("XADD leasehold:view:deltas"))
    assert row < kicks[-1]


@pytest.mark.parametrize("answers", [0, 1, 2])
def test_an_announcement_whose_connection_is_lost_is_made_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, answers: int
) -> None:
    read: Callable[..., Any] = redis.connection.AbstractConnection.read_response
    left = [answers]

    def lose(*arguments: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] == -1:
            raise redis.ConnectionError("cut off")
        return read(*arguments, **options)

    monkeypatch.setattr(redis.connection.AbstractConnection, "read_response", lose)
    cluster.announce("r1")
    assert left[0] < -1
    assert cluster.is_announced("r1")


def test_a_block_that_fails_sends_nothing(cluster: Cluster) -> None:
    def fail() -> None:
        with cluster.bundle.open():
            cluster.notifier.kick()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert cluster.client.llen(TICKS) == 0
    cluster.notifier.kick()
    assert cluster.client.llen(TICKS) == 1


def test_an_error_of_a_command_is_raised_at_the_end_of_the_block(cluster: Cluster) -> None:
    cluster.client.delete("leasehold:view:reservations")
    cluster.client.set("leasehold:view:reservations", "odd")
    with pytest.raises(ViewUnavailableError, match="WRONGTYPE"):
        cluster.announce("r1")


def test_a_long_publish_in_a_block_comes_after_what_was_collected(cluster: Cluster) -> None:
    names = [f"n{number}" for number in range(1200)]
    with cluster.bundle.open():
        cluster.view_cache.publish([a_reservation("r1")])
        cluster.view_cache.publish([a_reservation(name) for name in names])
        assert {"r1", *names} <= cluster.view_cache.read_kept().keys()
    assert cluster.client.llen(TICKS) == 0


def test_the_take_of_the_lock_reads_what_a_tick_reads_next(cluster: Cluster) -> None:
    cluster.record.keep(ONE, 3, 7)
    cluster.view_cache.publish([a_reservation("r1")])
    assert cluster.count(cluster.lock.take) == 1
    records = []

    def read() -> None:
        cluster.view_cache.catch_up()
        records.append(cluster.record.read())

    assert cluster.count(read) == 0
    view = cluster.view_cache.catch_up()
    assert view is not None
    assert "r1" in view.reservations
    assert records == [Remembered(identity=ONE, term=3, token=7)]
    cluster.view_cache.publish([a_reservation("r2")])
    cluster.record.keep(ONE, 4, 8)
    assert cluster.count(read) == 2, "the replies are used once"
    assert "r2" in view.reservations
    assert records[1].term == 4


@pytest.mark.parametrize("end", ["release", "refused"])
def test_what_was_read_with_a_lock_is_not_used_without_it(
    cluster: Cluster, end: str, redis_url: str, open_redis: OpenRedis
) -> None:
    if end == "refused":
        assert RedisLeaderLock(open_redis(redis_url)).take()
    assert cluster.lock.take() == (end == "release")
    if end == "release":
        cluster.lock.release()
    cluster.view_cache.publish([a_reservation("r1")])
    cluster.record.keep(ONE, 3, 7)
    view = cluster.view_cache.catch_up()
    assert view is not None
    assert "r1" in view.reservations
    assert cluster.record.read().identity == ONE


def test_more_changes_than_a_take_reads_are_read_by_the_next_call(cluster: Cluster) -> None:
    names = [f"n{number}" for number in range(30)]
    for name in names:
        cluster.view_cache.publish([a_reservation(name)])
    cluster.lock.take()
    view = cluster.view_cache.catch_up()
    assert view is not None
    assert view.reservations.keys() >= set(names)


def test_a_take_sees_that_the_view_is_not_valid_any_more(cluster: Cluster) -> None:
    cluster.client.delete("leasehold:view:generation")
    assert cluster.lock.take()
    assert cluster.view_cache.catch_up() is None


@pytest.mark.parametrize("fault", ["scripts", "type"])
def test_a_take_works_although_a_read_with_it_fails(cluster: Cluster, fault: str) -> None:
    cluster.view_cache.publish([a_reservation("r1")])
    if fault == "scripts":
        cluster.client.script_flush()
    else:
        cluster.client.set("leasehold:highest", "odd")
    assert cluster.lock.take()
    view = cluster.view_cache.catch_up()
    assert view is not None
    assert "r1" in view.reservations
    assert cluster.record.read() == Remembered()


def test_a_record_that_was_just_read_is_not_written_again(cluster: Cluster) -> None:
    cluster.record.keep(ONE, 3, 7)
    cluster.record.read()
    assert cluster.count(lambda: cluster.record.keep(ONE, 3, 7)) == 0
    cluster.client.flushall()
    assert cluster.record.keep(ONE, 3, 7) == ONE
    assert cluster.record.read() == Remembered(identity=ONE, term=3, token=7)
    assert cluster.record.keep(ONE, 3, 8) == ONE
    assert cluster.record.read().token == 8
    assert cluster.record.keep(TWO, 1, 1) == ONE
