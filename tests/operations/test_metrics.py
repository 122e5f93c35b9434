"""Measured durations, and the report of a tick about waiting reservations."""

from typing import Any

from scheduler.model.accounts import Account
from scheduler.model.launch_backoff import Hold, hold_id
from scheduler.view.memory import MemoryMeter
from tests.operations.harness import NOW, Harness


def times_of(harness: Harness, name: str) -> list[float]:
    meter = harness.ports.meter
    assert isinstance(meter, MemoryMeter)
    return [value for observed, _, value in meter.observations if observed == name]


def report_of(harness: Harness) -> dict[str, Any]:
    return harness.ports.view_cache.read_report()


def test_the_time_from_submit_to_the_first_lease_is_counted_once() -> None:
    harness = Harness()
    harness.submit("r1")
    harness.settle()
    assert len(times_of(harness, "leasehold_time_to_lease_seconds")) == 1
    assert len(times_of(harness, "leasehold_boot_seconds")) == 1
    assert len(times_of(harness, "leasehold_time_to_ready_seconds")) == 1
    harness.ask("decline", reservation="r1", token=harness.token())
    harness.settle()
    assert harness.phase() == "leased"
    assert len(times_of(harness, "leasehold_time_to_lease_seconds")) == 1


def test_a_tick_reports_the_waiting_reservations_by_code_and_the_longest_wait() -> None:
    harness = Harness()
    for number in range(5):
        harness.submit(f"r{number}")
    harness.submit("held", priority=0)
    harness.now += 30
    harness.tick()
    report = report_of(harness)
    assert (report["codes"], report["longest_wait"]) == ({"booting": 3, "at_max_slots": 2, "on_hold": 1}, 30)


def test_a_tick_reports_waiting_reservations_by_account_and_affordable_level() -> None:
    harness = Harness()
    for name, account in (("r1", "ci"), ("r2", "ci"), ("r3", "lab"), ("r4", "unknown"), ("r5", "ci"), ("r6", None)):
        harness.submit(name, account=account, priority=0 if name != "r5" else 1)
    (first,) = harness.store.find_reservations(ids=["r1"])
    harness.put(Account(id="ci", balance=(0.0, 3.0, 0.0, 0.0, 0.0), forgotten_upto=first.sequence), Account(id="lab"))
    harness.tick()
    assert report_of(harness)["accounts"] == {"ci": [0, 2, 0, 0, 0, 0], "lab": [0, 0, 0, 0, 0, 1]}


def test_a_pool_is_reported_to_be_at_quota_while_its_hold_lasts() -> None:
    harness = Harness()
    harness.put(Hold(id=hold_id("linux", "quota", ""), pool="linux", kind="quota", refused_at=NOW, until=NOW + 60))
    harness.tick()
    assert report_of(harness)["at_quota"] == ["linux"]
    harness.now += 60
    harness.tick()
    assert report_of(harness)["at_quota"] == []


def test_probed_slots_are_recorded() -> None:
    harness = Harness().leased()
    meter = harness.ports.meter
    assert isinstance(meter, MemoryMeter)
    assert set(meter.probed) == {"linux-1"}
