"""The fleet over HTTP against the emulator: its calls have the intended effect on EC2."""

import base64
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from scheduler.ports import MOST_MESSAGE, CloudError, Place
from tests.ec2.conftest import IMAGE, Emulator, Launch, an_order, launch_one, some_rules
from workers.ec2.clients import Ec2Access, make_client
from workers.ec2.fleet import Ec2Fleet, make_fleet, name_zones, read_machine

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

GONE = "i-0123456789abcdef0"


def refused(launch: Launch, **order: object) -> tuple[str, str]:
    with pytest.raises(CloudError) as caught:
        launch(**order)
    return caught.value.category, caught.value.code


def test_a_launch_returns_the_machine_with_its_tags(launch: Launch) -> None:
    machine = launch(3)
    assert machine.id.startswith("i-")
    assert (machine.slot, machine.pool, machine.launch_id) == ("linux-3", "linux", "launch-3")
    assert (machine.type, machine.market, machine.zone) == ("c5.large", "spot", "us-east-1a")
    assert machine.address
    assert machine.launched_at


def test_the_same_request_gives_the_same_machine(fleet: Ec2Fleet, emulator: Emulator) -> None:
    request = fleet.freeze(an_order(), some_rules())
    assert launch_one(fleet, request).id == launch_one(fleet, request).id
    assert len(emulator.instances()) == 1
    assert [(call["token"], call["replayed"]) for call in emulator.calls()] == [
        ("launch-1.1", False),
        ("launch-1.1", True),
    ]


def test_a_new_generation_gives_another_machine(launch: Launch) -> None:
    assert launch(1, generation=1).id != launch(1, generation=2).id


def test_a_token_with_other_parameters_is_refused(fleet: Ec2Fleet, emulator: Emulator) -> None:
    request = fleet.freeze(an_order(), some_rules())
    launch_one(fleet, request)
    changed = {**request, "parameters": {**request["parameters"], "InstanceType": "c5.xlarge"}}
    with pytest.raises(CloudError) as caught:
        launch_one(fleet, changed)
    assert (caught.value.category, caught.value.code) == ("token", "IdempotentParameterMismatch")
    assert len(emulator.instances()) == 1


def test_machine_and_volumes_are_tagged_and_locked_down(launch: Launch, client: "EC2Client") -> None:
    machine = launch(rules=some_rules({"image": IMAGE, "tags": {"team": "ci"}, "user_data": "at ${slot}"}))
    found = client.describe_instances(InstanceIds=[machine.id])["Reservations"][0]["Instances"][0]
    wanted = {
        "team": "ci",
        "leasehold:cluster": "blue",
        "leasehold:pool": "linux",
        "leasehold:slot": "linux-1",
        "leasehold:launch": "launch-1",
        "leasehold:offering": "c5.large",
    }
    assert {tag["Key"]: tag["Value"] for tag in found["Tags"]} == wanted
    assert found["MetadataOptions"]["HttpTokens"] == "required"
    assert found["MetadataOptions"]["HttpPutResponseHopLimit"] == 1
    volume = found["BlockDeviceMappings"][0]["Ebs"]["VolumeId"]
    tags = client.describe_volumes(VolumeIds=[volume])["Volumes"][0]["Tags"]
    assert {tag["Key"]: tag["Value"] for tag in tags} == wanted
    attribute = client.describe_instance_attribute(InstanceId=machine.id, Attribute="instanceInitiatedShutdownBehavior")
    assert attribute["InstanceInitiatedShutdownBehavior"]["Value"] == "terminate"


def test_user_data_arrives_encoded_once(launch: Launch, emulator: Emulator) -> None:
    launch(rules=some_rules({"image": IMAGE, "user_data": "at ${slot}"}))
    assert emulator.instances()[0]["user_data"] == "YXQgbGludXgtMQ=="


def test_a_launch_template_is_launched_by_a_fleet(launch: Launch, client: "EC2Client", fleet: Ec2Fleet) -> None:
    template = client.create_launch_template(
        LaunchTemplateName="builders", LaunchTemplateData={"ImageId": IMAGE, "InstanceType": "m5.large"}
    )["LaunchTemplate"]["LaunchTemplateId"]
    subnets = client.describe_subnets()["Subnets"]
    there = next(found["SubnetId"] for found in subnets if found["AvailabilityZone"] == "us-east-1b")
    rules = some_rules(
        {"launch_template": template, "launch_template_version": 1, "subnets": [there], "user_data": "x"}
    )
    machine = launch(rules=rules)
    assert (machine.slot, machine.pool, machine.launch_id) == ("linux-1", "linux", "launch-1")
    assert launch(rules=rules).id == machine.id
    described = fleet.describe([machine.id])[machine.id]
    assert (described.type, described.market, described.zone) == ("c5.large", "spot", "us-east-1b")
    assert (described.slot, described.launch_id) == ("linux-1", "launch-1")


