"""AWS's Pricing API in the emulator, as far as on-demand prices of EC2 need it: GetProducts with filters, page by page,
for instances, gp3 volumes and public IPv4 addresses.

The emulator invents the prices (`spot_prices.find_on_demand_price`). The answers have the format of AWS.
"""

import json
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS
from werkzeug.wrappers import Response

from leasehold_emulator.calls import Call
from leasehold_emulator.spot_prices import A_GB_MONTH, AN_ADDRESS, find_on_demand_price
from scheduler.model.input_texts import parse_json

SERVICE: Final = "pricing"
ACTION: Final = "GetProducts"
EC2, VPC = "AmazonEC2", "AmazonVPC"
MOST_RESULTS: Final = 100
_KIND: Final = "application/x-amz-json-1.1"
_TERM, _RATE = "JRTCKXETXF", "6YS6EN2CT7"
"""AWS's codes of the on-demand term and of its rate."""
_PLAIN: Final = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
    "licenseModel": "No License required",
    "marketoption": "OnDemand",
}


def read_price_call(target: str, region: str, body: bytes) -> Call:
    """Return a request to the Pricing API as a Call. Each filter of the request becomes a parameter of the Call: the
    field of the filter -> the value of the filter.
    """
    action = target.rpartition(".")[2]
    try:
        document: Any = parse_json(body.decode())
    except ValueError:
        document = {}
    given = document if isinstance(document, dict) else {}
    filters = {str(each.get("Field")): str(each.get("Value")) for each in given.get("Filters", ())}
    paging = {key: str(given[key]) for key in ("MaxResults", "NextToken", "ServiceCode") if key in given}
    return Call(action=action, region=region, parameters=filters | paging, invocation=None)


def answer_products(call: Call) -> Response:
    """Return the page of products that a call requests. The pages contain the products that match the filters of the
    call.
    """
    wanted = {key: value for key, value in call.parameters.items() if key not in {"MaxResults", "NextToken"}}
    service = wanted.pop("ServiceCode", "")
    if call.action != ACTION or service not in {EC2, VPC}:
        return answer_price_error("InvalidParameterException", f"expected GetProducts of {EC2} or {VPC}", 400)
    known: Any = INSTANCE_TYPE_OFFERINGS["region"]
    regions = {wanted["regionCode"]} & {*known} if "regionCode" in wanted else {*known}
    products = _make_products if service == EC2 else _make_addresses
    found = (
        product
        for region in sorted(regions)
        for product in products(region, wanted.get("instanceType"))
        if _matches(product, wanted)
    )
    first = int(call.parameters.get("NextToken", "0"))
    most = min(MOST_RESULTS, int(call.parameters.get("MaxResults", MOST_RESULTS)))
    listed = [*islice(found, first, first + most + 1)]
    page: dict[str, Any] = {"FormatVersion": "aws_v1", "PriceList": [*map(json.dumps, listed[:most])]}
    if len(listed) > most:
        page["NextToken"] = str(first + most)
    return Response(json.dumps(page), content_type=_KIND)


def answer_price_error(code: str, message: str, status: int) -> Response:
    """Return the HTTP answer by which the Pricing API reports an error."""
    return Response(json.dumps({"__type": code, "Message": message}), status=status, content_type=_KIND)


def _matches(product: dict[str, Any], wanted: dict[str, str]) -> bool:
    attributes = product["product"]["attributes"]
    return all(attributes.get(field) == value for field, value in wanted.items())


def _make_products(region: str, only: str | None) -> Iterator[dict[str, Any]]:
    """Yield the products of EC2 in a region: instances, and a GB of a gp3 volume with its throughput. `only`: the
    instance type to which the instances are limited.
    """
    for kind in sorted({each["InstanceType"] for each in INSTANCE_TYPE_OFFERINGS["region"][region]}):
        if only in {None, kind}:
            described = f"per On Demand Linux {kind} Instance Hour"
            given = {"instanceType": kind, **_PLAIN}
            yield _make_product(kind, region, "Compute Instance", given, find_on_demand_price(kind), "Hrs", described)
    for usage, family, price, unit in (
        ("EBS:VolumeUsage.gp3", "Storage", A_GB_MONTH, "GB-Mo"),
        ("EBS:VolumeP-Throughput.gp3", "Provisioned Throughput", A_GB_MONTH / 2, "GiBps-mo"),
    ):
        given = {"volumeApiName": "gp3", "usagetype": f"{region}-{usage}"}
        yield _make_product(usage, region, family, given, price, unit, f"per {unit} of gp3")


def _make_addresses(region: str, _: str | None) -> Iterator[dict[str, Any]]:
    """Yield the products of VPC in a region: an hour of a public IPv4 address, in use and idle."""
    for state in ("InUse", "Idle"):
        usage = f"PublicIPv4:{state}Address"
        given = {"group": "VPCPublicIPv4Address", "usagetype": f"{region}-{usage}"}
        yield _make_product(usage, region, None, given, AN_ADDRESS, "Hrs", f"per {state} public IPv4 address per hour")


def _make_product(
    name: str, region: str, family: str | None, attributes: dict[str, str], dollars: float, unit: str, described: str
) -> dict[str, Any]:
    """Return a product with one price, as the Pricing API returns it. `family` None: AWS gives the product none."""
    sku = re.sub(r"\W", "", f"{name}{region}".upper())
    service = VPC if family is None else EC2
    name = f"{sku}.{_TERM}"
    price = f"{dollars:.10f}"
    rate = {
        "unit": unit,
        "rateCode": f"{name}.{_RATE}",
        "description": f"${price} {described}",
        "beginRange": "0",
        "endRange": "Inf",
        "appliesTo": [],
        "pricePerUnit": {"USD": price},
    }
    term = {"sku": sku, "offerTermCode": _TERM, "termAttributes": {}, "priceDimensions": {rate["rateCode"]: rate}}
    return {
        "product": {
            "sku": sku,
            **({} if family is None else {"productFamily": family}),
            "attributes": {"servicecode": service, "regionCode": region, **attributes},
        },
        "serviceCode": service,
        "terms": {"OnDemand": {name: term}},
    }
