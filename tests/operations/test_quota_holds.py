"""Quota holds as launches are answered one after the other, which on the virtual clock all happens at one instant."""

from typing import Any

from scheduler.model.launch_backoff import Hold
from scheduler.operations.machines.launch import launch
from scheduler.ports import CloudError
from tests.builders import a_slot
from tests.operations.harness import Harness

TWO_MARKETS: dict[str, Any] = {
    "system": "x86_64-linux",
    "max_slots": 4,
    "max_leases_per_slot": 1,
    "lease_ttl": 0,
    "offerings": [
        {"name": "small", "market": "spot", "price": 1, "resources": {"cpus": 1}},
        {"name": "large", "market": "on-demand", "price": 2, "resources": {"cpus": 8}},
    ],
}


def a_harness(*cpus: int) -> Harness:
    """One slot is active, and a launch for each of these was decided."""
    harness = Harness({"pools": {"linux": TWO_MARKETS}})
    harness.put(a_slot("linux-4", state="ready", offering="small", cordoned=True, instance_id="i-4", version=1))
    for number, each in enumerate(cpus, 1):
        harness.submit(f"r{number}", resources={"cpus": each})
    harness.tick()
    return harness


def answer(harness: Harness, slot: str, *errors: str) -> str:
    harness.fleet.errors = [CloudError(each, "Code", "no") for each in errors]  # type: ignore[arg-type]
    return launch(harness.ports, slot, harness.slot(slot).launch_id or "")


def counted(harness: Harness) -> dict[str, int]:
    """By market, the active slots at the refusal."""
    holds = (row for row in harness.store.read_rows() if isinstance(row, Hold) and row.kind == "quota")
    return {hold.subject: hold.active for hold in holds}


def test_launches_of_one_tick_that_are_refused_one_after_the_other_count_for_neither_hold() -> None:
    harness = a_harness(1, 8)
    assert answer(harness, "linux-1", "quota") == "quota"
    harness.now += 0.3
    assert answer(harness, "linux-2", "quota") == "quota"
    assert counted(harness) == {"spot": 1, "on-demand": 1}
    assert harness.tick().plan.decisions == ()


def test_a_launch_that_was_decided_before_the_refusal_was_known_leaves_the_hold_as_it_is() -> None:
    harness = a_harness(1)
    harness.now += 1
    harness.submit("r2", resources={"cpus": 1})
    harness.tick()
    assert answer(harness, "linux-1", "quota") == "quota"
    harness.now += 1
    assert answer(harness, "linux-2") == "success"
    assert counted(harness).keys() == {"spot"}
    harness.now += 60
    harness.tick()
    assert answer(harness, "linux-1") == "success", "it was launched when the hold was over"
    assert counted(harness) == {}