def test_a_fleet_without_room_anywhere_is_a_capacity_error(
    launch: Launch, client: "EC2Client", emulator: Emulator
) -> None:
    client.create_launch_template(LaunchTemplateName="builders", LaunchTemplateData={"ImageId": IMAGE})
    rules = some_rules({"launch_template": "builders", "launch_template_version": 1})
    emulator.set_fault(code="InsufficientInstanceCapacity", type="c5.large")
    assert refused(launch, rules=rules) == ("capacity", "InsufficientInstanceCapacity")
    assert emulator.calls("CreateFleet")[0]["status"] == 200
    assert emulator.instances() == []


def test_a_fleet_goes_where_there_is_room(launch: Launch, client: "EC2Client", emulator: Emulator) -> None:
    client.create_launch_template(LaunchTemplateName="builders", LaunchTemplateData={"ImageId": IMAGE})
    subnets = {found["AvailabilityZone"]: found["SubnetId"] for found in client.describe_subnets()["Subnets"]}
    ec2 = {
        "launch_template": "builders",
        "launch_template_version": 1,
        "subnets": [subnets["us-east-1a"], subnets["us-east-1c"]],
    }
    emulator.set_fault(code="UnfulfillableCapacity", zone="us-east-1a")
    launch(rules=some_rules(ec2))
    assert [instance["zone"] for instance in emulator.instances()] == ["us-east-1c"]


@pytest.mark.parametrize(
    ("code", "status", "category"),
    [
        ("InsufficientInstanceCapacity", 400, "capacity"),
        ("VcpuLimitExceeded", None, "quota"),
        ("AuthFailure", None, "auth"),
        ("UnauthorizedOperation", None, "auth"),
        ("InvalidAMIID.NotFound", None, "misconfigured"),
        ("SomethingNew", None, "misconfigured"),
    ],
)
def test_a_refusal_launches_nothing(
    code: str, status: int | None, category: str, launch: Launch, emulator: Emulator
) -> None:
    emulator.set_fault(code=code, count=1, **({"status": status} if status else {}))
    assert refused(launch) == (category, code)
    assert emulator.instances() == []
    assert [(call["code"], call["instances"]) for call in emulator.calls()] == [(code, [])]
    assert launch().launch_id == "launch-1"


@pytest.mark.parametrize(("code", "category"), [("RequestLimitExceeded", "throttled"), ("InternalError", "transient")])
def test_what_boto3_repeats_by_itself_is_one_refusal(
    code: str, category: str, launch: Launch, emulator: Emulator
) -> None:
    emulator.set_fault(code=code, count=1)
    assert refused(launch) == (category, code)
    assert [call["attempt"] for call in emulator.calls()] == [1, 2, 3]
    assert len({call["token"] for call in emulator.calls()}) == 1
    assert launch().launch_id == "launch-1"


def test_a_real_mistake_in_the_pool_is_misconfigured(launch: Launch) -> None:
    rules = some_rules({"image": IMAGE, "security_groups": ["sg-0123456789abcdef0"]})
    assert refused(launch, rules=rules) == ("misconfigured", "InvalidGroup.NotFound")
    rules = some_rules({"image": IMAGE, "subnets": ["subnet-0123456789abcdef0"]})
    assert refused(launch, number=2, rules=rules) == ("misconfigured", "InvalidSubnetID.NotFound")


def test_parameters_that_boto3_refuses_are_misconfigured(fleet: Ec2Fleet) -> None:
    for request in ({"api": "RunInstances", "parameters": {"Nonsense": 1}}, {"api": "?", "parameters": {}}):
        with pytest.raises(CloudError, match="misconfigured"):
            launch_one(fleet, request)


def test_an_unreachable_endpoint_is_transient(access: Ec2Access) -> None:
    nowhere = msgspec.structs.replace(access, endpoint_url="http://127.0.0.1:9")
    with pytest.raises(CloudError) as caught:
        make_fleet("blue", nowhere).describe([GONE])
    assert (caught.value.category, caught.value.code) == ("transient", "EndpointConnectionError")


