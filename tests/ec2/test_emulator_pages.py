"""Pages of emulated instances, and what they show after a change."""

from typing import TYPE_CHECKING, Any

import pytest
from leasehold_emulator.instance_pages import InstancePages

from tests.ec2.conftest import Emulator
from tests.ec2.test_emulator import eventually

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

COUNT = 7
PAGE: Any = {"PageSize": 5}


@pytest.fixture
def machines(client: "EC2Client", emulator: Emulator) -> list[str]:
    """The ids of instances that one call has launched, and that run."""
    emulator.steer(boot_seconds=0)
    tags: Any = [{"ResourceType": "instance", "Tags": [{"Key": "team", "Value": "red"}]}]
    answer = client.run_instances(
        ImageId="ami-12345678", InstanceType="m5.large", MinCount=COUNT, MaxCount=COUNT, TagSpecifications=tags
    )
    return [each["InstanceId"] for each in answer["Instances"]]


def describe(client: "EC2Client", machine: str) -> dict[str, Any]:
    [reservation] = client.describe_instances(InstanceIds=[machine])["Reservations"]
    return dict(reservation["Instances"][0])


def test_a_page_counts_instances_and_not_launches(client: "EC2Client", machines: list[str]) -> None:
    pages = list(client.get_paginator("describe_instances").paginate(PaginationConfig=PAGE))
    found = [[each["InstanceId"] for launch in page["Reservations"] for each in launch["Instances"]] for page in pages]
    assert found == [machines[:5], machines[5:]]


def test_a_page_has_only_what_the_filters_choose(client: "EC2Client", machines: list[str]) -> None:
    chosen = machines[1:]
    client.create_tags(Resources=chosen, Tags=[{"Key": "team", "Value": "blue"}])
    client.terminate_instances(InstanceIds=[machines[-1]])
    filters: Any = [
        {"Name": "tag:team", "Values": ["blue", "green"]},
        {"Name": "instance-state-name", "Values": ["pending", "running"]},
    ]
    pages = list(client.get_paginator("describe_instances").paginate(Filters=filters, PaginationConfig=PAGE))
    found = [[each["InstanceId"] for launch in page["Reservations"] for each in launch["Instances"]] for page in pages]
    assert found == [chosen[:5]]


def test_a_page_of_status_checks_counts_running_instances(client: "EC2Client", machines: list[str]) -> None:
    client.terminate_instances(InstanceIds=machines[:1])
    pages = client.get_paginator("describe_instance_status").paginate(PaginationConfig=PAGE)
    found = [[each["InstanceId"] for each in page["InstanceStatuses"]] for page in pages]
    assert found == [machines[1:6], [machines[6]]]


@pytest.mark.usefixtures("emulator")
def test_without_instances_both_calls_have_one_empty_page(client: "EC2Client") -> None:
    assert client.describe_instances(MaxResults=5)["Reservations"] == []
    assert client.describe_instance_status(MaxResults=5)["InstanceStatuses"] == []


CHANGES: dict[str, tuple[str, dict[str, Any], str, Any]] = {
    "tags": ("create_tags", {"Tags": [{"Key": "team", "Value": "blue"}]}, "Tags", [{"Key": "team", "Value": "blue"}]),
    "source check": ("modify_instance_attribute", {"SourceDestCheck": {"Value": False}}, "SourceDestCheck", False),
    "stop": ("stop_instances", {}, "State", {"Code": 80, "Name": "stopped"}),
    "end": ("terminate_instances", {}, "State", {"Code": 48, "Name": "terminated"}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_shown_though_the_instance_was_written_before(
    client: "EC2Client", machines: list[str], emulator: Emulator, change: str
) -> None:
    emulator.steer(stop_seconds=0, terminate_seconds=0)
    action, arguments, field, wanted = CHANGES[change]
    assert describe(client, machines[0])[field] != wanted
    by: dict[str, dict[str, Any]] = {
        "create_tags": {"Resources": machines[:1]},
        "modify_instance_attribute": {"InstanceId": machines[0]},
    }
    getattr(client, action)(**by.get(action, {"InstanceIds": machines[:1]}), **arguments)
    eventually(lambda: describe(client, machines[0])[field] == wanted)
    assert describe(client, machines[1])[field] != wanted


def test_an_instance_is_written_as_moto_writes_it(
    client: "EC2Client", machines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = client.describe_instances(InstanceIds=machines[:1])["Reservations"]
    monkeypatch.setattr(InstancePages, "answer", lambda _, call, forward: forward(call))
    theirs = client.describe_instances(InstanceIds=machines[:1])["Reservations"]
    assert [each["Instances"] for each in ours] == [each["Instances"] for each in theirs]
