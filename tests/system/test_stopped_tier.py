"""A stopped tier on a real stack: machines are stopped and started by EC2, also while it lacks capacity."""

from collections.abc import Iterator

import pytest

from scheduler.model.slots import Slot
from testbed.processes import wait_for
from testbed.stack import Stack, a_pool

SMALL = {"name": "c5.large", "market": "on-demand", "price": 0.1, "resources": {"cpus": 2}}
LARGE = {"name": "c5.xlarge", "market": "on-demand", "price": 0.12, "resources": {"cpus": 4}}
pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack whose pool keeps one stopped machine."""
    pool = a_pool(max_slots=2, max_leases_per_slot=1, stopped_slots=1, resize_stopped=True, offerings=[SMALL, LARGE])
    with Stack(tmp_path_factory.mktemp("tier"), {"pools": {"linux": pool}}, RECOVER_INTERVAL=2) as running:
        yield running


def find_stopped(stack: Stack) -> list[Slot]:
    """Return the stopped slots whose stop EC2 has confirmed."""
    return [slot for slot in stack.slots() if slot.state == "stopped" and slot.power is None]


def test_a_stopped_machine_serves_a_reservation_and_another_one_takes_its_place(tier: Stack) -> None:
    [slot] = wait_for(lambda: find_stopped(tier), "a stopped machine")
    assert [each["state"] for each in tier.instances()] == ["stopped"]
    tier.submit("quick")
    [row] = tier.await_phase(["quick"], "leased")
    assert row.leases[0].slot == slot.id
    machines = {life["id"]: life["starts"] for life in tier.control("history")["instances"]}
    assert machines[slot.instance_id or ""] == 1
    [second] = wait_for(lambda: find_stopped(tier), "the tier to be full again")
    assert second.id != slot.id
    assert tier.launched() == 2
    tier.ask("release", {"reservation": "quick", "token": row.token})
    wait_for(lambda: len(tier.instances("stopped", "running", "pending")) == 1, "the end of the first machine")
    assert [each.id for each in find_stopped(tier)] == [second.id]


def test_without_capacity_for_its_type_a_machine_is_started_as_another_one(tier: Stack) -> None:
    [slot] = wait_for(lambda: find_stopped(tier), "a stopped machine")
    fault = {"code": "InsufficientInstanceCapacity", "action": "StartInstances", "type": SMALL["name"]}
    launches = {"code": "InsufficientInstanceCapacity", "type": SMALL["name"]}
    tier.control("faults", [fault, launches], "PUT")
    tier.submit("patient", resources={"cpus": 2})
    [row] = tier.await_phase(["patient"], "leased")
    tier.control("faults", [], "PUT")
    found = next(each for each in tier.slots() if each.id == row.leases[0].slot)
    assert (found.offering, found.instance_type) == (LARGE["name"], LARGE["name"])
    if found.id == slot.id:  # else the launch of the large one was ready earlier
        assert found.instance_id == slot.instance_id
    tier.ask("release", {"reservation": "patient", "token": row.token})