def test_no_credentials_is_an_auth_error(emulator: Emulator) -> None:
    client = make_client(Ec2Access(region="us-east-1", endpoint_url=emulator.url))
    with pytest.raises(CloudError) as caught:
        Ec2Fleet(client, "blue").describe([GONE])
    assert (caught.value.category, caught.value.code) == ("auth", "NoCredentialsError")
    assert emulator.calls() == []


def test_access_keeps_its_keys_to_itself(access: Ec2Access) -> None:
    assert repr(access) == f"Ec2Access(region='us-east-1', endpoint_url='{access.endpoint_url}')"


def test_half_of_the_credentials_is_an_auth_error() -> None:
    with pytest.raises(CloudError, match="auth: PartialCredentialsError"):
        make_client(Ec2Access(region="us-east-1", access_key_id="testing"))


def test_describe_leaves_out_what_ec2_does_not_know(launch: Launch, fleet: Ec2Fleet, emulator: Emulator) -> None:
    ours = [launch(number).id for number in (1, 2)]
    emulator_calls = len(emulator.calls())
    found = fleet.describe([ours[0], GONE, ours[1], "nonsense"])
    assert sorted(found) == sorted(ours)
    assert all(machine.healthy is True for machine in found.values())
    asked = [call["instances"] for call in emulator.calls()[emulator_calls:]]
    # Together, then each time without what EC2 names in its message; at last the status checks of the running ones.
    assert [len(call) for call in asked] == [4, 3, 2, 2]
    assert [sorted(call) for call in asked[2:]] == [sorted(ours)] * 2


def test_describe_asks_for_a_hundred_at_most_in_one_call(
    client: "EC2Client", fleet: Ec2Fleet, emulator: Emulator
) -> None:
    answer = client.run_instances(ImageId=IMAGE, MinCount=120, MaxCount=120, InstanceType="c5.large")
    ids = [instance["InstanceId"] for instance in answer["Instances"]]
    assert sorted(fleet.describe([*ids, *ids])) == sorted(ids)
    assert [len(call["instances"]) for call in emulator.calls("DescribeInstances")] == [100, 20]


def test_describing_nothing_asks_nothing(fleet: Ec2Fleet, emulator: Emulator) -> None:
    assert fleet.describe([]) == {}
    fleet.terminate([])
    assert emulator.calls() == []


def test_sweep_sees_all_of_our_cluster_and_nothing_else(launch: Launch, access: Ec2Access, client: "EC2Client") -> None:
    ours = {launch(number).id for number in range(1, 6)}
    green = make_fleet("green", access)
    theirs = launch_one(green, green.freeze(an_order(9), some_rules()))
    ended = launch(7)
    fleet = Ec2Fleet(client, "blue", page_size=2)
    fleet.terminate([ended.id])
    swept = list(fleet.sweep())
    assert {machine.id for machine in swept} == ours
    assert {machine.slot for machine in swept} == {f"linux-{number}" for number in range(1, 6)}
    assert [machine.id for machine in green.sweep()] == [theirs.id]


def test_sweep_goes_page_by_page(launch: Launch, client: "EC2Client", emulator: Emulator) -> None:
    for number in range(1, 6):
        launch(number)
    assert len(list(Ec2Fleet(client, "blue", page_size=2).sweep())) == 5
    assert len(emulator.calls("DescribeInstances")) == 3


def test_a_machine_that_two_pages_list_is_swept_once(
    launch: Launch, client: "EC2Client", monkeypatch: pytest.MonkeyPatch
) -> None:
    """EC2 may list a machine again on the next page if the list changes in between."""
    names = {launch(number).id for number in (1, 2)}
    pages = list(client.get_paginator("describe_instances").paginate(PaginationConfig={"PageSize": 5}))
    monkeypatch.setattr("workers.ec2.fleet.read_pages", lambda _pages: iter([*pages, *pages]))
    swept = [machine.id for machine in Ec2Fleet(client, "blue", page_size=5).sweep()]
    assert sorted(swept) == sorted(names)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (
            {"Code": "Client.VolumeLimitExceeded", "Message": "Client.VolumeLimitExceeded: Volume limit exceeded"},
            ("Client.VolumeLimitExceeded: Volume limit exceeded", "quota", "pool"),
        ),
        (
            {"Code": "Client.InternalError", "Message": "Client error on launch"},
            ("Client.InternalError: Client error on launch", None, None),
        ),
        ({"Code": "Client.UserInitiatedShutdown", "Message": ""}, ("Client.UserInitiatedShutdown: ", None, None)),
        ({"Code": "", "Message": ""}, ("", None, None)),
        (None, ("", None, None)),
    ],
)
def test_a_machine_that_ended_has_its_state_reason(
    reason: dict[str, str] | None, expected: tuple[str, str | None, str | None]
) -> None:
    more = {} if reason is None else {"StateReason": reason}
    ended = read_machine({"InstanceId": GONE, "State": {"Code": 48, "Name": "terminated"}, **more})  # type: ignore[typeddict-item]
    assert (ended.reason, ended.category, ended.scope) == expected
    running = read_machine({"InstanceId": GONE, "State": {"Code": 16, "Name": "running"}, **more})  # type: ignore[typeddict-item]
    assert (running.reason, running.category, running.scope) == ("", None, None)


