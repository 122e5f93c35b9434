"""The catalogue and the spot prices of EC2, read from the emulator by boto3 over HTTP."""

from typing import TYPE_CHECKING, Final

import pytest

from scheduler.model.market import InstanceType, Price
from scheduler.ports import CloudError
from tests.builders import NOW
from tests.ec2.conftest import Emulator
from workers.ec2.clients import Ec2Access
from workers.ec2.market import Ec2Market, make_market, read_type
from workers.ec2.permissions import Permissions

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

ZONES: Final = ("us-east-1a", "us-east-1b")


@pytest.fixture(scope="module")
def market_of_all_tests(access: Ec2Access) -> Ec2Market:
    return make_market(access)


@pytest.fixture
def market(market_of_all_tests: Ec2Market, emulator: Emulator) -> Ec2Market:
    return market_of_all_tests


def test_the_catalogue_has_the_facts_about_each_type(market: Ec2Market) -> None:
    found = {each.name: each for each in market.read_types(NOW)}
    assert len(found) > 500
    assert found["m5d.xlarge"] == InstanceType(
        name="m5d.xlarge",
        cpus=4.0,
        memory_mib=16384.0,
        architectures=("x86_64",),
        local_disk_gib=139.7,
        zones=found["m5d.xlarge"].zones,
        seen_at=NOW,
    )
    assert set(ZONES) <= set(found["m5d.xlarge"].zones)
    gpu, arm, metal = found["g4dn.12xlarge"], found["c7g.large"], found["m5.metal"]
    assert (gpu.accelerators, gpu.accelerator, gpu.gpus) == (4, "T4", 4)
    assert gpu.resources == {"cpus": 48.0, "memory_mib": 196608.0, "accelerators": 4.0, "gpus": 4.0}
    others = [found[name] for name in ("inf1.6xlarge", "f2.12xlarge")]
    counts = [(each.accelerators, each.gpus, each.neurons, each.fpgas) for each in others]
    assert counts == [(4, 0, 4, 0), (2, 0, 0, 2)]
    assert found["g6f.xlarge"].accelerators == 1  # a part of a GPU
    assert arm.architectures == ("arm64",)
    assert metal.is_bare_metal
    assert not found["m1.small"].is_current
    assert found["t2.micro"].architectures == ("x86_64", "i386")


def test_spot_prices_are_read_for_the_given_types_and_zones(market: Ec2Market, emulator: Emulator) -> None:
    emulator.steer(spot_prices={"fixed": [{"type": "m5.large", "price": 0.04}, {"type": "c5.large", "price": 0.03}]})
    found = market.read_spot_prices(["m5.large", "c5.large"], ZONES, NOW)
    wanted = {("m5.large", zone): 0.04 for zone in ZONES} | {("c5.large", zone): 0.03 for zone in ZONES}
    assert {(each.type, each.zone): each.price for each in found} == wanted
    assert found[0] == Price(
        type="c5.large", zone=ZONES[0], market="spot", price=0.03, seen_at=NOW, source="spot-history"
    )
    everywhere = market.read_spot_prices(["m5.large"], (), NOW)
    assert {each.zone for each in everywhere} > set(ZONES)


def test_prices_of_many_types_are_read_in_batches_and_pages(access: Ec2Access, emulator: Emulator) -> None:
    market = make_market(access)
    names = [each.name for each in market.read_types(NOW) if "spot" in each.markets][:250]
    emulator.ask("POST", "reset")
    found = market.read_spot_prices(names, (), NOW)
    assert {each.type for each in found} == set(names)
    assert len({each.key for each in found}) == len(found) > 1000
    assert len(emulator.calls("DescribeSpotPriceHistory")) == 3


def test_a_page_of_prices_names_the_next_one(client: "EC2Client", emulator: Emulator) -> None:
    pages = client.get_paginator("describe_spot_price_history").paginate(
        InstanceTypes=["m5.large"], ProductDescriptions=["Linux/UNIX"], PaginationConfig={"PageSize": 2}
    )
    sizes = [len(page["SpotPriceHistory"]) for page in pages]
    assert max(sizes) == 2
    assert sum(sizes) == len(client.describe_spot_price_history(InstanceTypes=["m5.large"])["SpotPriceHistory"]) > 2


def test_a_refused_call_is_an_error_of_the_cloud(market: Ec2Market, emulator: Emulator) -> None:
    emulator.set_fault(code="UnauthorizedOperation", action="DescribeSpotPriceHistory")
    with pytest.raises(CloudError) as found:
        market.read_spot_prices(["m5.large"], ZONES, NOW)
    assert found.value.category == "auth"


@pytest.mark.parametrize(
    "action", ["DescribeInstanceTypes", "DescribeInstanceTypeOfferings", "DescribeSpotPriceHistory"]
)
def test_the_doctor_tries_each_call(access: Ec2Access, emulator: Emulator, action: str) -> None:
    permissions = Permissions(access, 10.0)
    permissions.look_at_market()
    assert len(emulator.calls(action)) == 1
    emulator.set_fault(code="UnauthorizedOperation", action=action)
    with pytest.raises(CloudError, match="UnauthorizedOperation"):
        permissions.look_at_market()


def test_the_catalogue_comes_page_by_page(market: Ec2Market, emulator: Emulator) -> None:
    found = market.read_types(NOW)
    assert len({each.name for each in found}) == len(found)
    assert len(emulator.calls("DescribeInstanceTypes")) > 10
    assert len(emulator.calls("DescribeInstanceTypeOfferings")) > 5


def test_the_catalogue_may_be_a_part_of_the_types(market: Ec2Market, emulator: Emulator) -> None:
    emulator.steer(instance_types=["m5dn.*large", "t3.nano"])
    found = market.read_types(NOW)
    assert {each.family for each in found} == {"m5dn", "t3"}
    assert all(set(ZONES) & set(each.zones) for each in found)


def test_the_control_api_gives_on_demand_prices(emulator: Emulator) -> None:
    status, answer = emulator.ask("GET", "prices")
    rows = {row["type"]: row for row in answer["prices"]}
    assert status == 200
    assert rows["m5.large"] == {"type": "m5.large", "region": "us-east-1", "market": "on-demand", "price": 0.096}
    assert emulator.ask("GET", "prices?region=nowhere")[1] == {"prices": []}


def test_an_inference_device_of_another_maker_is_an_accelerator_and_no_neuron() -> None:
    answer = {
        "InstanceType": "dl2q.24xlarge",
        "VCpuInfo": {"DefaultVCpus": 96},
        "MemoryInfo": {"SizeInMiB": 786432},
        "ProcessorInfo": {"SupportedArchitectures": ["x86_64"]},
        "InferenceAcceleratorInfo": {"Accelerators": [{"Count": 8, "Name": "Qualcomm AI100"}]},
    }
    found = read_type(answer, ["us-east-1a"], NOW)
    assert (found.accelerators, found.accelerator, found.neurons) == (8, "Qualcomm AI100", 0)
