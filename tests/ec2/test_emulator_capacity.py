"""Capacity over HTTP: what EC2 has room for, how a fleet is spread over it, and all or nothing."""

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

from scheduler.ports import LaunchOrder
from tests.ec2.conftest import IMAGE, Emulator, some_rules
from workers.ec2.fleet import Ec2Fleet

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

NONE = "InsufficientInstanceCapacity"
A, B = "us-east-1a", "us-east-1b"
CHEAP, MEDIUM, DEAR = "c5.large", "m5.large", "r5.large"
PRICES = {CHEAP: 0.01, MEDIUM: 0.02, DEAR: 0.03}
SPOT: dict[str, Any] = {"InstanceMarketOptions": {"MarketType": "spot"}}

Answer = tuple[dict[tuple[str, str], int], dict[tuple[str, str], str]]
"""(type, zone) -> number of instances, and (type, zone) -> error code."""


@pytest.fixture
def plain(emulator: Emulator, plain_client: "EC2Client") -> "EC2Client":
    """A client without repeats, for an emulator with fixed spot prices and a launch template."""
    emulator.steer(spot_prices={"fixed": [{"type": kind, "price": price} for kind, price in PRICES.items()]})
    plain_client.create_launch_template(LaunchTemplateName="any", LaunchTemplateData={"ImageId": IMAGE})
    return plain_client


def a_room(machines: int, kind: str | None = None, zone: str | None = None, market: str | None = None) -> object:
    given = {"machines": machines, "type": kind, "zone": zone, "market": market}
    return {key: value for key, value in given.items() if value is not None}


def a_fleet(
    client: Any,
    wanted: int,
    places: list[tuple[str, str]],
    *,
    strategy: str = "lowest-price",
    market: str = "spot",
    **options: Any,
) -> Answer:
    """Send a CreateFleet of type instant for these types in these zones, and return what it gave."""
    key = "SpotOptions" if market == "spot" else "OnDemandOptions"
    answer = client.create_fleet(
        Type="instant",
        TargetCapacitySpecification={"TotalTargetCapacity": wanted, "DefaultTargetCapacityType": market},
        LaunchTemplateConfigs=[
            {
                "LaunchTemplateSpecification": {"LaunchTemplateName": "any", "Version": "1"},
                "Overrides": [{"InstanceType": kind, "AvailabilityZone": zone} for kind, zone in places],
            }
        ],
        **{key: {"AllocationStrategy": strategy, **options}},
    )
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 200
    given: Counter[tuple[str, str]] = Counter()
    for each in answer.get("Instances", ()):
        given[place_of(each)] += len(each["InstanceIds"])
    return dict(given), {place_of(each): each["ErrorCode"] for each in answer.get("Errors", ())}


def place_of(entry: Any) -> tuple[str, str]:
    override = entry["LaunchTemplateAndOverrides"]["Overrides"]
    return override["InstanceType"], override["AvailabilityZone"]


def code_of(error: pytest.ExceptionInfo[ClientError]) -> tuple[str, int]:
    answer = error.value.response
    return answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"]


def test_a_fleet_fills_the_cheapest_place_first_and_names_the_one_that_is_full(plain: Any, emulator: Emulator) -> None:
    emulator.steer(capacity=[a_room(2, CHEAP, A, "spot")])
    assert a_fleet(plain, 5, [(MEDIUM, A), (CHEAP, A), (DEAR, B)]) == (
        {(CHEAP, A): 2, (MEDIUM, A): 3},
        {(CHEAP, A): NONE},
    )
    assert emulator.calls("CreateFleet")[0]["faults"] == [f"capacity:{NONE}"]
    assert len(emulator.calls("CreateFleet")[0]["instances"]) == 5
    lives = Counter((life["type"], life["zone"], life["market"]) for life in emulator.history())
    assert lives == {(CHEAP, A, "spot"): 2, (MEDIUM, A, "spot"): 3}


def test_a_fleet_gets_what_there_is_and_an_error_for_each_place(plain: Any, emulator: Emulator) -> None:
    emulator.steer(capacity=[a_room(2, CHEAP, A), a_room(0, CHEAP, B), a_room(1, MEDIUM)])
    places = [(CHEAP, A), (CHEAP, B), (MEDIUM, A)]
    assert a_fleet(plain, 9, places) == ({(CHEAP, A): 2, (MEDIUM, A): 1}, dict.fromkeys(places, NONE))
    assert a_fleet(plain, 1, places) == ({}, dict.fromkeys(places, NONE))


