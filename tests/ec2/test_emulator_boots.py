"""Boots that fail, and descriptions that lag: what the API and the history show."""

import time
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

from tests.ec2.conftest import IMAGE, Emulator, Launch
from tests.ec2.test_emulator import eventually
from workers.ec2.fleet import Ec2Fleet

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client


def describe(client: "EC2Client", machine: str) -> dict[str, Any]:
    [reservation] = client.describe_instances(InstanceIds=[machine])["Reservations"]
    return dict(reservation["Instances"][0])


def test_a_stuck_instance_stays_pending_and_can_be_ended(launch: Launch, fleet: Ec2Fleet, emulator: Emulator) -> None:
    emulator.steer(boot_failures=[{"kind": "stuck", "count": 1}])
    stuck, fine = launch(1), launch(2)
    found = fleet.describe([stuck.id, fine.id])
    assert (found[stuck.id].state, found[fine.id].state) == ("pending", "running")
    assert [(event["event"], event["instances"], event["detail"]) for event in emulator.events()] == [
        ("boot_failure", [stuck.id], "stuck")
    ]
    fleet.terminate([stuck.id])
    assert {life["id"]: life["cause"] for life in emulator.history()} == {stuck.id: "call", fine.id: None}


def test_an_instance_may_end_instead_of_running(launch: Launch, client: "EC2Client", emulator: Emulator) -> None:
    emulator.steer(boot_seconds=0.3, boot_failures=[{"kind": "terminated"}])
    machine = launch()
    eventually(lambda: describe(client, machine.id)["State"]["Name"] == "terminated")
    assert describe(client, machine.id)["StateReason"]["Code"] == "Server.InternalError"
    [event] = emulator.events()
    assert (event["event"], event["detail"]) == ("boot_failure", "terminated")
    [life] = emulator.history()
    assert life["cause"] == "boot_failure"
    assert life["terminated_at"] >= life["launched_at"] + 0.3 - 0.01


def test_an_impaired_instance_never_passes_its_checks(launch: Launch, fleet: Ec2Fleet, emulator: Emulator) -> None:
    emulator.steer(boot_failures=[{"kind": "impaired"}])
    machine = launch()
    found = fleet.describe([machine.id])[machine.id]
    assert (found.state, found.healthy) == ("running", False)


def test_an_unreachable_instance_has_a_dead_address(launch: Launch, fleet: Ec2Fleet, emulator: Emulator) -> None:
    failures = [{"kind": "unreachable", "count": 1}]
    emulator.steer(address="127.0.0.1", dead_address="127.255.255.254", boot_failures=failures)
    machines = [launch(1).id, launch(2).id]
    found = fleet.describe(machines)
    assert [found[machine].address for machine in machines] == ["127.255.255.254", "127.0.0.1"]
    assert [found[machine].healthy for machine in machines] == [True, True]


def test_a_new_instance_is_missing_in_descriptions(
    launch: Launch, fleet: Ec2Fleet, client: "EC2Client", emulator: Emulator
) -> None:
    old = launch(1)
    emulator.steer(describe_lag_seconds=60)
    young = launch(2)
    # One unknown id fails the whole list.
    for describe_them in (client.describe_instances, client.describe_instance_status):
        with pytest.raises(ClientError, match=r"InvalidInstanceID\.NotFound"):
            describe_them(InstanceIds=[old.id, young.id])
    assert set(fleet.describe([old.id, young.id])) == {old.id}
    assert [machine.id for machine in fleet.sweep()] == [old.id]
    assert {instance["id"] for instance in emulator.instances()} == {old.id, young.id}
    # The token and the call to terminate find it.
    assert launch(2).id == young.id
    fleet.terminate([young.id])
    assert {life["id"]: life["cause"] for life in emulator.history()} == {old.id: None, young.id: "call"}


def test_a_new_instance_appears_after_the_lag(launch: Launch, fleet: Ec2Fleet, emulator: Emulator) -> None:
    emulator.steer(describe_lag_seconds=0.3)
    machine = launch()
    eventually(lambda: machine.id in fleet.describe([machine.id]))
    assert time.time() >= emulator.history()[0]["launched_at"] + 0.3 - 0.01


