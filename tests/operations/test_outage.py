"""Nobody loses anything by an outage of ours, and nothing is written on a picture that is too old."""

import pytest

from scheduler.operations.tick.tick import PlanTooLateError, tick
from scheduler.view.memory import MemoryLeaderLock
from tests.operations.harness import Harness

TTL = 20.0
CONFIG = {
    "pools": {"linux": {"system": "x86_64-linux", "max_slots": 1, "lease_ttl": TTL, "idle_scale_down": 10_000}},
    "scheduler": {"confirm_timeout": 0},
}


def test_after_an_outage_of_ours_what_fell_due_gets_one_more_period_once() -> None:
    rig = Harness(CONFIG).leased()
    rig.now += 10 * TTL
    rig.tick()
    assert rig.phase() == "leased"
    rig.now += TTL - 1
    rig.tick()
    assert rig.phase() == "leased"
    rig.now += 1
    rig.tick()
    assert rig.phase() == "expired"


def test_without_an_outage_it_expires_in_time() -> None:
    rig = Harness(CONFIG).leased()
    end = rig.now + TTL
    while rig.now < end:
        assert rig.phase() == "leased"
        rig.now += rig.leader.interval
        rig.tick()
    assert rig.phase() == "expired"


def test_a_process_that_comes_new_sees_the_outage_too() -> None:
    rig = Harness(CONFIG).leased()
    rig.now += 10 * TTL
    rig.restart()
    rig.tick()
    assert rig.phase() == "leased"


def test_who_finds_another_leading_ticks_when_that_one_s_lock_would_end() -> None:
    rig = Harness(CONFIG)
    another = MemoryLeaderLock(rig.seat, 15.0, rig.clock)
    another.take()
    rig.now += 12
    assert tick(rig.ports, rig.leader) == []
    assert rig.mailbox.due == rig.now + 3
    rig.now += 3
    assert len(tick(rig.ports, rig.leader)) == 1


@pytest.mark.parametrize(
    ("share", "is_trusted"),
    [
        # Of the lock's time, gone since it was last renewed.
        (0.59, True),
        (0.61, False),
        (1.5, False),
    ],
)
def test_a_plan_is_thrown_away_when_most_of_the_locks_time_is_gone(share: float, is_trusted: bool) -> None:
    rig = Harness(CONFIG)
    rig.tick()
    rig.submit("r1")
    load_rules = rig.ports.rules

    def think_long() -> object:
        rig.now += share * rig.leader.lock_seconds
        return load_rules()

    rig.ports.rules = think_long  # type: ignore[assignment, method-assign]
    before = [event.number for event in rig.events]
    if is_trusted:
        rig.tick()
        assert rig.slot().state == "launching"
        return
    with pytest.raises(PlanTooLateError):
        rig.tick()
    assert [event.number for event in rig.events] == before