@pytest.mark.parametrize(
    ("strategy", "given", "errors"),
    [
        # Of the places with room for all four, the cheapest one.
        ("price-capacity-optimized", {(MEDIUM, A): 4}, {}),
        ("lowest-price", {(CHEAP, A): 3, (MEDIUM, A): 1}, {(CHEAP, A): NONE}),
        ("capacity-optimized", {(DEAR, A): 4}, {}),
        ("diversified", {(CHEAP, A): 2, (MEDIUM, A): 1, (DEAR, A): 1}, {}),
    ],
)
def test_the_strategy_chooses_by_price_and_room(
    strategy: str, given: object, errors: object, plain: Any, emulator: Emulator
) -> None:
    emulator.steer(capacity=[a_room(3, CHEAP), a_room(5, MEDIUM), a_room(9, DEAR)])
    assert a_fleet(plain, 4, [(CHEAP, A), (MEDIUM, A), (DEAR, A)], strategy=strategy) == (given, errors)


def test_without_room_for_all_in_one_place_the_roomiest_place_is_first(plain: Any, emulator: Emulator) -> None:
    emulator.steer(capacity=[a_room(3, CHEAP), a_room(5, MEDIUM)])
    assert a_fleet(plain, 6, [(CHEAP, A), (MEDIUM, A)], strategy="price-capacity-optimized") == (
        {(MEDIUM, A): 5, (CHEAP, A): 1},
        {(MEDIUM, A): NONE},
    )


def test_on_demand_instances_take_the_cheapest_on_demand_price(plain: Any, emulator: Emulator) -> None:
    emulator.steer(capacity=[a_room(1, CHEAP, market="on-demand"), a_room(0, MEDIUM, market="spot")])
    places = [(DEAR, A), (MEDIUM, A), (CHEAP, A)]
    assert a_fleet(plain, 3, places, market="on-demand") == ({(CHEAP, A): 1, (MEDIUM, A): 2}, {(CHEAP, A): NONE})
    assert a_fleet(plain, 1, [(MEDIUM, A)], market="spot") == ({}, {(MEDIUM, A): NONE})


def test_a_class_with_a_quota_of_zero_is_an_error_beside_the_machines_of_others(plain: Any, emulator: Emulator) -> None:
    emulator.steer(quota={"classes": [{"name": "g", "market": "on-demand", "vcpus": 0}]})
    places = [("g5.xlarge", A), ("vt1.3xlarge", B), (MEDIUM, A)]
    refused = dict.fromkeys(places[:2], "VcpuLimitExceeded")
    assert a_fleet(plain, 2, places, market="on-demand", strategy="prioritized") == ({(MEDIUM, A): 2}, refused)
    assert a_fleet(plain, 2, places[:2], market="on-demand") == ({}, refused)
    assert a_fleet(plain, 2, places[:1], market="spot") == ({places[0]: 2}, {})


def test_machines_that_end_give_their_room_back(plain: Any, emulator: Emulator) -> None:
    emulator.steer(capacity=[a_room(2, CHEAP, A)])
    assert a_fleet(plain, 2, [(CHEAP, A)])[0] == {(CHEAP, A): 2}
    first, second = (life["id"] for life in emulator.history())
    assert a_fleet(plain, 1, [(CHEAP, A)])[0] == {}
    plain.terminate_instances(InstanceIds=[first])
    assert a_fleet(plain, 2, [(CHEAP, A)])[0] == {(CHEAP, A): 1}
    emulator.order("interrupt", second, deadline=0)
    assert a_fleet(plain, 2, [(CHEAP, A)])[0] == {(CHEAP, A): 1}
    emulator.steer(capacity=[])
    assert a_fleet(plain, 4, [(CHEAP, A)])[0] == {(CHEAP, A): 4}


def test_a_machine_that_shuts_down_keeps_its_room(plain: Any, emulator: Emulator) -> None:
    emulator.steer(capacity=[a_room(1)], terminate_seconds=60)
    a_fleet(plain, 1, [(CHEAP, A)])
    plain.terminate_instances(InstanceIds=[emulator.history()[0]["id"]])
    assert a_fleet(plain, 1, [(CHEAP, A)])[0] == {}


def test_run_instances_gives_what_fits_between_its_counts_or_the_error(plain: Any, emulator: Emulator) -> None:
    emulator.steer(capacity=[a_room(3, CHEAP, B, "spot")])

    def run(least: int, most: int, **options: Any) -> int:
        place = {"Placement": {"AvailabilityZone": B}, **SPOT, **options}
        answer = plain.run_instances(ImageId=IMAGE, InstanceType=CHEAP, MinCount=least, MaxCount=most, **place)
        return len(answer["Instances"])

    with pytest.raises(ClientError) as caught:
        run(4, 5)
    assert code_of(caught) == (NONE, 500)
    assert emulator.history() == []
    assert run(2, 5) == 3
    with pytest.raises(ClientError, match=NONE):
        run(1, 1)
    assert (run(1, 1, Placement={"AvailabilityZone": A}), run(1, 1, InstanceMarketOptions={})) == (1, 1)


