"""Back-offs after EC2's quota while launches of one tick are answered one after the other.

On the virtual clock of scenarios these answers have the same time, so scenarios do not test it.
"""

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
    """Return a harness with one active slot and one planned launch for each number of CPUs."""
    harness = Harness({"pools": {"linux": TWO_MARKETS}})
    harness.put(a_slot("linux-4", state="ready", offering="small", cordoned=True, instance_id="i-4", version=1))
    for number, each in enumerate(cpus, 1):
        harness.submit(f"r{number}", resources={"cpus": each})
    harness.tick()
    return harness


def answer(harness: Harness, slot: str, *errors: str) -> str:
    harness.fleet.errors = [CloudError(each, "Code", "no") for each in errors]  # type: ignore[arg-type]
    return launch(harness.ports, harness.slot(slot).launch_id or "", slot)


def active_at_refusal(harness: Harness) -> dict[str, int]:
    """Return market and quota class -> number of active slots at the refusal."""
    holds = (row for row in harness.store.read_rows() if isinstance(row, Hold) and row.kind == "quota")
    return {hold.subject: hold.active for hold in holds}


def test_refused_launches_of_one_tick_do_not_count_as_active() -> None:
    harness = a_harness(1, 8)
    assert answer(harness, "linux-1", "quota") == "quota"
    harness.now += 0.3
    assert answer(harness, "linux-2", "quota") == "quota"
    assert active_at_refusal(harness) == {"spot:other": 1, "on-demand:other": 1}
    assert harness.tick().plan.decisions == ()


def test_a_success_of_a_launch_planned_before_the_refusal_keeps_the_back_off() -> None:
    harness = a_harness(1)
    harness.now += 1
    harness.submit("r2", resources={"cpus": 1})
    harness.tick()
    assert answer(harness, "linux-1", "quota") == "quota"
    harness.now += 1
    assert answer(harness, "linux-2") == "success"
    assert active_at_refusal(harness).keys() == {"spot:other"}
    harness.now += 60
    harness.tick()
    assert answer(harness, "linux-1") == "success", "launched after the end of the back-off"
    assert active_at_refusal(harness) == {}
