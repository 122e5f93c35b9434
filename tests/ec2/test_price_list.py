"""On-demand prices of AWS's price list, read from the emulator by boto3 over HTTP."""

import json
from typing import Any, Final

import pytest
from leasehold_emulator.spot_prices import A_GB_MONTH, AN_ADDRESS, find_on_demand_price

from scheduler.model.market import ADDRESS, VOLUME, Price
from scheduler.ports import CloudError
from tests.builders import NOW
from tests.ec2.conftest import REGION, Emulator
from workers.ec2.clients import Ec2Access
from workers.ec2.market import Ec2Market, make_market
from workers.ec2.permissions import Permissions
from workers.ec2.price_list import read_list

PLAIN: Final = {
    "instanceType": "m5.large",
    "regionCode": "eu-1",
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
}


@pytest.fixture
def market(access: Ec2Access, emulator: Emulator) -> Ec2Market:
    return make_market(access)


def test_prices_are_read_by_one_call_for_each_type(market: Ec2Market, emulator: Emulator) -> None:
    found = market.read_on_demand_prices(["m5.large", "c5.large", "m5.large", "x9.none"], NOW)
    assert found == [
        Price(
            type=kind,
            zone=REGION,
            market="on-demand",
            price=find_on_demand_price(kind),
            seen_at=NOW,
            source="pricing-api",
        )
        for kind in ("m5.large", "c5.large")
    ]
    assert len(emulator.calls("GetProducts")) == 3
    assert emulator.calls("GetProducts")[0]["region"] == "us-east-1"


def test_volumes_and_public_addresses_have_prices_per_hour(market: Ec2Market, emulator: Emulator) -> None:
    found = market.read_on_demand_prices([VOLUME, ADDRESS], NOW)
    assert [(each.type, each.zone, each.market) for each in found] == [
        (VOLUME, REGION, "on-demand"),
        (ADDRESS, REGION, "on-demand"),
    ]
    assert [each.price for each in found] == pytest.approx([A_GB_MONTH / 730, AN_ADDRESS])


def test_a_region_without_prices_has_none(access: Ec2Access, emulator: Emulator) -> None:
    other = Ec2Access(region="eu-none-9", endpoint_url=access.endpoint_url, access_key_id="a", secret_access_key="b")
    assert make_market(other).read_on_demand_prices(["m5.large", VOLUME, ADDRESS], NOW) == []


def test_a_refusal_is_an_error_about_permissions(market: Ec2Market, access: Ec2Access, emulator: Emulator) -> None:
    emulator.set_fault(code="AccessDeniedException", message="not authorized", action="GetProducts")
    with pytest.raises(CloudError) as caught:
        market.read_on_demand_prices(["m5.large"], NOW)
    assert (caught.value.category, caught.value.code) == ("auth", "AccessDeniedException")
    with pytest.raises(CloudError):
        Permissions(access, 5.0).look_at_prices()


def test_the_permission_is_tried_with_one_result(access: Ec2Access, emulator: Emulator) -> None:
    Permissions(access, 5.0).look_at_prices()
    assert len(emulator.calls("GetProducts")) == 1


def product(*prices: str | None, unit: str = "Hrs", **attributes: str) -> str:
    """Return a product as AWS's answer has it, with one term for each price."""
    terms = {
        f"T{number}": {"priceDimensions": {"D": {"unit": unit, "pricePerUnit": {"USD": price} if price else {}}}}
        for number, price in enumerate(prices)
    }
    table = {"productFamily": "Compute Instance", "attributes": {**PLAIN, **attributes}}
    return json.dumps({"product": table, "terms": {"OnDemand": terms}, "serviceCode": "AmazonEC2"})


class Pages:
    """A client of the Pricing API whose pages are given."""

    def __init__(self, *pages: list[str]) -> None:
        self.pages = list(pages)

    def get_products(self, NextToken: str = "0", **_: Any) -> dict[str, Any]:  # noqa: N803 - AWS's name
        following = int(NextToken) + 1
        more = {"NextToken": str(following)} if following < len(self.pages) else {}
        return {"PriceList": self.pages[int(NextToken)], **more}


@pytest.mark.parametrize(
    ("pages", "price"),
    [
        # a product that is sold on other conditions, too, with a price of 0
        ([[product("0.0960000000", "0.0000000000")]], 0.096),
        ([[], [product("0.096")]], 0.096),
        ([[product("0.096")], [product("0.096")]], 0.096),
        # no price is invented: two prices, another currency, another unit, another machine
        ([[product("0.096"), product("0.1")]], None),
        ([[product(None)]], None),
        ([[product("0.096", unit="Quantity")]], None),
        ([[product("0.096", operatingSystem="Windows")]], None),
        ([[product("0.096", tenancy="Dedicated")]], None),
        ([[product("0.096", capacitystatus="AllocatedCapacityReservation")]], None),
        ([[product("0.096", regionCode="eu-2")]], None),
        ([[product("nan"), product("inf"), product("-1"), product("free")]], None),
        ([[]], None),
    ],
)
def test_only_a_single_price_of_a_plain_machine_counts(pages: list[list[str]], price: float | None) -> None:
    client: Any = Pages(*pages)
    assert [each.price for each in read_list(client, "eu-1", ["m5.large"], NOW)] == ([] if price is None else [price])


GP3 = {"volumeApiName": "gp3", "usagetype": "EU-EBS:VolumeUsage.gp3"}
IN_USE = {"usagetype": "EU-PublicIPv4:InUseAddress"}


@pytest.mark.parametrize(
    ("kind", "products", "price"),
    [
        (VOLUME, [product("0.073", unit="GB-Mo", **GP3)], 0.0001),
        (VOLUME, [product("0.073", unit="GB-Mo", **{**GP3, "usagetype": "EBS:VolumeUsage.gp3"})], 0.0001),
        (ADDRESS, [product("0.005", **IN_USE)], 0.005),
        # no price is invented: none, two prices, another currency, unit, product or region
        (VOLUME, [], None),
        (VOLUME, [product("0.073", unit="GB-Mo", **GP3), product("0.08", unit="GB-Mo", **GP3)], None),
        (VOLUME, [product(None, unit="GB-Mo", **GP3)], None),
        (VOLUME, [product("0.073", unit="Hrs", **GP3)], None),
        (VOLUME, [product("0.005", unit="GB-Mo", **{**GP3, "usagetype": "EU-EBS:VolumeP-IOPS.gp3"})], None),
        (VOLUME, [product("0.073", unit="GB-Mo", **{**GP3, "regionCode": "eu-2"})], None),
        (ADDRESS, [product("0.005", usagetype="EU-PublicIPv4:IdleAddress")], None),
        (ADDRESS, [product("0.005")], None),
    ],
)
def test_only_a_single_price_of_a_volume_or_address_counts(kind: str, products: list[str], price: float | None) -> None:
    client: Any = Pages(products)
    found = [each.price for each in read_list(client, "eu-1", [kind], NOW)]
    assert found == pytest.approx([] if price is None else [price])


def test_an_answer_that_is_no_price_list_is_an_error() -> None:
    client: Any = Pages(["[]"])
    with pytest.raises(CloudError, match="InvalidPriceList"):
        [*read_list(client, "eu-1", ["m5.large"], NOW)]
