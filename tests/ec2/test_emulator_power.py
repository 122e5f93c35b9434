"""Stops, starts and other types of emulated instances, and what the fleet makes of EC2's answers."""

from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

from scheduler.ports import CloudError
from tests.ec2.conftest import Emulator, Launch, some_rules
from tests.ec2.test_emulator import eventually
from workers.ec2.fleet import Ec2Fleet

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

ON_DEMAND = [{"name": "c5.large", "market": "on-demand"}, {"name": "c5.xlarge", "market": "on-demand"}]


@pytest.fixture
def machine(launch: Launch) -> str:
    """The id of an on-demand machine that runs."""
    return launch(rules=some_rules(offerings=ON_DEMAND)).id


def describe(client: "EC2Client", machine: str) -> dict[str, Any]:
    [reservation] = client.describe_instances(InstanceIds=[machine])["Reservations"]
    return dict(reservation["Instances"][0])


def find_state(fleet: Ec2Fleet, machine: str) -> str:
    return fleet.describe([machine])[machine].state


def test_a_stop_and_a_start_take_their_time(fleet: Ec2Fleet, emulator: Emulator, launch: Launch) -> None:
    emulator.steer(stop_seconds=0.4, start_seconds=0.4)
    machine = launch(rules=some_rules(offerings=ON_DEMAND)).id
    fleet.stop([machine])
    assert find_state(fleet, machine) == "stopping"
    eventually(lambda: find_state(fleet, machine) == "stopped")
    assert emulator.history()[0]["stopped_at"] is not None
    fleet.start([machine])
    assert find_state(fleet, machine) == "pending"
    eventually(lambda: find_state(fleet, machine) == "running")
    [life] = emulator.history()
    assert (life["stopped_at"], life["starts"], life["terminated_at"]) == (None, 1, None)


def test_both_calls_may_be_repeated_and_ignore_unknown_ids(fleet: Ec2Fleet, emulator: Emulator, machine: str) -> None:
    for _ in range(2):
        fleet.stop([machine, "i-0123456789abcdef0"])
    assert find_state(fleet, machine) == "stopped"
    for _ in range(2):
        fleet.start([machine, "i-0123456789abcdef0"])
    assert find_state(fleet, machine) == "running"
    assert emulator.history()[0]["starts"] == 1


def test_the_status_checks_begin_again_after_a_start(emulator: Emulator, launch: Launch, fleet: Ec2Fleet) -> None:
    emulator.steer(status_seconds=0.3)
    machine = launch(rules=some_rules(offerings=ON_DEMAND)).id
    eventually(lambda: fleet.describe([machine])[machine].healthy is True)
    fleet.stop([machine])
    fleet.start([machine])
    assert fleet.describe([machine])[machine].healthy is None
    eventually(lambda: fleet.describe([machine])[machine].healthy is True)


def test_the_sweep_lists_stopped_machines(fleet: Ec2Fleet, machine: str) -> None:
    fleet.stop([machine])
    assert [(each.id, each.state) for each in fleet.sweep()] == [(machine, "stopped")]


def test_a_stopped_machine_can_be_terminated(fleet: Ec2Fleet, machine: str) -> None:
    fleet.stop([machine])
    fleet.terminate([machine])
    assert find_state(fleet, machine) == "terminated"


def test_a_machine_can_be_terminated_while_it_stops(fleet: Ec2Fleet, emulator: Emulator, launch: Launch) -> None:
    emulator.steer(stop_seconds=60)
    machine = launch(rules=some_rules(offerings=ON_DEMAND)).id
    fleet.stop([machine])
    fleet.terminate([machine])
    assert find_state(fleet, machine) == "terminated"


def test_a_stopped_machine_gets_another_type(fleet: Ec2Fleet, client: "EC2Client", machine: str) -> None:
    fleet.stop([machine])
    fleet.resize(machine, "c5.xlarge")
    fleet.start([machine])
    assert fleet.describe([machine])[machine].type == "c5.xlarge"
    assert describe(client, machine)["State"]["Name"] == "running"


def test_the_type_of_a_running_machine_cannot_be_changed(fleet: Ec2Fleet, machine: str) -> None:
    with pytest.raises(CloudError) as raised:
        fleet.resize(machine, "c5.xlarge")
    assert (raised.value.category, raised.value.code) == ("state", "IncorrectInstanceState")


def test_a_machine_that_is_stopping_cannot_be_started(emulator: Emulator, launch: Launch, fleet: Ec2Fleet) -> None:
    emulator.steer(stop_seconds=30)
    machine = launch(rules=some_rules(offerings=ON_DEMAND)).id
    fleet.stop([machine])
    assert fleet.start([machine])[machine].code == "IncorrectInstanceState"


def test_a_spot_machine_cannot_be_stopped(launch: Launch, fleet: Ec2Fleet) -> None:
    machine = launch().id
    error = fleet.stop([machine])[machine]
    assert (error.category, error.code) == ("state", "UnsupportedOperation")


@pytest.mark.parametrize("zone", [None, "us-east-1a"])
def test_a_start_may_find_no_capacity(emulator: Emulator, fleet: Ec2Fleet, machine: str, zone: str | None) -> None:
    fleet.stop([machine])
    fault = {"code": "InsufficientInstanceCapacity", "action": "StartInstances", "type": "c5.large", "count": 1}
    emulator.set_fault(**fault, **({"zone": zone} if zone else {}))
    assert fleet.start([machine])[machine].category == "capacity"
    assert find_state(fleet, machine) == "stopped"
    fleet.start([machine])
    assert find_state(fleet, machine) == "running"
    failed, fine = emulator.calls("StartInstances")[-2:]
    assert (failed["faults"], fine["faults"]) == (["power:InsufficientInstanceCapacity"], [])


def test_a_capacity_fault_of_another_type_or_of_launches_does_not_concern_a_start(
    emulator: Emulator, fleet: Ec2Fleet, machine: str
) -> None:
    fleet.stop([machine])
    emulator.set_fault(code="InsufficientInstanceCapacity", action="StartInstances", type="m5.large")
    fleet.start([machine])
    fleet.stop([machine])
    emulator.set_fault(code="InsufficientInstanceCapacity")
    fleet.start([machine])
    assert find_state(fleet, machine) == "running"


def test_a_stopped_machine_uses_no_quota_and_a_start_needs_it(
    emulator: Emulator, fleet: Ec2Fleet, launch: Launch
) -> None:
    emulator.steer(quota={"on_demand_machines": 1})
    rules = some_rules(offerings=ON_DEMAND)
    first = launch(1, rules=rules).id
    fleet.stop([first])
    launch(2, rules=rules)
    error = fleet.start([first])[first]
    assert (error.category, error.code) == ("quota", "InstanceLimitExceeded")


def test_a_call_names_at_most_250_machines(
    emulator: Emulator, fleet: Ec2Fleet, client: "EC2Client", machine: str
) -> None:
    fleet.stop([machine, *(f"i-{number:017x}" for number in range(251))])
    first = emulator.calls("StopInstances")[0]
    assert len(first["instances"]) == 250
    assert find_state(fleet, machine) == "stopped"


def test_a_dry_run_of_each_call_changes_nothing(client: "EC2Client", machine: str, fleet: Ec2Fleet) -> None:
    for call in (client.stop_instances, client.start_instances):
        with pytest.raises(ClientError, match="DryRunOperation"):
            call(InstanceIds=[machine], DryRun=True)
    assert find_state(fleet, machine) == "running"
