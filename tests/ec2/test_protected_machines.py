"""Idle machines on the emulator, of which one is protected: the others end, by few calls."""

import time
from typing import TYPE_CHECKING, Any

import pytest

from scheduler.operations.machines.reconcile import reconcile
from scheduler.operations.machines.terminate import terminate_all
from tests.ec2.conftest import IMAGE, Emulator
from tests.ec2.test_faults_at_scale import ProbedFleet
from tests.operations.harness import Harness
from workers.ec2.clients import Ec2Access, open_client

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

COUNT = 6
RULES: dict[str, Any] = {
    "pools": {
        "linux": {
            "system": "x86_64-linux",
            "max_slots": COUNT,
            "max_leases_per_slot": 1,
            "lease_ttl": 0,
            "idle_scale_down": 5,
            "offerings": [{"name": "c5.large", "market": "on-demand"}],
            "ec2": {"image": IMAGE},
        }
    }
}


class Idle(Harness):
    """A process whose machines, on the emulator, are idle and are to end."""

    def __init__(self, access: Ec2Access) -> None:
        super().__init__(RULES, fleet=ProbedFleet(open_client("ec2", access, 30), "blue"))  # type: ignore[arg-type]
        self.now = time.time()
        names = [f"r{number}" for number in range(COUNT)]
        for name in names:
            self.submit(name)
        while any(self.phase(name) != "leased" for name in names):
            self.settle(2)
        for name in names:
            self.ask("release", reservation=name, token=self.token(name))
        self.now += 6
        self.tick()
        self.tick()

    def end(self) -> dict[str, str]:
        """Carry out the terminations, as the task for a list of slots does."""
        wanted = [arguments for kind, arguments in self.mailbox.tasks if kind == "terminate"]
        self.mailbox.tasks.clear()
        return terminate_all(self.ports, wanted)


@pytest.mark.parametrize("attribute", ["DisableApiTermination", "DisableApiStop"])
def test_of_six_idle_machines_five_end_and_the_protected_one_ends_when_it_may(
    emulator: Emulator, access: Ec2Access, client: "EC2Client", attribute: str
) -> None:
    idle = Idle(access)
    machines = {slot.id: slot.instance_id or "" for slot in idle.store.find_slots()}
    client.modify_instance_attribute(InstanceId=machines["linux-3"], **{attribute: {"Value": True}})  # type: ignore[arg-type]
    outcomes = idle.end()
    assert outcomes == {name: "state" if name == "linux-3" else "asked" for name in machines}
    assert len(emulator.calls("TerminateInstances")) == 2
    idle.play_tasks()
    states = {slot.id: slot.state for slot in idle.store.find_slots()}
    assert states == {name: "terminating" if name == "linux-3" else "empty" for name in machines}
    assert (idle.slot("linux-3").refusal or "").startswith("OperationNotPermitted: The instance")
    client.modify_instance_attribute(InstanceId=machines["linux-3"], **{attribute: {"Value": False}})  # type: ignore[arg-type]
    idle.settle(20)
    assert {slot.state for slot in idle.store.find_slots()} == {"empty"}


def test_of_six_machines_without_a_slot_five_end(emulator: Emulator, access: Ec2Access, client: "EC2Client") -> None:
    idle = Idle(access)
    machines = [slot.instance_id or "" for slot in idle.store.find_slots()]
    client.modify_instance_attribute(InstanceId=machines[2], DisableApiTermination={"Value": True})
    successor = Harness({"pools": {"other": {"system": "x86_64-linux", "max_slots": 0}}}, fleet=idle.fleet)
    successor.now = idle.now + 400
    client.create_tags(
        Resources=machines, Tags=[{"Key": "leasehold:cluster-id", "Value": successor.store.read_cluster().identity}]
    )
    found = reconcile(successor.ports)
    assert (found.ended, found.refused) == (COUNT - 1, 1)
    running = [each["id"] for each in emulator.instances() if each["state"] == "running"]
    assert running == [machines[2]]
