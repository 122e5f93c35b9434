"""AWS's Pricing API in the emulator, as far as on-demand prices of EC2 need it: GetProducts with filters, page by page.

The emulator invents the prices (`spot_prices.find_on_demand_price`). The answers have the format of AWS.
"""

import json
from typing import Any, Final

from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS
from werkzeug.wrappers import Response

from scheduler.model.json_text import parse_json
from workers.ec2.emulator.calls import Call
from workers.ec2.emulator.spot_prices import find_on_demand_price

SERVICE: Final = "pricing"
ACTION: Final = "GetProducts"
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
    if call.action != ACTION or wanted.pop("ServiceCode", "") != "AmazonEC2":
        return answer_price_error("InvalidParameterException", "expected GetProducts of AmazonEC2", 400)
    kinds = {wanted["instanceType"]} if "instanceType" in wanted else None
    regions = [wanted["regionCode"]] if "regionCode" in wanted else sorted(INSTANCE_TYPE_OFFERINGS["region"])
    found = [
        product
        for region in regions
        for kind in sorted({each["InstanceType"] for each in INSTANCE_TYPE_OFFERINGS["region"].get(region, ())})
        if kinds is None or kind in kinds
        if _matches(product := _make_product(kind, region), wanted)
    ]
    first = int(call.parameters.get("NextToken", "0"))
    most = min(MOST_RESULTS, int(call.parameters.get("MaxResults", MOST_RESULTS)))
    page: dict[str, Any] = {"FormatVersion": "aws_v1", "PriceList": list(map(json.dumps, found[first : first + most]))}
    if len(found) > first + most:
        page["NextToken"] = str(first + most)
    return Response(json.dumps(page), content_type=_KIND)


def answer_price_error(code: str, message: str, status: int) -> Response:
    """Return the HTTP answer by which the Pricing API reports an error."""
    return Response(json.dumps({"__type": code, "Message": message}), status=status, content_type=_KIND)


def _matches(product: dict[str, Any], wanted: dict[str, str]) -> bool:
    attributes = product["product"]["attributes"]
    return all(attributes.get(field) == value for field, value in wanted.items())


def _make_product(kind: str, region: str) -> dict[str, Any]:
    sku = f"{kind}-{region}".upper().replace(".", "").replace("-", "")
    name = f"{sku}.{_TERM}"
    price = f"{find_on_demand_price(kind):.10f}"
    rate = {
        "unit": "Hrs",
        "rateCode": f"{name}.{_RATE}",
        "description": f"${price} per On Demand Linux {kind} Instance Hour",
        "beginRange": "0",
        "endRange": "Inf",
        "appliesTo": [],
        "pricePerUnit": {"USD": price},
    }
    term = {"sku": sku, "offerTermCode": _TERM, "termAttributes": {}, "priceDimensions": {rate["rateCode"]: rate}}
    return {
        "product": {
            "sku": sku,
            "productFamily": "Compute Instance",
            "attributes": {"servicecode": "AmazonEC2", "instanceType": kind, "regionCode": region, **_PLAIN},
        },
        "serviceCode": "AmazonEC2",
        "terms": {"OnDemand": {name: term}},
    }
