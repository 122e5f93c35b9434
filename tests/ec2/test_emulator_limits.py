"""Limits over HTTP: throttling, quota, partial launches, dry runs, and errors before the call is carried out."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, get_args

import boto3
import pytest
from botocore.exceptions import ClientError
from leasehold_emulator.settings import QuotaClass

from scheduler.model.quota_classes import CLASS_OF_FAMILY, OTHER
from scheduler.ports import CloudError
from tests.ec2.conftest import IMAGE, REGION, Emulator, Launch
from workers.ec2.fleet import Ec2Fleet

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client


def run(client: "EC2Client", least: int = 1, most: int = 1, kind: str = "c5.large", **changes: Any) -> int:
    """Return how many instances RunInstances gives, by default on demand."""
    answer = client.run_instances(ImageId=IMAGE, InstanceType=kind, MinCount=least, MaxCount=most, **changes)  # type: ignore[arg-type]
    return len(answer["Instances"])


def a_fleet(client: "EC2Client", wanted: int, market: str = "spot", *kinds: str) -> dict[str, Any]:
    """Return the answer to a CreateFleet of type instant with these instance types."""
    template = client.create_launch_template(
        LaunchTemplateName=f"template-{len(client.describe_launch_templates()['LaunchTemplates'])}",
        LaunchTemplateData={"ImageId": IMAGE, "InstanceType": "c5.large"},
    )["LaunchTemplate"]["LaunchTemplateId"]
    return client.create_fleet(  # type: ignore[return-value]
        Type="instant",
        TargetCapacitySpecification={"TotalTargetCapacity": wanted, "DefaultTargetCapacityType": market},  # type: ignore[typeddict-item]
        LaunchTemplateConfigs=[
            {
                "LaunchTemplateSpecification": {"LaunchTemplateId": template, "Version": "1"},
                "Overrides": [{"InstanceType": kind} for kind in kinds or ("c5.large",)],  # type: ignore[typeddict-item]
            }
        ],
    )


def code_of(error: pytest.ExceptionInfo[ClientError]) -> tuple[str, int]:
    answer = error.value.response
    return answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"]


SPOT: dict[str, Any] = {"InstanceMarketOptions": {"MarketType": "spot"}}


def test_a_call_without_tokens_is_refused_with_503(plain: "EC2Client", emulator: Emulator) -> None:
    emulator.steer(throttling={"launch": {"size": 2, "refill": 0}})
    assert [run(plain), run(plain)] == [1, 1]
    with pytest.raises(ClientError) as caught:
        run(plain)
    assert code_of(caught) == ("RequestLimitExceeded", 503)
    assert emulator.calls()[-1]["faults"] == ["throttled"]
    assert len(emulator.instances()) == 2
    plain.describe_instances()
    emulator.steer(throttling=None)
    assert run(plain) == 1


def test_instances_are_throttled_too(plain: "EC2Client", emulator: Emulator) -> None:
    emulator.steer(throttling={"launched_instances": {"size": 3, "refill": 0}})
    assert run(plain, 2, 2) == 2
    with pytest.raises(ClientError, match="RequestLimitExceeded"):
        run(plain, 2, 2)
    assert run(plain) == 1


def test_throttling_is_an_error_of_its_own_to_the_fleet(launch: Launch, emulator: Emulator) -> None:
    emulator.steer(throttling={"launch": {"size": 1, "refill": 0}})
    launch(1)
    with pytest.raises(CloudError) as caught:
        launch(2)
    assert caught.value.category == "throttled"


@pytest.mark.parametrize(
    ("quota", "market", "kind", "code"),
    [
        ("on_demand_machines", {}, "c5.large", "InstanceLimitExceeded"),
        # A c5.large has two vCPUs, a c5.xlarge four.
        ("on_demand_vcpus", {}, "c5.large", "VcpuLimitExceeded"),
        ("spot_machines", SPOT, "c5.large", "MaxSpotInstanceCountExceeded"),
        ("spot_vcpus", SPOT, "c5.xlarge", "MaxSpotInstanceCountExceeded"),
    ],
)
def test_quota_counts_what_is_there_for_each_market(
    quota: str, market: dict[str, Any], kind: str, code: str, plain: "EC2Client", emulator: Emulator
) -> None:
    vcpus = {"c5.large": 2, "c5.xlarge": 4}[kind]
    emulator.steer(quota={quota: 2 * vcpus + 1 if quota.endswith("vcpus") else 2})
    assert run(plain, kind=kind, **market) == 1
    # A second instance in the market, and one in the other market, which has no limit.
    assert run(plain, kind=kind, **market) == run(plain, kind=kind, **({} if market else SPOT)) == 1
    with pytest.raises(ClientError) as caught:
        run(plain, kind=kind, **market)
    assert code_of(caught) == (code, 400)
    assert emulator.calls()[-1]["faults"] == [f"quota:{code}"]
    first = emulator.calls()[0]["instances"]
    plain.terminate_instances(InstanceIds=first)
    assert run(plain, kind=kind, **market) == 1


def a_class(name: str, market: str, vcpus: int) -> dict[str, object]:
    return {"name": name, "market": market, "vcpus": vcpus}


def test_a_class_of_types_has_a_quota_of_vcpus_in_each_market(plain: "EC2Client", emulator: Emulator) -> None:
    emulator.steer(quota={"classes": [a_class("standard", "on-demand", 7), a_class("g", "spot", 8)]})
    # A c5.large and an m5.large have two vCPUs each, an r5.xlarge and a g5.xlarge four.
    assert [run(plain, kind=kind) for kind in ("c5.large", "m5.large")] == [1, 1]
    with pytest.raises(ClientError) as caught:
        run(plain, kind="r5.xlarge")
    assert code_of(caught) == ("VcpuLimitExceeded", 400)
    assert caught.value.response["Error"]["Message"] == (
        "You have requested more vCPU capacity than your current vCPU limit of 7 allows for the instance bucket that "
        "the specified instance type belongs to. Please visit http://aws.amazon.com/contact-us/ec2-request to request "
        "an adjustment to this limit."
    )
    assert run(plain, 1, 5, kind="t3.large") == 1
    # The other market, and a class without a quota.
    assert run(plain, 5, 5, kind="c5.large", **SPOT) == run(plain, 5, 5, kind="p3.2xlarge") == 5
    assert run(plain, 1, 3, kind="g5.xlarge", **SPOT) == 2
    with pytest.raises(ClientError, match="MaxSpotInstanceCountExceeded"):
        run(plain, kind="vt1.3xlarge", **SPOT)


def test_machines_that_end_or_stop_give_their_vcpus_back(plain: "EC2Client", emulator: Emulator) -> None:
    emulator.steer(quota={"classes": [a_class("standard", "on-demand", 4)]})
    assert run(plain, 2, 2) == 2
    first, second = (life["id"] for life in emulator.history())
    plain.terminate_instances(InstanceIds=[first])
    plain.stop_instances(InstanceIds=[second])
    assert run(plain, 1, 9) == 2
    with pytest.raises(ClientError, match="VcpuLimitExceeded"):
        plain.start_instances(InstanceIds=[second])


def test_the_settings_have_all_quota_classes() -> None:
    assert set(get_args(QuotaClass)) == {*CLASS_OF_FAMILY.values(), OTHER}


def test_an_instance_that_shuts_down_still_counts(plain: "EC2Client", emulator: Emulator) -> None:
    emulator.steer(quota={"on_demand_machines": 1}, terminate_seconds=60)
    run(plain)
    plain.terminate_instances(InstanceIds=emulator.calls()[0]["instances"])
    with pytest.raises(ClientError, match="InstanceLimitExceeded"):
        run(plain)


def test_run_instances_gives_between_its_counts_or_nothing(plain: "EC2Client", emulator: Emulator) -> None:
    assert run(plain, 1, 3) == 3
    emulator.steer(quota={"on_demand_machines": 5})
    assert run(plain, 1, 3) == 2
    emulator.steer(quota={"on_demand_machines": 7})
    with pytest.raises(ClientError, match="InstanceLimitExceeded"):
        run(plain, 3, 4)
    emulator.set_fault(deliver=1, count=1)
    assert run(plain, 1, 2) == 1
    emulator.set_fault(deliver=1, count=1)
    with pytest.raises(ClientError, match="InsufficientInstanceCapacity"):
        run(plain, 2, 2, **SPOT)
    assert len(emulator.instances()) == 6


@pytest.mark.parametrize(
    ("rule", "given", "errors"),
    [
        ({"deliver": 2}, 2, []),
        ({"deliver": 2, "code": "UnfulfillableCapacity"}, 2, ["UnfulfillableCapacity"]),
        ({"deliver": 0}, 0, []),
        ({"deliver": 9, "code": "UnfulfillableCapacity"}, 3, []),
        # The remaining place gets all instances; the error of the other one is in the answer too.
        ({"code": "InsufficientInstanceCapacity", "type": "c5.xlarge"}, 3, ["InsufficientInstanceCapacity"]),
    ],
)
def test_a_fleet_may_get_instances_and_errors_at_once(
    rule: dict[str, object], given: int, errors: list[str], plain: "EC2Client", emulator: Emulator
) -> None:
    emulator.set_fault(**rule)
    answer = a_fleet(plain, 3, "spot", "c5.xlarge", "c5.large")
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 200
    assert sum(len(each["InstanceIds"]) for each in answer.get("Instances", ())) == given
    assert [error["ErrorCode"] for error in answer.get("Errors", ())] == errors
    assert len(emulator.instances()) == given
    assert len(emulator.calls("CreateFleet")[0]["instances"]) == given


def test_a_fleet_gets_what_its_quota_leaves(plain: "EC2Client", emulator: Emulator) -> None:
    emulator.steer(quota={"spot_machines": 2})
    answer = a_fleet(plain, 3)
    assert sum(len(each["InstanceIds"]) for each in answer["Instances"]) == 2
    assert [error["ErrorCode"] for error in answer["Errors"]] == ["MaxSpotInstanceCountExceeded"]
    answer = a_fleet(plain, 1)
    assert answer.get("Instances", []) == []
    assert [error["ErrorCode"] for error in answer["Errors"]] == ["MaxSpotInstanceCountExceeded"]


def test_a_fleet_that_is_short_is_a_capacity_error_to_the_fleet(launch: Launch, emulator: Emulator) -> None:
    emulator.set_fault(deliver=0)
    with pytest.raises(CloudError) as caught:
        launch()
    assert caught.value.category == "capacity"


@pytest.mark.parametrize(
    ("code", "status"),
    [("InternalError", 500), ("Unavailable", 503), ("ServiceUnavailable", 503), ("UnauthorizedOperation", 403)],
)
def test_errors_come_before_anything_is_done(code: str, status: int, plain: "EC2Client", emulator: Emulator) -> None:
    emulator.set_fault(code=code, action="any")
    with pytest.raises(ClientError) as caught:
        run(plain)
    assert code_of(caught) == (code, status)
    assert emulator.instances() == []
    assert [(call["lost"], call["faults"]) for call in emulator.calls()] == [(False, [f"error:{code}"])]


def test_a_dry_run_reports_the_result_and_does_nothing(
    plain: "EC2Client", launch: Launch, fleet: Ec2Fleet, emulator: Emulator
) -> None:
    machine = launch()
    calls: list[Callable[[], object]] = [
        lambda: run(plain, DryRun=True),
        lambda: plain.terminate_instances(InstanceIds=[machine.id], DryRun=True),
        lambda: plain.describe_instances(DryRun=True),
        lambda: plain.describe_instance_status(DryRun=True),
    ]
    for call in calls:
        with pytest.raises(ClientError) as caught:
            call()
        assert code_of(caught) == ("DryRunOperation", 412)
    assert [instance["state"] for instance in emulator.instances()] == ["running"]
    emulator.set_fault(code="UnauthorizedOperation", action="any")
    for call in calls:
        with pytest.raises(ClientError) as caught:
            call()
        assert code_of(caught) == ("UnauthorizedOperation", 403)


def test_a_dry_run_does_not_use_its_token_up(plain: "EC2Client", emulator: Emulator) -> None:
    with pytest.raises(ClientError, match="DryRunOperation"):
        run(plain, ClientToken="token", DryRun=True)
    assert run(plain, ClientToken="token") == 1


def test_the_identity_of_the_caller_is_reported(emulator: Emulator) -> None:
    sts = boto3.session.Session("testing", "testing", region_name=REGION).client("sts", endpoint_url=emulator.url)
    assert sts.get_caller_identity()["Account"] == "123456789012"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"throttling": {"launch": {"size": 0, "refill": 1}}}, "throttling.launch.size: expected a whole number >= 1"),
        ({"throttling": {"launch": {"size": 1}}}, "throttling.launch.refill: expected a value"),
        ({"throttling": {"lunch": {}}}, 'throttling.lunch: expected a known key (did you mean "launch"'),
        ({"quota": {"classes": [a_class("gpu", "spot", 0)]}}, "quota.classes[0].name: expected one of standard, g, p"),
        ({"quota": {"spot_machines": -1}}, "quota.spot_machines: expected a whole number >= 0"),
        ({"boot_failures": [{"kind": "late"}]}, "boot_failures[0].kind: expected one of stuck"),
        ({"boot_failures": [{"kind": "stuck", "share": 2}]}, "boot_failures[0].share: expected a number from 0 to 1"),
        ({"dropped_notices": -0.1}, "dropped_notices: expected a number from 0 to 1"),
        ({"describe_lag_seconds": "soon"}, "describe_lag_seconds: expected a duration"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(settings: dict[str, object], message: str, emulator: Emulator) -> None:
    before = emulator.ask("GET", "state")
    status, answer = emulator.ask("PUT", "settings", settings)
    assert status == 400
    assert message in answer["error"]
    assert "\n" not in answer["error"]
    assert emulator.ask("GET", "state") == before
