"""Termination and stop protection over HTTP: which machines of a call end, and what EC2 answers."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

from tests.ec2.conftest import Emulator
from tests.ec2.test_emulator_limits import code_of, run

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

A, B, C = "us-east-1a", "us-east-1b", "us-east-1c"


def start_in(client: "EC2Client", emulator: Emulator, *zones: str) -> list[str]:
    """Launch a machine in each of these zones, and return their ids."""
    for zone in zones:
        run(client, Placement={"AvailabilityZone": zone})
    return [life["id"] for life in emulator.history()][-len(zones) :]


def protect(client: "EC2Client", machine: str, attribute: str = "DisableApiTermination", *, value: bool = True) -> None:
    change: dict[str, Any] = {attribute: {"Value": value}}
    client.modify_instance_attribute(InstanceId=machine, **change)


def states(emulator: Emulator) -> Mapping[str, str]:
    return {instance["id"]: instance["state"] for instance in emulator.instances()}


def refusal(caught: pytest.ExceptionInfo[ClientError]) -> str:
    assert code_of(caught) == ("OperationNotPermitted", 400)
    return str(caught.value.response["Error"]["Message"])


def test_a_protected_machine_keeps_those_of_its_zone_and_the_others_end(plain: "EC2Client", emulator: Emulator) -> None:
    first, beside, guarded, far, farther = start_in(plain, emulator, A, A, A, B, C)
    protect(plain, guarded)
    with pytest.raises(ClientError) as caught:
        plain.terminate_instances(InstanceIds=[first, far, guarded, beside, farther])
    assert refusal(caught) == (
        f"The instance '{guarded}' may not be terminated. "
        "Modify its 'disableApiTermination' instance attribute and try again."
    )
    assert states(emulator) == {
        first: "running",
        beside: "running",
        guarded: "running",
        far: "terminated",
        farther: "terminated",
    }
    assert emulator.calls("TerminateInstances")[-1]["faults"] == ["protected:OperationNotPermitted"]
    plain.terminate_instances(InstanceIds=[first, beside])
    protect(plain, guarded, value=False)
    plain.terminate_instances(InstanceIds=[guarded])
    assert set(states(emulator).values()) == {"terminated"}


def test_a_refusal_names_the_first_protected_machine_and_holds_the_zones_of_all(
    plain: "EC2Client", emulator: Emulator
) -> None:
    one, two, near_one, near_two, far = start_in(plain, emulator, A, B, A, B, C)
    protect(plain, one)
    protect(plain, two)
    with pytest.raises(ClientError, match=f"The instance '{two}' may not"):
        plain.terminate_instances(InstanceIds=[near_one, two, one, near_two, far])
    assert [name for name, state in states(emulator).items() if state == "terminated"] == [far]


def test_a_call_with_an_unknown_id_ends_none(plain: "EC2Client", emulator: Emulator) -> None:
    guarded, far = start_in(plain, emulator, A, B)
    protect(plain, guarded)
    with pytest.raises(ClientError, match=r"InvalidInstanceID\.NotFound"):
        plain.terminate_instances(InstanceIds=[far, guarded, "i-0123456789abcdef0"])
    assert set(states(emulator).values()) == {"running"}


def test_stop_protection_prevents_stops_and_ends(plain: "EC2Client", emulator: Emulator) -> None:
    guarded, beside, far = start_in(plain, emulator, A, A, B)
    protect(plain, guarded, "DisableApiStop")
    with pytest.raises(ClientError) as caught:
        plain.stop_instances(InstanceIds=[beside, guarded, far])
    assert refusal(caught) == (
        f"The instance '{guarded}' may not be stopped. Modify its 'disableApiStop' instance attribute and try again."
    )
    assert states(emulator) == {guarded: "running", beside: "running", far: "stopped"}
    with pytest.raises(ClientError) as caught:
        plain.terminate_instances(InstanceIds=[guarded, far])
    assert refusal(caught) == (
        f"The instance '{guarded}' may not be terminated. Modify its 'disableApiStop' instance attribute and try again."
    )
    assert states(emulator)[far] == "terminated"


def test_termination_protection_does_not_prevent_stops_and_ends_by_ec2(plain: "EC2Client", emulator: Emulator) -> None:
    [guarded] = start_in(plain, emulator, A)
    protect(plain, guarded)
    plain.stop_instances(InstanceIds=[guarded])
    emulator.order("lose", guarded)
    assert states(emulator) == {guarded: "terminated"}
    # A repeated call about a machine that has ended is no error.
    plain.terminate_instances(InstanceIds=[guarded])