def test_a_long_state_reason_is_bounded_and_one_line() -> None:
    instance: Any = {"InstanceId": GONE, "State": {"Code": 48, "Name": "terminated"}}
    instance["StateReason"] = {"Code": "Client.InternalError", "Message": "a\nb " * 50_000}
    machine = read_machine(instance)
    assert machine.reason.startswith("Client.InternalError: a b a b")
    assert len(machine.reason) <= 2 * MOST_MESSAGE


def test_a_machine_has_the_cluster_identity_and_the_highest_numbers(launch: Launch, fleet: Ec2Fleet) -> None:
    machine = launch(cluster_id="c1", highest="3.9007199254740991")
    for found in (machine, *fleet.sweep()):
        assert (found.cluster_id, found.highest_term, found.highest_token) == ("c1", 3, 2**53 - 1)


@pytest.mark.parametrize("highest", ["", "3", "many.few", "1.-5", "1." + "9" * 17])
def test_numbers_that_no_launch_has_written_count_as_none(
    launch: Launch, fleet: Ec2Fleet, client: "EC2Client", highest: str
) -> None:
    """Other users of the account may write tags."""
    machine = launch(cluster_id="c1", highest="0.0")
    client.create_tags(Resources=[machine.id], Tags=[{"Key": "leasehold:highest", "Value": highest}])
    (found,) = fleet.sweep()
    assert found.highest_token == 0


def test_a_machine_without_identity_is_claimed_and_an_unknown_one_is_no_error(launch: Launch, fleet: Ec2Fleet) -> None:
    machine = launch()
    assert machine.cluster_id is None
    fleet.claim([GONE, machine.id], "c1")
    assert [found.cluster_id for found in fleet.sweep()] == ["c1"]


def test_a_launch_is_found_by_its_tag(launch: Launch, fleet: Ec2Fleet, access: Ec2Access) -> None:
    machine = launch(1)
    launch(2)
    assert [found.id for found in fleet.find_launched(fleet.freeze(an_order(1), some_rules()))] == [machine.id]
    assert (
        make_fleet("green", access).find_launched(make_fleet("green", access).freeze(an_order(1), some_rules())) == []
    )
    fleet.terminate([machine.id])
    assert fleet.find_launched(fleet.freeze(an_order(1), some_rules())) == []


def test_terminating_twice_or_what_is_not_there_is_no_error(
    launch: Launch, fleet: Ec2Fleet, emulator: Emulator
) -> None:
    ids = [launch(number).id for number in (1, 2)]
    fleet.terminate([ids[0], GONE, ids[1]])
    fleet.terminate(ids)
    fleet.terminate([GONE])
    assert {instance["state"] for instance in emulator.instances()} == {"terminated"}
    assert {machine.state for machine in fleet.describe(ids).values()} == {"terminated"}


def test_a_refused_end_is_returned_and_any_other_error_is_raised(
    launch: Launch, fleet: Ec2Fleet, emulator: Emulator
) -> None:
    machine = launch()
    emulator.set_fault(code="UnauthorizedOperation", action="TerminateInstances")
    assert {name: error.code for name, error in fleet.terminate([machine.id]).items()} == {
        machine.id: "UnauthorizedOperation"
    }
    emulator.set_fault(code="ExpiredToken", action="TerminateInstances")
    with pytest.raises(CloudError, match="ExpiredToken"):
        fleet.terminate([machine.id])
    assert [instance["state"] for instance in emulator.instances()] == ["running"]