def test_a_quota_and_a_capacity_both_hold(plain: Any, emulator: Emulator) -> None:
    """Four vCPUs are two machines of either type, and one of them is full."""
    emulator.steer(capacity=[a_room(1, CHEAP)], quota={"spot_vcpus": 4})
    assert a_fleet(plain, 5, [(CHEAP, A), (MEDIUM, A)]) == (
        {(CHEAP, A): 1, (MEDIUM, A): 1},
        {(CHEAP, A): NONE, (MEDIUM, A): "MaxSpotInstanceCountExceeded"},
    )


@pytest.mark.parametrize(
    ("options", "given", "errors"),
    [
        # Zone B has room for two machines of the cheap type and two others: zone A has more.
        ({"SingleAvailabilityZone": True}, {(CHEAP, A): 3, (MEDIUM, A): 2}, {(CHEAP, A): NONE}),
        ({"SingleInstanceType": True}, {(CHEAP, A): 3, (CHEAP, B): 2}, {(CHEAP, A): NONE}),
        (
            {"SingleInstanceType": True, "SingleAvailabilityZone": True},
            {(MEDIUM, A): 4},
            {(CHEAP, A): NONE, (CHEAP, B): NONE, (MEDIUM, A): NONE, (MEDIUM, B): NONE},
        ),
    ],
)
def test_all_instances_may_have_to_share_a_type_or_a_zone(
    options: dict[str, Any], given: object, errors: object, plain: Any, emulator: Emulator
) -> None:
    emulator.steer(capacity=[a_room(3, CHEAP, A), a_room(2, CHEAP, B), a_room(4, MEDIUM, A), a_room(2, MEDIUM, B)])
    places = [(CHEAP, A), (CHEAP, B), (MEDIUM, A), (MEDIUM, B)]
    assert a_fleet(plain, 5, places, MinTargetCapacity=4, **options) == (given, errors)


def test_a_fleet_below_its_smallest_capacity_launches_nothing(plain: Any, emulator: Emulator) -> None:
    emulator.steer(capacity=[a_room(3, CHEAP, A), a_room(1, CHEAP, B)])
    options: dict[str, Any] = {"MinTargetCapacity": 4, "SingleAvailabilityZone": True}
    assert a_fleet(plain, 4, [(CHEAP, A), (CHEAP, B)], **options) == ({}, {(CHEAP, A): NONE, (CHEAP, B): NONE})
    emulator.set_fault(deliver=3, code="UnfulfillableCapacity")
    emulator.steer(capacity=[])
    with pytest.raises(KeyError):
        # The error of a fault names no place.
        a_fleet(plain, 4, [(CHEAP, A)], **options)
    assert emulator.history() == []
    emulator.ask("PUT", "faults", [])
    assert a_fleet(plain, 4, [(CHEAP, A)], **options)[0] == {(CHEAP, A): 4}


def test_a_smallest_capacity_needs_one_type_or_one_zone(plain: Any, emulator: Emulator) -> None:
    with pytest.raises(ClientError) as caught:
        a_fleet(plain, 2, [(CHEAP, A)], MinTargetCapacity=2)
    assert code_of(caught) == ("InvalidParameterCombination", 400)
    assert emulator.history() == []


def test_a_subnet_has_no_more_machines_than_addresses(plain: Any, emulator: Emulator) -> None:
    """A subnet of 16 addresses has 11 for machines, since EC2 keeps five."""
    vpc = plain.describe_vpcs()["Vpcs"][0]["VpcId"]
    small = plain.create_subnet(VpcId=vpc, CidrBlock="172.31.240.0/28", AvailabilityZone=A)["Subnet"]["SubnetId"]

    def run(least: int, most: int) -> int:
        request = {"ImageId": IMAGE, "InstanceType": CHEAP, "SubnetId": small}
        return len(plain.run_instances(MinCount=least, MaxCount=most, **request)["Instances"])

    assert (run(8, 8), run(1, 8)) == (8, 3)
    with pytest.raises(ClientError) as caught:
        run(1, 1)
    assert code_of(caught) == ("InsufficientFreeAddressesInSubnet", 400)
    assert f"in subnet '{small}' to satisfy" in str(caught.value)
    plain.terminate_instances(InstanceIds=[emulator.history()[0]["id"]])
    assert run(1, 8) == 1


