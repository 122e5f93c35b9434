"""An outage of the scheduler loses no lease and no host, and a plan that took too long is not committed."""

from typing import Any

import pytest

from scheduler.operations.change_set import ChangeSet
from scheduler.operations.tick import commit as committing
from scheduler.operations.tick.tick import PlanTooLateError, tick
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.ports import RulesVersion
from scheduler.view.memory import MemoryLeaderLock
from tests.operations.harness import Harness

TTL = 20.0
CONFIG: dict[str, Any] = {
    "pools": {"linux": {"system": "x86_64-linux", "max_slots": 1, "lease_ttl": TTL, "idle_scale_down": 10_000}},
    "scheduler": {"confirm_timeout": 0},
}


def test_after_an_outage_an_expired_lease_gets_one_more_ttl_once() -> None:
    harness = Harness(CONFIG).leased()
    harness.now += 10 * TTL
    harness.tick()
    assert harness.phase() == "leased"
    harness.now += TTL - 1
    harness.tick()
    assert harness.phase() == "leased"
    harness.now += 1
    harness.tick()
    assert harness.phase() == "expired"


def test_without_an_outage_a_lease_expires_in_time() -> None:
    harness = Harness(CONFIG).leased()
    end = harness.now + TTL
    while harness.now < end:
        assert harness.phase() == "leased"
        harness.now += harness.leader.interval
        harness.tick()
    assert harness.phase() == "expired"


def test_a_new_process_detects_the_outage_too() -> None:
    harness = Harness(CONFIG).leased()
    harness.now += 10 * TTL
    harness.restart()
    harness.tick()
    assert harness.phase() == "leased"


def test_a_process_that_finds_another_leader_ticks_when_the_lock_ends() -> None:
    harness = Harness(CONFIG)
    another = MemoryLeaderLock(harness.lock_holder, 15.0, harness.clock)
    another.take()
    harness.now += 12
    assert tick(harness.ports, harness.leader) == []
    assert harness.mailbox.due == harness.now + 3
    harness.now += 3
    assert len(tick(harness.ports, harness.leader)) == 1


@pytest.mark.parametrize(
    ("share", "is_trusted"),
    [
        # Share of the lock's time that has passed since its last renewal.
        (0.59, True),
        (0.61, False),
        (1.5, False),
    ],
)
def test_a_plan_is_dropped_when_most_of_the_locks_time_has_passed(share: float, is_trusted: bool) -> None:
    harness = Harness(CONFIG)
    harness.tick()
    harness.submit("r1")
    load_rules = harness.ports.rules

    def load_slowly(version: RulesVersion) -> object:
        harness.now += share * harness.leader.lock_seconds
        return load_rules(version)

    harness.ports.rules = load_slowly  # type: ignore[assignment, method-assign]
    before = [event.number for event in harness.events]
    if is_trusted:
        harness.tick()
        assert harness.slot().state == "launching"
        return
    with pytest.raises(PlanTooLateError):
        harness.tick()
    assert [event.number for event in harness.events] == before


def _lease_slowly(harness: Harness, monkeypatch: pytest.MonkeyPatch, seconds: float, *, renews: bool) -> None:
    """Let the commit write one decision in a chunk, and let each chunk take this long.

    `renews`: the leader lock is renewed after each chunk.
    """
    monkeypatch.setattr(committing, "CHUNK", 1)
    flush = UnitOfWork.flush

    def flush_slowly(work: UnitOfWork) -> ChangeSet:
        changed = flush(work)
        harness.now += seconds
        if renews:
            harness.ports.lock.renew()
        return changed

    monkeypatch.setattr(UnitOfWork, "flush", flush_slowly)


@pytest.mark.parametrize(
    ("seconds", "renews", "leased"),
    [
        # Seconds of a chunk, whether the lock is renewed, leases after the first tick. The lock lasts 15 s.
        (3.0, True, 4),
        (8.0, True, 2),
        (15.0, True, 1),
        (3.0, False, 4),
        (5.0, False, 2),
    ],
)
def test_a_commit_that_takes_too_long_stops_between_chunks_and_the_next_tick_goes_on(
    monkeypatch: pytest.MonkeyPatch, seconds: float, renews: bool, leased: int
) -> None:
    names = ["r1", "r2", "r3", "r4"]
    config = CONFIG | {"pools": {"linux": CONFIG["pools"]["linux"] | {"max_leases_per_slot": 5, "lease_ttl": 1000}}}
    harness = Harness(config).leased("r0")
    for name in names:
        harness.submit(name)
    _lease_slowly(harness, monkeypatch, seconds, renews=renews)
    ticked = harness.tick()
    assert (len(ticked.plan.decisions), ticked.cut) == (4, 4 - leased)
    while any(harness.phase(name) != "leased" for name in names):
        assert harness.notifier.is_rung
        harness.tick()
