"""Batches over HTTP against the emulator: one call launches the machines of many slots."""

import base64
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from scheduler.model.rules import Rules
from scheduler.model.slots import Machine
from scheduler.ports import CloudError, LaunchAnswer, LaunchOrder
from scheduler.ports.fleet import JOIN_TOKEN
from scheduler.protocol.join_tokens import make_join_token
from tests.ec2.conftest import IMAGE, Emulator, some_rules
from workers.ec2.fleet import Ec2Fleet, make_template, read_answer
from workers.ec2.requests import freeze_request

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

TYPES = ("c5.large", "m5.large")
OTHER_IMAGE = "ami-0abcdef1234567890"


def a_batch(count: int, *offerings: str) -> LaunchOrder:
    return LaunchOrder(batch="b1", pool="linux", count=count, offerings=offerings, cluster_id="c1", highest="3.40")


@pytest.fixture
def rules(client: "EC2Client") -> Rules:
    """A pool with a launch template, two subnets and two offerings."""
    client.create_launch_template(LaunchTemplateName="builders", LaunchTemplateData={"ImageId": IMAGE})
    found = client.describe_subnets()["Subnets"]
    subnets = [subnet["SubnetId"] for subnet in sorted(found, key=lambda each: each["AvailabilityZone"])[:2]]
    template = {"launch_template": "builders", "launch_template_version": 1, "subnets": subnets}
    return some_rules(template, offerings=[{"name": name} for name in TYPES])


def launch(fleet: Ec2Fleet, rules: Rules, count: int, *offerings: str) -> LaunchAnswer:
    """Send the request of a batch."""
    return fleet.launch(fleet.freeze(a_batch(count, *offerings), rules))


def test_one_fleet_launches_a_batch_over_all_offerings_and_subnets(
    fleet: Ec2Fleet, rules: Rules, emulator: Emulator
) -> None:
    request = fleet.freeze(a_batch(5, *TYPES), rules)
    (config,) = request["parameters"]["LaunchTemplateConfigs"]
    places = [(override["InstanceType"], override["SubnetId"]) for override in config["Overrides"]]
    assert places == [(kind, subnet) for kind in TYPES for subnet in rules.pools["linux"].ec2.subnets]
    answer = fleet.launch(request)
    assert len({machine.id for machine in answer.machines}) == 5
    assert answer.refusals == ()
    assert {machine.offering for machine in answer.machines} == {"c5.large"}
    assert [call["status"] for call in emulator.calls("CreateFleet")] == [200]
    (machine, *_) = fleet.sweep()
    assert (machine.slot, machine.launch_id, machine.batch) == (None, None, "b1")
    assert (machine.pool, machine.cluster_id, machine.highest_token) == ("linux", "c1", 40)


def test_all_machines_of_a_batch_get_the_token_and_the_same_request_again_launches_none(
    fleet: Ec2Fleet, client: "EC2Client"
) -> None:
    token = make_join_token(b"k" * 32, "c1", "b1")
    rules = some_rules(agent=True, offerings=[{"name": name} for name in TYPES])
    request = {**fleet.freeze(a_batch(3, *TYPES), rules), JOIN_TOKEN: token}
    machines = {machine.id for machine in fleet.launch(request).machines}
    assert len(machines) == 3
    for machine in machines:
        found = client.describe_instance_attribute(InstanceId=machine, Attribute="userData")["UserData"]["Value"]
        assert f'LEASEHOLD_JOIN_TOKEN="{token}"' in base64.b64decode(found).decode()
    assert {machine.id for machine in fleet.launch(request).machines} == machines


def test_the_same_request_of_a_batch_gives_the_same_machines(fleet: Ec2Fleet, rules: Rules, emulator: Emulator) -> None:
    request = fleet.freeze(a_batch(3, *TYPES), rules)
    assert fleet.launch(request) == fleet.launch(request)
    assert len(emulator.instances()) == 3
    assert [call["replayed"] for call in emulator.calls("CreateFleet")] == [False, True]


def test_a_pool_with_an_image_gets_a_launch_template_once(
    fleet: Ec2Fleet, emulator: Emulator, client: "EC2Client"
) -> None:
    """Two batches of the same pool need one template; another image needs another one."""
    emulator.set_fault(code="InsufficientInstanceCapacity", type="c5.large")
    for batch, image in (("b1", IMAGE), ("b2", IMAGE), ("b3", OTHER_IMAGE)):
        rules = some_rules({"image": image, "volume_gib": 30}, offerings=[{"name": name} for name in TYPES])
        request = fleet.freeze(msgspec.structs.replace(a_batch(4, *TYPES), batch=batch), rules)
        answer = fleet.launch(request)
        assert [machine.offering for machine in answer.machines] == ["m5.large"] * 4
    assert len(emulator.calls("CreateLaunchTemplate")) == 2
    templates = client.describe_launch_templates()["LaunchTemplates"]
    names = [each["LaunchTemplateName"] for each in templates if each["LaunchTemplateName"].startswith("leasehold-")]
    contents = [
        client.describe_launch_template_versions(LaunchTemplateName=name)["LaunchTemplateVersions"][0] for name in names
    ]
    assert {each["LaunchTemplateData"]["ImageId"] for each in contents} == {IMAGE, OTHER_IMAGE}
    assert {each["LaunchTemplateData"]["InstanceInitiatedShutdownBehavior"] for each in contents} == {"terminate"}


