"""Machines with the tags of the cluster and without a slot, handled by real workers; checked in EC2's call log."""

from typing import TYPE_CHECKING, Any

import pytest

from scheduler.ports import EventFilter
from testbed.processes import wait_for
from testbed.stack import IMAGE, Stack
from workers.ec2.clients import Ec2Access, make_client

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import TagTypeDef

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def ec2(stack: Stack) -> "EC2Client":
    aws = stack.settings.aws
    return make_client(
        Ec2Access(
            region=aws.region, endpoint_url=aws.endpoint_url, access_key_id="testing", secret_access_key="testing"
        )
    )


def run(ec2: "EC2Client", stack: Stack, slot: str) -> str:
    """Launch a machine with the tags of the cluster but without Leasehold; return its id."""
    tags = {"cluster": stack.settings.aws.cluster, "pool": "linux", "slot": slot, "launch": f"unknown-{slot}"}
    pairs: list[TagTypeDef] = [{"Key": f"leasehold:{name}", "Value": value} for name, value in tags.items()]
    answer = ec2.run_instances(
        ImageId=IMAGE, MinCount=1, MaxCount=1, TagSpecifications=[{"ResourceType": "instance", "Tags": pairs}]
    )
    return answer["Instances"][0]["InstanceId"]


def test_a_machine_that_names_an_empty_slot_is_adopted_and_becomes_ready(stack: Stack, ec2: "EC2Client") -> None:
    stack.await_empty()
    machine = run(ec2, stack, "linux-3")
    wait_for(lambda: "slot_adopted" in events_of(stack, "linux-3"), "the adoption", 60)
    # No reservation needs the machine, so it becomes ready, is idle and is terminated like any other.
    wait_for(lambda: state_of(stack, machine) == "terminated", "the end of the machine", 60)
    assert events_of(stack, "linux-3")[:4] == ["slot_adopted", "slot_binding", "slot_ready", "slot_draining"]
    assert terminations(stack, machine) != []
    stack.await_empty()


def test_a_machine_that_no_slot_can_adopt_is_counted_and_terminated_when_it_is_old(
    stack: Stack, ec2: "EC2Client"
) -> None:
    machine = run(ec2, stack, "linux-99")
    wait_for(lambda: is_counted(stack), "the count", 60)
    assert terminations(stack, machine) == [], "the machine is too young"
    wait_for(lambda: state_of(stack, machine) == "terminated", "the end of the machine", 60)
    assert terminations(stack, machine) != []
    wait_for(lambda: not is_counted(stack), "the end of the count", 60)
    (event,) = stack.services.ports.store.read_events(EventFilter(name="machine_orphaned", newest=True, limit=1))
    assert event.detail["instance"] == machine


def is_counted(stack: Stack) -> bool:
    return any(row.id == "linux/strangers/" for row in stack.services.ports.store.read_rows())


def state_of(stack: Stack, machine: str) -> str:
    return next(str(each["state"]) for each in stack.instances() if each["id"] == machine)


def terminations(stack: Stack, machine: str) -> list[Any]:
    """Return the TerminateInstances calls for this machine from EC2's call log."""
    return [each for each in stack.calls("TerminateInstances") if machine in each["instances"]]


def events_of(stack: Stack, slot: str) -> list[str]:
    """Return the events of the slot since its last launch or adoption."""
    names = [event.name for event in stack.services.ports.store.read_events(EventFilter(slot=slot))]
    begin = max((at for at, name in enumerate(names) if name in {"slot_launching", "slot_adopted"}), default=0)
    return names[begin:]
