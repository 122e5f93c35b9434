"""The content of frozen requests, built from the rules."""

import base64
import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from scheduler.model.rules import Rules, read_rules, with_images
from scheduler.ports import CloudError, LaunchOrder, Place
from scheduler.ports.fleet import JOIN_TOKEN
from scheduler.protocol.join_tokens import TOKEN_PLACE, make_join_token
from tests.ec2.conftest import IMAGE, an_order, some_rules
from workers.ec2.requests import client_token, fill_join_token, find_places, freeze_request, read_written

TEMPLATE: dict[str, Any] = {"launch_template": "lt-0123456789abcdef0", "launch_template_version": 7}


def frozen(rules: Rules, **changes: object) -> dict[str, Any]:
    return freeze_request(an_order(1, **changes), rules, "blue", "us-east-1")


def a_batch(*offerings: str, **changes: object) -> LaunchOrder:
    return msgspec.structs.replace(LaunchOrder(batch="b1", pool="linux", count=2, offerings=offerings), **changes)


def test_an_image_makes_run_instances() -> None:
    tags = [
        {"Key": "leasehold:cluster", "Value": "blue"},
        {"Key": "leasehold:pool", "Value": "linux"},
        {"Key": "leasehold:slot", "Value": "linux-1"},
        {"Key": "leasehold:launch", "Value": "launch-1"},
        {"Key": "leasehold:offering", "Value": "c5.large"},
    ]
    assert frozen(some_rules()) == {
        "api": "RunInstances",
        "parameters": {
            "ClientToken": "launch-1.1",
            "ImageId": IMAGE,
            "MinCount": 1,
            "MaxCount": 1,
            "InstanceType": "c5.large",
            "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1, "HttpEndpoint": "enabled"},
            "InstanceInitiatedShutdownBehavior": "terminate",
            "InstanceMarketOptions": {
                "MarketType": "spot",
                "SpotOptions": {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"},
            },
            "TagSpecifications": [
                {"ResourceType": "instance", "Tags": tags},
                {"ResourceType": "volume", "Tags": tags},
                {"ResourceType": "spot-instances-request", "Tags": tags},
            ],
        },
        "offerings": {"c5.large": [{"InstanceType": "c5.large"}]},
        "template": None,
    }


def test_a_request_contains_all_settings_of_the_pool() -> None:
    rules = some_rules(
        {
            "image": IMAGE,
            "subnets": ["us-east-1b:subnet-1", "us-east-1a:subnet-2"],
            "security_groups": ["sg-1"],
            "instance_profile": "builder",
            "key_name": "ops",
            "volume_gib": 40,
            "user_data": "I am ${slot}",
            "tags": {"team": "ci", "leasehold:slot": "not this one"},
        },
        offerings=[{"name": "big", "type": "c5.4xlarge", "market": "on-demand", "zone": "us-east-1b"}],
    )
    parameters = frozen(rules, offering="big")["parameters"]
    assert "InstanceMarketOptions" not in parameters
    assert {key: parameters[key] for key in ("InstanceType", "SubnetId", "SecurityGroupIds", "UserData")} == {
        "InstanceType": "c5.4xlarge",
        "SubnetId": "subnet-1",
        "SecurityGroupIds": ["sg-1"],
        "UserData": "I am linux-1",
    }
    assert parameters["Placement"] == {"AvailabilityZone": "us-east-1b"}
    assert parameters["IamInstanceProfile"] == {"Name": "builder"}
    assert parameters["KeyName"] == "ops"
    assert parameters["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"] == 40
    assert [found["ResourceType"] for found in parameters["TagSpecifications"]] == ["instance", "volume"]
    tags = {tag["Key"]: tag["Value"] for tag in parameters["TagSpecifications"][0]["Tags"]}
    assert (tags["team"], tags["leasehold:slot"]) == ("ci", "linux-1")


def test_a_launch_template_makes_an_instant_fleet_with_an_override_for_each_subnet() -> None:
    rules = some_rules({**TEMPLATE, "subnets": ["subnet-1", "subnet-2"], "user_data": "x"})
    request = frozen(rules)
    parameters = request["parameters"]
    configuration = parameters["LaunchTemplateConfigs"][0]
    assert (request["api"], parameters["Type"], parameters["ClientToken"]) == ("CreateFleet", "instant", "launch-1.1")
    assert configuration["LaunchTemplateSpecification"] == {
        "LaunchTemplateId": "lt-0123456789abcdef0",
        "Version": "7",
        "LaunchTemplateSpecificationUserData": base64.b64encode(b"x").decode(),
    }
    assert [(override["InstanceType"], override["SubnetId"]) for override in configuration["Overrides"]] == [
        ("c5.large", "subnet-1"),
        ("c5.large", "subnet-2"),
    ]
    assert "MetadataOptions" not in configuration["Overrides"][0]
    assert parameters["SpotOptions"]["AllocationStrategy"] == "price-capacity-optimized"
    assert parameters["TargetCapacitySpecification"] == {"TotalTargetCapacity": 1, "DefaultTargetCapacityType": "spot"}


def test_a_template_may_be_named_and_its_image_replaced() -> None:
    rules = some_rules({"launch_template": "builders", "launch_template_version": 1, "image": IMAGE})
    configuration = frozen(rules)["parameters"]["LaunchTemplateConfigs"][0]
    assert configuration["LaunchTemplateSpecification"] == {"LaunchTemplateName": "builders", "Version": "1"}
    assert configuration["Overrides"][0]["ImageId"] == IMAGE


def test_a_pool_without_offerings_leaves_the_type_to_the_template() -> None:
    override = frozen(some_rules(TEMPLATE, offerings=[]), offering=None)["parameters"]["LaunchTemplateConfigs"][0][
        "Overrides"
    ][0]
    assert "InstanceType" not in override


def test_freezing_is_pure_and_its_result_is_json() -> None:
    rules = some_rules({**TEMPLATE, "user_data": "$slot"})
    assert frozen(rules) == frozen(rules) == json.loads(json.dumps(frozen(rules)))


@pytest.mark.parametrize(
    ("ec2", "changes", "key"),
    [
        # neither image nor template
        ({}, {}, "config.pools.linux.ec2.image"),
        # a fleet cannot have security groups
        ({**TEMPLATE, "security_groups": ["sg-1"]}, {}, "config.pools.linux.ec2.security_groups"),
        # unknown variable
        ({"image": IMAGE, "user_data": "${slto}"}, {}, "config.pools.linux.ec2.user_data"),
        # the rules changed after the order was made
        ({"image": IMAGE}, {"offering": "gone"}, "config.pools.linux.offerings"),
        ({"image": IMAGE}, {"pool": "gone"}, "config.pools.gone"),
    ],
)
def test_rules_that_do_not_suffice_are_named(ec2: dict[str, Any], changes: dict[str, Any], key: str) -> None:
    with pytest.raises(CloudError) as caught:
        frozen(some_rules(ec2), **changes)
    assert caught.value.category == "misconfigured"
    assert caught.value.message.startswith(f"{key}: expected ")


def test_a_zone_that_no_subnet_is_in_is_named() -> None:
    rules = some_rules(
        {"image": IMAGE, "subnets": ["us-east-1a:subnet-1"]}, offerings=[{"name": "c5.large", "zone": "us-east-1b"}]
    )
    with pytest.raises(CloudError, match=r"ec2\.subnets: expected a subnet in us-east-1b"):
        frozen(rules)


def places_of(request: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the type, subnet and zone of each override of a fleet; "" for what is missing."""
    (config,) = request["parameters"]["LaunchTemplateConfigs"]
    keys = ("InstanceType", "SubnetId", "AvailabilityZone")
    return [tuple(each.get(key, "") for key in keys) for each in config["Overrides"]]


@pytest.mark.parametrize(
    ("zone", "chosen"),
    [
        (None, ["subnet-3", "subnet-1", "subnet-2"]),
        ("us-east-1a", ["subnet-3", "subnet-1"]),
        ("us-east-1b", ["subnet-3", "subnet-2"]),
        ("us-east-1c", ["subnet-3"]),
    ],
)
def test_an_offering_takes_the_subnets_of_its_zone(zone: str | None, chosen: list[str]) -> None:
    places = read_written(("us-east-1a:subnet-1", "us-east-1b:subnet-2", "subnet-3"))
    places = (*places[:2], Place(subnet="subnet-3", free=9))
    offering = some_rules(offerings=[{"name": "c5.large", "zone": zone} if zone else {"name": "c5.large"}])
    found = find_places(places, offering.pools["linux"].offerings[0])
    assert [each.subnet for each in found] == chosen


FOUR = ("subnet-1", "subnet-2", "subnet-3", "subnet-4")


def test_a_fleet_names_each_type_once_in_a_zone_in_the_subnet_with_the_most_free_addresses() -> None:
    """Source: EC2, InvalidFleetConfig "The fleet configuration contains duplicate instance pools"."""
    places = (
        Place(subnet="subnet-1", zone="us-east-1a", free=3),
        Place(subnet="subnet-2", zone="us-east-1b", free=250),
        Place(subnet="subnet-3", zone="us-east-1a", free=100),
        # A subnet that EC2 does not describe is a place of its own.
        Place(subnet="subnet-4"),
    )
    wanted = [
        ("c5.large", "subnet-2", "us-east-1b"),
        ("c5.large", "subnet-3", "us-east-1a"),
        ("c5.large", "subnet-4", ""),
    ]
    for ec2 in (TEMPLATE, {"image": IMAGE}):
        rules = some_rules({**ec2, "subnets": FOUR})
        assert places_of(frozen(rules, places=places)) == wanted
        assert places_of(freeze_request(a_batch("c5.large", places=places), rules, "blue", "us-east-1")) == wanted


def test_without_an_answer_of_ec2_the_written_zone_of_a_subnet_counts() -> None:
    rules = some_rules({**TEMPLATE, "subnets": ["us-east-1a:subnet-1", "us-east-1a:subnet-2", "us-east-1b:subnet-3"]})
    assert [place[1] for place in places_of(frozen(rules))] == ["subnet-1", "subnet-3"]


OFFERINGS = {
    "two offerings of one type": ([{}, {"labels": {"a": "b"}}], [("c5.large", "")]),
    "one of them in a zone": ([{}, {"zone": "us-east-1a"}], [("c5.large", "")]),
    "first the one in a zone": ([{"zone": "us-east-1a"}, {}], [("c5.large", "us-east-1a")]),
    "each in a zone": (
        [{"zone": "us-east-1a"}, {"zone": "us-east-1b"}],
        [("c5.large", "us-east-1a"), ("c5.large", "us-east-1b")],
    ),
    "another type": ([{}, {"type": "m5.large"}], [("c5.large", ""), ("m5.large", "")]),
}


@pytest.mark.parametrize(("offerings", "wanted"), OFFERINGS.values(), ids=OFFERINGS)
def test_a_type_in_two_offerings_stands_once_in_a_fleet(
    offerings: list[dict[str, Any]], wanted: list[tuple[str, str]]
) -> None:
    named = [{"type": "c5.large", **each, "name": f"o{number}"} for number, each in enumerate(offerings)]
    request = freeze_request(a_batch("o0", "o1"), some_rules(offerings=named), "blue", "us-east-1")
    assert [(kind, zone) for kind, _, zone in places_of(request)] == wanted
    assert sum(map(len, request["offerings"].values())) == len(wanted)


@pytest.mark.parametrize(
    ("held", "chosen"),
    [
        ((), ["subnet-1", "subnet-3"]),
        (["subnet-1"], ["subnet-2", "subnet-3"]),
        (["us-east-1a"], ["subnet-3"]),
        (["us-east-1a", "subnet-3"], ["subnet-1", "subnet-3"]),
    ],
)
def test_a_held_place_is_left_out_unless_no_other_is_left(held: list[str], chosen: list[str]) -> None:
    rules = some_rules({**TEMPLATE, "subnets": ["us-east-1a:subnet-1", "us-east-1a:subnet-2", "us-east-1b:subnet-3"]})
    assert [place[1] for place in places_of(frozen(rules, held_places=held))] == chosen
    batch = freeze_request(a_batch("c5.large", held_places=held), rules, "blue", "us-east-1")
    assert [place[1] for place in places_of(batch)] == chosen


def test_a_single_launch_tries_all_places_and_keeps_its_tags_and_user_data() -> None:
    rules = some_rules({"image": IMAGE, "subnets": ["subnet-1", "subnet-2"], "user_data": "I am ${slot}"})
    request = frozen(rules)
    (config,) = request["parameters"]["LaunchTemplateConfigs"]
    assert request["api"] == "CreateFleet"
    assert config["LaunchTemplateSpecification"] == {
        "LaunchTemplateName": request["template"]["LaunchTemplateName"],
        "Version": "1",
        "LaunchTemplateSpecificationUserData": base64.b64encode(b"I am linux-1").decode(),
    }
    assert [place[1] for place in places_of(request)] == ["subnet-1", "subnet-2"]
    tags = {tag["Key"]: tag["Value"] for tag in request["parameters"]["TagSpecifications"][0]["Tags"]}
    assert (tags["leasehold:slot"], tags["leasehold:launch"]) == ("linux-1", "launch-1")


TOKEN = make_join_token(b"k" * 32, "c-1", "launch-1")


@pytest.mark.parametrize(("ec2", "api"), [({"image": IMAGE}, "RunInstances"), (TEMPLATE, "CreateFleet")])
def test_a_join_token_takes_its_place_when_the_request_is_sent(ec2: dict[str, Any], api: str) -> None:
    script = "token=${join_token} é ${cluster_id}"
    request = frozen(some_rules({**ec2, "user_data": script}, agent=True), cluster_id="c-1")
    assert request["api"] == api
    assert fill_join_token(request) is request
    before = json.dumps(request)
    assert TOKEN not in before
    assert read_user_data(request) == f"token={TOKEN_PLACE} é c-1"
    filled = fill_join_token({**request, JOIN_TOKEN: TOKEN})
    assert read_user_data(filled) == f"token={TOKEN} é c-1"
    # The stored request stays as it is, and nothing but the user data differs.
    assert json.dumps(request) == before
    assert len(json.dumps(filled["parameters"])) == len(json.dumps(request["parameters"]))


def read_user_data(request: Mapping[str, Any]) -> str:
    parameters = request["parameters"]
    if "UserData" in parameters:
        return str(parameters["UserData"])
    (config,) = parameters["LaunchTemplateConfigs"]
    found = config["LaunchTemplateSpecification"]["LaunchTemplateSpecificationUserData"]
    return base64.b64decode(found).decode()


def test_a_pool_with_a_profile_has_no_place_for_a_token() -> None:
    script = {"user_data": "token=${join_token}"}
    rules = some_rules({"image": IMAGE, "instance_profile": "machine", **script}, agent=True)
    assert read_user_data(frozen(rules)) == "token="
    assert read_user_data(frozen(some_rules({"image": IMAGE, **script}))) == "token="


def test_a_client_token_is_short_ascii_and_its_own_for_each_generation() -> None:
    ids = ["launch-1", "x" * 64, "x" * 63 + "y", "müll"]
    tokens = [client_token(launch, generation) for launch in ids for generation in (1, 2)]
    assert all(len(token) <= 64 and token.isascii() for token in tokens)
    assert len(set(tokens)) == len(tokens)
    assert client_token("launch-1", 1) == "launch-1.1"


def test_an_offering_that_stands_twice_is_found_by_its_key() -> None:
    offerings = [{"name": "c5.large"}, {"name": "c5.large", "market": "on-demand"}]
    rules = read_rules(
        {"pools": {"linux": {"system": "x", "max_slots": 1, "offerings": offerings, "ec2": {"image": IMAGE}}}}
    )
    assert "InstanceMarketOptions" in frozen(rules, offering="c5.large/spot")["parameters"]
    assert "InstanceMarketOptions" not in frozen(rules, offering="c5.large/on-demand")["parameters"]


HOPS = [
    # (the pool's settings, the hop limit of the request; None: the launch template's options hold)
    ({"image": IMAGE}, 1),
    ({"image": IMAGE, "metadata_hop_limit": 2}, 2),
    (TEMPLATE, None),
    ({**TEMPLATE, "metadata_hop_limit": 3}, 3),
]


@pytest.mark.parametrize(("ec2", "hops"), HOPS)
def test_metadata_options_are_those_of_the_users_template_unless_the_pool_sets_a_hop_limit(
    ec2: dict[str, Any], hops: int | None
) -> None:
    request = freeze_request(a_batch("c5.large"), some_rules(ec2), "blue", "us-east-1")
    (config,) = request["parameters"]["LaunchTemplateConfigs"]
    wanted = None if hops is None else {
        "HttpTokens": "required", "HttpPutResponseHopLimit": hops, "HttpEndpoint": "enabled"
    }  # fmt: skip
    assert [each.get("MetadataOptions") for each in config["Overrides"]] == [wanted]
    if request["template"]:
        assert request["template"]["LaunchTemplateData"]["MetadataOptions"] == wanted


@pytest.mark.parametrize(
    ("ec2", "device"),
    [
        ({"image": IMAGE, "volume_gib": 40}, "/dev/sda1"),
        ({"image": IMAGE, "volume_gib": 40, "root_device": "/dev/xvdb"}, "/dev/xvdb"),
        ({**TEMPLATE, "volume_gib": 40, "root_device": "/dev/xvdb"}, "/dev/xvdb"),
        # The device is not known.
        ({"image": "ami-9", "volume_gib": 40}, "/dev/xvda"),
    ],
)
def test_the_size_of_a_volume_is_that_of_the_root_device(ec2: dict[str, Any], device: str) -> None:
    rules = with_images(some_rules(ec2), {f"root:{IMAGE}": "/dev/sda1"})
    request = freeze_request(a_batch("c5.large"), rules, "blue", "us-east-1")
    (override,) = request["parameters"]["LaunchTemplateConfigs"][0]["Overrides"]
    (mapping,) = override["BlockDeviceMappings"]
    assert (mapping["DeviceName"], mapping["Ebs"]["VolumeSize"]) == (device, 40)