def test_a_fleet_that_names_a_type_twice_in_a_zone_is_refused(plain: Any, emulator: Emulator) -> None:
    """Overrides -> whether they are duplicates. A zone is named by itself or by a subnet; without both EC2 chooses."""
    in_a = plain.describe_subnets(Filters=[{"Name": "availability-zone", "Values": [A]}])["Subnets"][0]
    other = plain.create_subnet(VpcId=in_a["VpcId"], CidrBlock="172.31.240.0/24", AvailabilityZone=A)["Subnet"]
    zone, subnet, second, none = {"AvailabilityZone": A}, in_a["SubnetId"], other["SubnetId"], dict[str, str]()
    cases = [
        ([zone, zone], True),
        ([{"SubnetId": subnet}, {"SubnetId": second}], True),
        ([zone, {"SubnetId": subnet}], True),
        ([none, none], True),
        ([zone, {"AvailabilityZone": B}], False),
        ([zone, none], False),
        ([zone, {**zone, "InstanceType": MEDIUM}], False),
    ]
    for places, is_refused in cases:
        overrides = [{"InstanceType": CHEAP, **place} for place in places]
        template = {"LaunchTemplateName": "any", "Version": "1"}
        request = {
            "Type": "instant",
            "TargetCapacitySpecification": {"TotalTargetCapacity": 1, "DefaultTargetCapacityType": "spot"},
            # One override in each of two configurations is a duplicate, too.
            "LaunchTemplateConfigs": [
                {"LaunchTemplateSpecification": template, "Overrides": [each]} for each in overrides
            ],
        }
        if not is_refused:
            plain.create_fleet(**request)
            continue
        with pytest.raises(ClientError) as caught:
            plain.create_fleet(**request)
        assert code_of(caught) == ("InvalidFleetConfig", 400), places
        assert "contains duplicate instance pools." in str(caught.value)


def test_a_repeated_fleet_may_be_answered_without_its_machines(plain: Any, emulator: Emulator) -> None:
    request: dict[str, Any] = {
        "Type": "instant",
        "ClientToken": "t",
        "TargetCapacitySpecification": {"TotalTargetCapacity": 2, "DefaultTargetCapacityType": "spot"},
        "LaunchTemplateConfigs": [
            {
                "LaunchTemplateSpecification": {"LaunchTemplateName": "any", "Version": "1"},
                "Overrides": [{"InstanceType": CHEAP}],
            }
        ],
    }
    first = plain.create_fleet(**request)
    assert plain.create_fleet(**request)["Instances"] == first["Instances"]
    emulator.steer(fleet_replays="empty")
    again = plain.create_fleet(**request)
    assert (again["Instances"], again["Errors"]) == ([], [])
    assert len(emulator.instances()) == 2
    assert emulator.calls()[-1]["replayed"]


def test_a_place_that_ec2_refuses_is_an_error_beside_the_instances(plain: Any, emulator: Emulator) -> None:
    emulator.steer(capacity=[a_room(1, CHEAP)])
    subnet = next(each for each in plain.describe_subnets()["Subnets"] if each["AvailabilityZone"] == A)["SubnetId"]
    answer = plain.create_fleet(
        Type="instant",
        TargetCapacitySpecification={"TotalTargetCapacity": 3, "DefaultTargetCapacityType": "spot"},
        LaunchTemplateConfigs=[
            {
                "LaunchTemplateSpecification": {"LaunchTemplateName": "any", "Version": "1"},
                "Overrides": [
                    {"InstanceType": CHEAP, "SubnetId": subnet},
                    {"InstanceType": MEDIUM, "SubnetId": "subnet-00000000"},
                ],
            }
        ],
    )
    assert [len(each["InstanceIds"]) for each in answer["Instances"]] == [1]
    errors = {
        each["ErrorCode"]: each["LaunchTemplateAndOverrides"]["Overrides"]["SubnetId"] for each in answer["Errors"]
    }
    assert errors == {NONE: subnet, "InvalidSubnetID.NotFound": "subnet-00000000"}


def test_a_batch_is_spread_over_its_offerings_and_those_without_room_are_refused(
    fleet: Ec2Fleet, plain: Any, emulator: Emulator
) -> None:
    """Two launches with one client token give the same machines, although there is no room any more."""
    emulator.steer(capacity=[a_room(2, CHEAP), a_room(3, MEDIUM)])
    rules = some_rules({"image": IMAGE, "spot_allocation": "lowest-price"}, offerings=[{"name": k} for k in PRICES])
    order = LaunchOrder(
        batch="b1", pool="linux", count=6, offerings=(CHEAP, MEDIUM, DEAR), cluster_id="c1", highest="3.40"
    )
    request = fleet.freeze(order, rules)
    answer = fleet.launch(request)
    assert Counter(machine.offering for machine in answer.machines) == {CHEAP: 2, MEDIUM: 3, DEAR: 1}
    assert [(each.offering, each.category) for each in answer.refusals] == [(CHEAP, "capacity"), (MEDIUM, "capacity")]
    assert fleet.launch(request) == answer
    assert len(emulator.instances()) == 6


def test_a_wrong_capacity_is_refused_by_name(emulator: Emulator) -> None:
    status, answer = emulator.ask("PUT", "settings", {"capacity": [{"type": CHEAP}]})
    assert (status, answer["error"]) == (400, "capacity[0].machines: expected a value, got nothing")