def until(fleet: Ec2Fleet, machine: str, **wanted: object) -> list[tuple[Any, Any]]:
    seen: list[tuple[Any, Any]] = []
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        found = fleet.describe([machine])[machine]
        if (found.state, found.healthy) not in seen:
            seen.append((found.state, found.healthy))
        if all(getattr(found, name) == value for name, value in wanted.items()):
            return seen
    raise AssertionError(seen)


def test_a_boot_takes_the_configured_time(launch: Launch, fleet: Ec2Fleet, emulator: Emulator) -> None:
    emulator.steer(boot_seconds=1, status_seconds=1)
    machine = launch()
    assert machine.state == "pending"
    assert until(fleet, machine.id, healthy=True) == [("pending", None), ("running", None), ("running", True)]


def test_an_end_takes_the_configured_time(launch: Launch, fleet: Ec2Fleet, emulator: Emulator) -> None:
    emulator.steer(boot_seconds=60, terminate_seconds=1)
    machine = launch()
    fleet.terminate([machine.id])
    assert [found.state for found in fleet.find_launched(fleet.freeze(an_order(1), some_rules()))] == ["stopping"]
    assert until(fleet, machine.id, state="terminated") == [("stopping", None), ("terminated", None)]
    assert list(fleet.sweep()) == []


def test_a_terminated_machine_is_forgotten_in_the_end(launch: Launch, fleet: Ec2Fleet, emulator: Emulator) -> None:
    emulator.steer(forget_seconds=0)
    machine = launch()
    fleet.terminate([machine.id])
    deadline = time.monotonic() + 20
    while fleet.describe([machine.id]) and time.monotonic() < deadline:
        pass
    assert fleet.describe([machine.id]) == {}


@pytest.fixture
def crowded(client: "EC2Client") -> dict[str, str]:
    """Three subnets in two zones, as subnet -> zone. The second one has the most free addresses of its zone."""
    vpc = client.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    places = (("10.9.0.0/28", "us-east-1a"), ("10.9.1.0/24", "us-east-1a"), ("10.9.2.0/24", "us-east-1b"))
    made = [client.create_subnet(VpcId=vpc, CidrBlock=block, AvailabilityZone=zone)["Subnet"] for block, zone in places]
    return {each["SubnetId"]: each["AvailabilityZone"] for each in made}


def test_zones_and_free_addresses_come_from_ec2_once_in_some_minutes(
    access: Ec2Access, emulator: Emulator, crowded: dict[str, str]
) -> None:
    fleet, subnets = make_fleet("blue", access), [*crowded, "subnet-0123456789abcdef0"]
    rules = some_rules({"image": IMAGE, "subnets": subnets})
    places = fleet.find_places("linux", rules)
    assert [(each.subnet, each.zone) for each in places] == [*crowded.items(), ("subnet-0123456789abcdef0", None)]
    assert [each.free for each in places] == [11, 251, 251, None]
    assert fleet.find_places("linux", rules) == places
    assert len(emulator.calls("DescribeSubnets")) == 1
    assert fleet.find_places("linux", some_rules()) == ()
    assert fleet.find_places("gone", rules) == ()


def test_without_the_permission_zones_are_as_the_rules_write_them(access: Ec2Access, emulator: Emulator) -> None:
    emulator.set_fault(action="DescribeSubnets", code="UnauthorizedOperation")
    rules = some_rules({"image": IMAGE, "subnets": ["us-east-1a:subnet-1", "subnet-2"]})
    places = make_fleet("blue", access).find_places("linux", rules)
    assert places == (Place(subnet="subnet-1", zone="us-east-1a"), Place(subnet="subnet-2"))


def test_a_machine_of_many_places_has_the_zone_of_its_subnet_and_its_own_tags(
    access: Ec2Access, emulator: Emulator, crowded: dict[str, str], client: "EC2Client"
) -> None:
    emulator.set_fault(code="InsufficientInstanceCapacity", zone="us-east-1a")
    fleet = make_fleet("blue", access)
    rules = some_rules({"image": IMAGE, "subnets": list(crowded), "user_data": "at ${slot}"})
    order = an_order(4, places=fleet.find_places("linux", rules))
    machine = launch_one(fleet, fleet.freeze(order, rules))
    assert (machine.slot, machine.launch_id, machine.zone) == ("linux-4", "launch-4", "us-east-1b")
    assert [each.id for each in fleet.find_launched(fleet.freeze(an_order(4), some_rules()))] == [machine.id]
    attribute = client.describe_instance_attribute(InstanceId=machine.id, Attribute="userData")
    assert base64.b64decode(attribute["UserData"]["Value"]) == b"at linux-4"
    (instance,) = client.describe_instances(InstanceIds=[machine.id])["Reservations"][0]["Instances"]
    assert crowded[instance["SubnetId"]] == "us-east-1b"


