"""The adapters in memory: what depends on their clock, and what they record for tests."""

import pytest

from scheduler.model.slots import Slot
from scheduler.model.view import Gone, Row
from scheduler.ports import Meter
from scheduler.view.memory import (
    KEPT_SECONDS,
    InMemoryRedis,
    LockHolder,
    MemoryLeaderLock,
    MemoryMeter,
    MemoryNotifier,
    MemoryViewCache,
)
from tests.view.rows import content, reservation_at, slot_at


class Clock:
    """A clock that only the test advances."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def a_view_cache(clock: Clock, *rows: Row) -> MemoryViewCache:
    view_cache = MemoryViewCache(InMemoryRedis(clock))
    view_cache.rebuild(rows)
    return view_cache


def test_an_ended_reservation_is_forgotten_after_its_time() -> None:
    clock = Clock()
    view_cache = a_view_cache(clock, reservation_at(1, phase="released"))
    clock.now = KEPT_SECONDS - 1
    view_cache.publish([])
    assert set(view_cache.read_kept()) == {"r1"}
    clock.now = KEPT_SECONDS
    view_cache.publish([])
    assert view_cache.read_kept() == {}


def test_a_tombstone_refuses_old_copies_until_its_time_is_over() -> None:
    clock = Clock()
    view_cache = a_view_cache(clock)
    view_cache.publish([Gone("slots", "linux-1", 2)])
    clock.now = KEPT_SECONDS - 1
    view_cache.publish([slot_at(1)])
    assert content(view_cache.load())["slots"] == {}
    clock.now = KEPT_SECONDS
    view_cache.publish([])
    view_cache.publish([slot_at(1)])
    assert content(view_cache.load())["slots"] == {"linux-1": slot_at(1)}


def test_a_row_that_was_inserted_again_after_its_deletion_is_not_forgotten() -> None:
    clock = Clock()
    view_cache = a_view_cache(clock)
    view_cache.publish([reservation_at(1, phase="released"), Gone("reservations", "r1", 2), reservation_at(3)])
    clock.now = KEPT_SECONDS
    view_cache.publish([])
    assert content(view_cache.catch_up())["reservations"] == {"r1": reservation_at(3)}


def test_a_flushed_redis_in_memory_holds_no_view() -> None:
    view_cache = a_view_cache(Clock(), slot_at(1))
    view_cache.write_report({"term": 1})
    view_cache.redis.flush()
    assert view_cache.publish([slot_at(2)]) is False
    assert view_cache.load() is None
    assert view_cache.read_report() == {}


def test_a_view_cache_that_missed_too_many_changes_reloads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.view.memory.DELTAS", 2)
    view_cache = a_view_cache(Clock())
    for version in (1, 2):
        view_cache.publish([slot_at(version)])
    assert content(view_cache.catch_up())["slots"] == {"linux-1": slot_at(2)}
    for version in (3, 4, 5):
        view_cache.publish([slot_at(version)])
    assert view_cache.catch_up() is None
    loaded = content(view_cache.load())["slots"]
    assert isinstance(loaded["linux-1"], Slot)
    assert loaded["linux-1"].version == 5


def test_a_lock_in_memory_expires_by_its_clock() -> None:
    clock, lock_holder = Clock(), LockHolder()
    old, new = MemoryLeaderLock(lock_holder, 15.0, clock), MemoryLeaderLock(lock_holder, 15.0, clock)
    old.take()
    new.take()
    clock.now = 14.0
    assert old.seconds_left() == 1.0
    clock.now = 15.0
    assert (old.seconds_left(), old.renew()) == (0.0, False)
    assert old.release(), "the lock is free, so the old holder still receives the mark"
    assert new.take()
    assert not old.release()


def test_a_notifier_in_memory_records_kicks_notices_and_replies() -> None:
    notifier = MemoryNotifier(clock=Clock())
    notifier.kick()
    notifier.kick()
    assert (notifier.kicks, notifier.ticks_sent, notifier.is_rung) == (2, 1, True)
    notifier.hear()
    assert not notifier.is_rung
    notifier.notify({"r1": {"event": "leased"}})
    notifier.reply("leasehold:reply:a", {"ok": True})
    assert notifier.notices == [("r1", {"event": "leased"})]
    assert notifier.replies == {"leasehold:reply:a": [{"ok": True}]}


def test_a_meter_in_memory_adds_up_and_keeps_observations() -> None:
    meter = MemoryMeter()
    port: Meter = meter
    port.count("leasehold_ticks_total", {"result": "success"})
    port.count("leasehold_ticks_total", {"result": "success"}, 2)
    port.observe("leasehold_tick_duration_seconds", {}, 0.5)
    assert meter.counts == {("leasehold_ticks_total", (("result", "success"),)): 3}
    assert meter.observations == [("leasehold_tick_duration_seconds", {}, 0.5)]
