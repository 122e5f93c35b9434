"""What the adapters in memory do by the clock that they are given, and what they record."""

import pytest

from scheduler.model.slots import Slot
from scheduler.model.view import Gone, Row
from scheduler.ports import Meter
from scheduler.view.in_memory_redis import KEPT_SECONDS, InMemoryRedis
from scheduler.view.memory import LockHolder, MemoryLeaderLock, MemoryMeter, MemoryNotifier, MemoryViewCache
from tests.view.rows import content, reservation_at, slot_at


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def a_board(clock: Clock, *rows: Row) -> MemoryViewCache:
    view_cache = MemoryViewCache(InMemoryRedis(clock))
    view_cache.rebuild(rows)
    return view_cache


def test_an_ended_reservation_is_forgotten_after_its_time() -> None:
    clock = Clock()
    view_cache = a_board(clock, reservation_at(1, phase="released"))
    clock.now = KEPT_SECONDS - 1
    view_cache.publish([])
    assert set(view_cache.read_reservations(["r1"])) == {"r1"}
    clock.now = KEPT_SECONDS
    view_cache.publish([])
    assert view_cache.read_reservations(["r1"]) == {}


def test_a_tombstone_refuses_old_copies_until_its_time_is_over() -> None:
    clock = Clock()
    view_cache = a_board(clock)
    view_cache.publish([Gone("slots", "linux-1", 2)])
    clock.now = KEPT_SECONDS - 1
    view_cache.publish([slot_at(1)])
    assert view_cache.read_slots(["linux-1"]) == {}
    clock.now = KEPT_SECONDS
    view_cache.publish([])
    view_cache.publish([slot_at(1)])
    assert view_cache.read_slots(["linux-1"]) == {"linux-1": slot_at(1)}


def test_a_row_that_came_again_after_its_end_and_deletion_is_not_forgotten_with_them() -> None:
    clock = Clock()
    view_cache = a_board(clock)
    view_cache.publish([reservation_at(1, phase="released"), Gone("reservations", "r1", 2), reservation_at(3)])
    clock.now = KEPT_SECONDS
    view_cache.publish([])
    assert content(view_cache.catch_up())["reservations"] == {"r1": reservation_at(3)}


def test_a_flushed_shelf_holds_no_view() -> None:
    view_cache = a_board(Clock(), slot_at(1))
    view_cache.write_report({"term": 1})
    view_cache.redis.flush()
    assert view_cache.publish([slot_at(2)]) is False
    assert view_cache.load() is None
    assert view_cache.read_report() == {}


def test_a_board_that_fell_too_far_behind_reloads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.view.in_memory_redis.DELTAS", 2)
    view_cache = a_board(Clock())
    for version in (1, 2):
        view_cache.publish([slot_at(version)])
    assert content(view_cache.catch_up())["slots"] == {"linux-1": slot_at(2)}
    for version in (3, 4, 5):
        view_cache.publish([slot_at(version)])
    assert view_cache.catch_up() is None
    loaded = content(view_cache.load())["slots"]
    assert isinstance(loaded["linux-1"], Slot)
    assert loaded["linux-1"].version == 5


def test_a_lock_runs_out_by_the_clock() -> None:
    clock, lock_holder = Clock(), LockHolder()
    old, new = MemoryLeaderLock(lock_holder, 15.0, clock), MemoryLeaderLock(lock_holder, 15.0, clock)
    old.take()
    new.take()
    clock.now = 14.0
    assert old.seconds_left() == 1.0
    clock.now = 15.0
    assert (old.seconds_left(), old.renew()) == (0.0, False)
    assert old.release(), "nobody holds it: the mark is told"
    assert new.take()
    assert not old.release()


def test_a_bell_without_a_broker_records_what_was_asked() -> None:
    notifier = MemoryNotifier(clock=Clock())
    notifier.kick()
    notifier.kick()
    assert (notifier.kicks, notifier.ticks_sent, notifier.is_rung) == (2, 1, True)
    notifier.hear()
    assert not notifier.is_rung
    notifier.notify("r1", {"event": "leased"})
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