def test_an_answer_that_names_only_subnets_gets_their_zones_from_the_request() -> None:
    override = {"InstanceType": "c5.large", "SubnetId": "subnet-2"}
    config = {"Overrides": [{"SubnetId": "subnet-2", "AvailabilityZone": "us-east-1b"}, {"SubnetId": "subnet-3"}]}
    for subnet, zone in (("subnet-2", "us-east-1b"), ("subnet-3", None)):
        entry = {"LaunchTemplateAndOverrides": {"Overrides": {**override, "SubnetId": subnet}}}
        answer = name_zones({"Errors": [entry]}, {"LaunchTemplateConfigs": [config]})
        assert answer["Errors"][0]["LaunchTemplateAndOverrides"]["Overrides"].get("AvailabilityZone") == zone


@pytest.mark.parametrize(("misses", "is_launched"), [(1, True), (4, True), (5, False)])
def test_a_new_template_that_is_not_found_yet_is_tried_again_after_1_2_and_4_s(
    client: "EC2Client", emulator: Emulator, misses: int, *, is_launched: bool
) -> None:
    pauses: list[float] = []
    fleet = Ec2Fleet(client, "blue", pause=pauses.append)
    request = fleet.freeze(an_order(), some_rules({"image": IMAGE, "subnets": ["us-east-1a:s-1", "us-east-1b:s-2"]}))
    del request["parameters"]["LaunchTemplateConfigs"][0]["Overrides"][0]["SubnetId"]
    del request["parameters"]["LaunchTemplateConfigs"][0]["Overrides"][1:]
    emulator.set_fault(action="CreateFleet", code="InvalidLaunchTemplateName.NotFoundException", count=misses)
    if is_launched:
        assert launch_one(fleet, request).id
    else:
        with pytest.raises(CloudError) as caught:
            launch_one(fleet, request)
        assert caught.value.category == "misconfigured"
    assert pauses == [1.0, 2.0, 4.0][: misses - 1]
    assert [call["status"] for call in emulator.calls("CreateLaunchTemplate")] == [200]


ADDRESSES: list[tuple[str | None, str | None, str | None]] = [
    # (the pool's choice, the address of an instance with all, that of an instance with IPv6 only)
    (None, "10.0.0.1", "2001:db8::1"),
    ("private", "10.0.0.1", None),
    ("public", "192.0.2.1", None),
    ("ipv6", "2001:db8::1", "2001:db8::1"),
    ("dns", "ip-10-0-0-1.ec2.internal", None),
]


@pytest.mark.parametrize(("choice", "of_all", "of_ipv6"), ADDRESSES)
def test_a_pool_chooses_the_address_of_its_machines(
    choice: str | None, of_all: str | None, of_ipv6: str | None
) -> None:
    ec2 = some_rules({"image": IMAGE} | ({"address": choice} if choice else {})).pools["linux"].ec2
    only: Any = {"InstanceId": "i-1", "State": {"Name": "running"}, "Ipv6Address": "2001:db8::1", "PrivateDnsName": ""}
    names = {"PrivateIpAddress": "10.0.0.1", "PublicIpAddress": "192.0.2.1"}
    every: Any = {**only, **names, "PrivateDnsName": "ip-10-0-0-1.ec2.internal"}
    assert [ec2.choose_address(read_machine(each)) for each in (every, only)] == [of_all, of_ipv6]


def test_status_checks_of_a_part_of_a_large_fleet_need_one_page_and_calls_by_ids(
    client: "EC2Client", emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All pages of the list would be more calls: their number grows with the whole fleet."""
    monkeypatch.setattr("workers.ec2.fleet.MOST_STATUSES", 100)
    emulator.steer(boot_seconds=0)
    answer = client.run_instances(ImageId="ami-12345678", InstanceType="m5.large", MinCount=330, MaxCount=330)
    machines = [each["InstanceId"] for each in answer["Instances"]]
    found = Ec2Fleet(client, "blue").describe(machines[50:230])
    assert {each.healthy for each in found.values()} == {True}
    assert len(emulator.calls("DescribeInstanceStatus")) == 1 + 2