def test_a_template_that_another_process_makes_at_the_same_time_is_used(
    emulator: Emulator, client: "EC2Client"
) -> None:
    rules = some_rules({"image": IMAGE, "key_name": "k"}, offerings=[{"name": name} for name in TYPES])
    request = freeze_request(a_batch(1, *TYPES), rules, "blue", "us-east-1")
    make_template(client, request["template"])
    make_template(client, request["template"])
    assert [call["status"] for call in emulator.calls("CreateLaunchTemplate")] == [200, 400]


def test_a_pool_with_an_image_and_without_offerings_is_launched_in_bulk_without_a_fleet(
    fleet: Ec2Fleet, emulator: Emulator
) -> None:
    """EC2 chooses the instance type, which only RunInstances permits."""
    rules = some_rules({"image": IMAGE}, offerings=[])
    answer = launch(fleet, rules, 4)
    assert [machine.offering for machine in answer.machines] == [None] * 4
    assert [call["status"] for call in emulator.calls("RunInstances")] == [200]
    emulator.steer(quota={"spot_machines": 6})
    answer = fleet.launch(fleet.freeze(msgspec.structs.replace(a_batch(4), batch="b2"), rules))
    assert (len(answer.machines), [each.category for each in answer.refusals]) == (2, ["capacity"])


def test_a_pool_without_an_image_or_a_template_is_refused() -> None:
    rules = some_rules({}, offerings=[{"name": name} for name in TYPES])
    with pytest.raises(CloudError, match=r"config\.pools\.linux\.ec2\.image"):
        freeze_request(a_batch(1, *TYPES), rules, "blue", "us-east-1")


def test_a_partial_answer_names_the_refused_offering(fleet: Ec2Fleet, rules: Rules, emulator: Emulator) -> None:
    """The first offering is short of capacity everywhere, so the second one serves the batch."""
    emulator.set_fault(code="InsufficientInstanceCapacity", type="c5.large")
    answer = launch(fleet, rules, 2, *TYPES)
    assert [machine.offering for machine in answer.machines] == ["m5.large"] * 2
    assert [(each.offering, each.category) for each in answer.refusals] == [("c5.large", "capacity")]


def test_fewer_machines_than_requested_are_kept(fleet: Ec2Fleet, rules: Rules, emulator: Emulator) -> None:
    emulator.set_fault(deliver=2, code="InsufficientInstanceCapacity")
    answer = launch(fleet, rules, 5, *TYPES)
    assert len(answer.machines) == 2
    assert {each.category for each in answer.refusals} == {"capacity"}


def test_a_fleet_without_machines_refuses_all_offerings(fleet: Ec2Fleet, rules: Rules, emulator: Emulator) -> None:
    emulator.steer(quota={"spot_machines": 0})
    answer = launch(fleet, rules, 5, *TYPES)
    assert answer.machines == ()
    assert {(each.offering, each.category) for each in answer.refusals} == {(name, "quota") for name in TYPES}


def test_a_refused_batch_is_a_cloud_error(fleet: Ec2Fleet, rules: Rules, emulator: Emulator) -> None:
    emulator.set_fault(code="UnauthorizedOperation")
    with pytest.raises(CloudError) as caught:
        launch(fleet, rules, 2, *TYPES)
    assert caught.value.category == "auth"


def test_an_offering_that_failed_in_one_of_its_places_only_is_refused_if_machines_are_missing() -> None:
    places = {"a": [{"InstanceType": "t", "SubnetId": "s1"}, {"InstanceType": "t", "SubnetId": "s2"}]}
    request = {
        "parameters": {"TargetCapacitySpecification": {"TotalTargetCapacity": 2}, "TagSpecifications": [{"Tags": []}]},
        "offerings": places,
    }
    override = {"LaunchTemplateAndOverrides": {"Overrides": {"InstanceType": "t", "SubnetId": "s1"}}}
    answer: dict[str, Any] = {
        "Instances": [{**override, "InstanceType": "t", "InstanceIds": ["i-1", "i-2"], "Lifecycle": "spot"}],
        "Errors": [{**override, "ErrorCode": "InsufficientInstanceCapacity"}],
    }
    assert read_answer(answer, request).refusals == ()
    answer["Instances"][0]["InstanceIds"] = ["i-1"]
    assert [each.offering for each in read_answer(answer, request).refusals] == ["a"]