def test_a_new_launch_template_is_not_found_for_a_while(plain: "EC2Client", emulator: Emulator) -> None:
    emulator.steer(template_lag_seconds=60)
    data: Any = {"ImageId": IMAGE, "InstanceType": "c5.large"}
    template = plain.create_launch_template(LaunchTemplateName="young", LaunchTemplateData=data)["LaunchTemplate"]
    by_name, by_id = {"LaunchTemplateName": "young"}, {"LaunchTemplateId": template["LaunchTemplateId"]}

    def launch_fleet(specification: dict[str, str]) -> Any:
        target: Any = {"TotalTargetCapacity": 1, "DefaultTargetCapacityType": "spot"}
        configs: Any = [{"LaunchTemplateSpecification": {**specification, "Version": "1"}}]
        return plain.create_fleet(Type="instant", TargetCapacitySpecification=target, LaunchTemplateConfigs=configs)

    def launch_one(specification: dict[str, str]) -> Any:
        return plain.run_instances(MinCount=1, MaxCount=1, LaunchTemplate=specification)  # type: ignore[arg-type]

    for act in (launch_fleet, launch_one):
        with pytest.raises(
            ClientError, match=r"InvalidLaunchTemplateName\.NotFoundException.*template name young, does"
        ):
            act(by_name)
        with pytest.raises(ClientError, match=r"InvalidLaunchTemplateId\.NotFound"):
            act(by_id)
    with pytest.raises(ClientError, match=r"InvalidLaunchTemplateName\.NotFoundException"):
        plain.describe_launch_templates(LaunchTemplateNames=["young"])
    with pytest.raises(ClientError, match=r"InvalidLaunchTemplateName\.AlreadyExistsException"):
        plain.create_launch_template(LaunchTemplateName="young", LaunchTemplateData=data)
    emulator.steer(template_lag_seconds=0)
    plain.create_launch_template(LaunchTemplateName="old", LaunchTemplateData=data)
    assert len(launch_fleet({"LaunchTemplateName": "old"})["Instances"]) == 1


def test_a_new_launch_template_is_found_after_the_lag(plain: "EC2Client", emulator: Emulator) -> None:
    emulator.steer(template_lag_seconds=0.3)
    plain.create_launch_template(LaunchTemplateName="young", LaunchTemplateData={"ImageId": IMAGE})

    def is_found() -> bool:
        try:
            return bool(plain.describe_launch_templates(LaunchTemplateNames=["young"])["LaunchTemplates"])
        except ClientError:
            return False

    eventually(is_found)


def test_the_address_comes_later(launch: Launch, fleet: Ec2Fleet, emulator: Emulator) -> None:
    emulator.steer(address="127.0.0.1", address_lag_seconds=0.5)
    machine = launch()
    assert machine.address is None
    eventually(lambda: fleet.describe([machine.id])[machine.id].address == "127.0.0.1")


def test_an_end_is_described_after_its_lag(launch: Launch, fleet: Ec2Fleet, emulator: Emulator) -> None:
    emulator.steer(terminate_lag_seconds=60)
    machine = launch()
    fleet.terminate([machine.id])
    assert fleet.describe([machine.id])[machine.id].state == "running"
    assert [found.id for found in fleet.sweep()] == [machine.id]
    # A repeat changes nothing; the control API shows the real state.
    fleet.terminate([machine.id])
    assert emulator.instances()[0]["state"] == "terminated"
    [life] = emulator.history()
    assert life["launched_at"] <= life["end_asked_at"] == life["terminated_at"] <= time.time()


def test_the_history_keeps_what_is_forgotten_until_a_reset(launch: Launch, fleet: Ec2Fleet, emulator: Emulator) -> None:
    emulator.steer(forget_seconds=0, terminate_seconds=0.2)
    machine = launch()
    fleet.terminate([machine.id])
    eventually(lambda: emulator.instances() == [])
    [life] = emulator.history()
    assert (life["id"], life["cause"], life["market"], life["type"]) == (machine.id, "call", "spot", "c5.large")
    assert life["terminated_at"] == pytest.approx(life["end_asked_at"] + 0.2)
    emulator.ask("POST", "reset")
    assert emulator.history() == []