def test_user_data_with_the_offering_leaves_ec2_no_choice(fleet: Ec2Fleet, rules: Rules) -> None:
    pool = rules.pools["linux"]
    ec2 = pool.ec2.model_copy(update={"user_data": "echo ${offering}"})
    named = rules.model_copy(update={"pools": {"linux": pool.model_copy(update={"ec2": ec2})}})
    request = fleet.freeze(a_batch(2, *TYPES), named)
    assert request["offerings"].keys() == {"c5.large"}


def test_hundreds_of_machines_need_few_calls(fleet: Ec2Fleet, rules: Rules, emulator: Emulator) -> None:
    """Two calls launch them, one for each hundred and two more describe them, and few end them."""
    machines: list[Machine] = []
    for number in range(2):
        order = LaunchOrder(batch=f"b{number}", pool="linux", count=150, offerings=TYPES)
        machines += fleet.launch(fleet.freeze(order, rules)).machines
    ids = [machine.id for machine in machines]
    assert len(set(ids)) == 300
    assert len(fleet.describe(ids)) == 300
    fleet.terminate(ids)
    assert len(emulator.calls("CreateFleet")) == 2
    assert len(emulator.calls("TerminateInstances")) <= 3
    looks = emulator.calls("DescribeInstances") + emulator.calls("DescribeInstanceStatus")
    assert len(looks) <= 300 / 100 + 2


def test_an_unknown_machine_does_not_stop_the_end_of_the_others(
    fleet: Ec2Fleet, rules: Rules, emulator: Emulator
) -> None:
    ids = [machine.id for machine in launch(fleet, rules, 15, *TYPES).machines]
    fleet.terminate([*ids[:7], "i-0123456789abcdef0", *ids[7:]])
    assert {each["state"] for each in emulator.instances()} <= {"shutting-down", "terminated"}
    assert len(emulator.calls("TerminateInstances")) <= 9


GANG_OPTIONS = [
    ("one type", {}, TYPES[:1], {"SingleInstanceType": True}),
    (
        "one type, one subnet",
        {"subnets": ["subnet-1"]},
        TYPES[:1],
        {"SingleInstanceType": True, "SingleAvailabilityZone": True},
    ),
    ("one subnet", {"subnets": ["subnet-1"]}, TYPES, {"SingleAvailabilityZone": True}),
    ("the pool asks for one zone", {"single_zone": True}, TYPES, {"SingleAvailabilityZone": True}),
    ("many types and zones", {"subnets": ["subnet-1", "subnet-2"]}, TYPES, {}),
    ("many types in any zone", {}, TYPES, {}),
]


@pytest.mark.parametrize("market", ["spot", "on-demand"])
@pytest.mark.parametrize(
    ("keys", "types", "options"), [case[1:] for case in GANG_OPTIONS], ids=[case[0] for case in GANG_OPTIONS]
)
def test_a_fleet_launches_all_machines_of_a_gang_or_none_where_ec2_can(
    keys: dict[str, Any], types: tuple[str, ...], options: dict[str, bool], market: str
) -> None:
    """Source: EC2 permits `MinTargetCapacity` with a single instance type or a single zone."""
    offerings = [{"name": name, "market": market} for name in types]
    rules = some_rules({"image": IMAGE, **keys}, offerings=offerings)
    order = msgspec.structs.replace(a_batch(3, *types), is_gang=True)
    expected = {**options, "MinTargetCapacity": 3} if options else {}
    for each, wanted in ((order, expected), (a_batch(3, *types), {})):
        parameters = freeze_request(each, rules, "blue", "us-east-1")["parameters"]
        found = parameters.get("SpotOptions" if market == "spot" else "OnDemandOptions", {})
        assert {name: value for name, value in found.items() if name in GANG_KEYS} == wanted


GANG_KEYS = ("MinTargetCapacity", "SingleInstanceType", "SingleAvailabilityZone")


def test_a_gang_without_offerings_is_launched_whole_or_refused(fleet: Ec2Fleet, emulator: Emulator) -> None:
    emulator.steer(quota={"spot_machines": 5})
    rules = some_rules({"image": IMAGE}, offerings=[])
    for count, launched in ((6, 0), (5, 5)):
        order = msgspec.structs.replace(a_batch(count), batch=f"b{count}", is_gang=True)
        request = fleet.freeze(order, rules)
        if launched:
            assert len(fleet.launch(request).machines) == launched
        else:
            with pytest.raises(CloudError):
                fleet.launch(request)
        assert len(emulator.instances()) == launched
