"""Read on-demand prices of EC2 from AWS's price list by the Pricing API: plain instances on shared hardware, as
`workers/price_files.py` reads them from a file, and what machines have beside: volumes and public addresses. No price
is invented.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from scheduler.model.market import ADDRESS, VOLUME, Price
from scheduler.model.pools import HOURS_OF_MONTH
from scheduler.ports import CloudError
from workers.ec2.clients import CONNECT_SECONDS, READ_SECONDS, Ec2Access, open_client
from workers.ec2.errors import cloud_errors
from workers.price_files import Product, Term, is_wanted, list_hourly, list_wanted
from workers.settings import LINUX

if TYPE_CHECKING:
    from mypy_boto3_pricing import PricingClient

SERVICE: Final = "AmazonEC2"
_USAGE: Final = "usagetype"
HOME: Final = "us-east-1"
"""The region whose endpoint of the Pricing API is called. It has the prices of all regions."""


class _Extra(NamedTuple):
    """Products of AWS's price list that are no instances. `usage`: the end of their usage type, which begins with the
    region's code in most regions. `hours`: the hours of one `unit`.
    """

    service: str
    usage: str
    unit: str
    hours: int
    filters: Mapping[str, str] = {}


_EXTRAS: Final = {
    VOLUME: _Extra(SERVICE, "EBS:VolumeUsage.gp3", "GB-Mo", HOURS_OF_MONTH, {"volumeApiName": "gp3"}),
    ADDRESS: _Extra("AmazonVPC", "PublicIPv4:InUseAddress", "Hrs", 1),
}


class _Terms(msgspec.Struct):
    OnDemand: dict[str, Term] = {}


class _Entry(msgspec.Struct):
    """One product in an answer of the Pricing API, with the parts that are read."""

    product: Product
    terms: _Terms


def open_price_list(access: Ec2Access, seconds: float | None = None, attempts: int | None = None) -> "PricingClient":
    """Return a client of the Pricing API with these credentials, time limits and number of attempts. Raises CloudError
    if boto3 cannot make one.
    """
    at_home = msgspec.structs.replace(access, region=HOME)
    limits = {} if attempts is None else {"attempts": attempts}
    client: PricingClient = open_client(
        "pricing", at_home, seconds or READ_SECONDS, connect_seconds=seconds or CONNECT_SECONDS, **limits
    )
    return client


def read_list(
    client: "PricingClient", region: str, types: Sequence[str], seen_at: float, product: str = LINUX
) -> Iterator[Price]:
    """Yield the on-demand price of each of these instance types (or of a volume or address: EXTRAS) in a region.
    `product`: as in `market.product`. A type for which the price list has no price, or several different ones, is
    omitted. Raises CloudError if a call fails.
    """
    for kind in dict.fromkeys(types):
        if extra := _EXTRAS.get(kind):
            found = {*_list_extra(client, extra, region)}
        else:
            wanted = {"instanceType": kind, "regionCode": region, **list_wanted(product)}
            products = _find_products(client, SERVICE, wanted)
            found = {price for entry in products if is_wanted(entry.product, wanted) for price in _list_prices(entry)}
        if len(found) == 1:
            yield Price(
                type=kind, zone=region, market="on-demand", price=found.pop(), seen_at=seen_at, source="pricing-api"
            )


def _list_extra(client: "PricingClient", extra: _Extra, region: str) -> Iterator[float]:
    """Yield the prices per hour of the products of `extra` in a region."""
    wanted = {"regionCode": region, **extra.filters}
    for entry in _find_products(client, extra.service, wanted):
        given = entry.product.attributes
        is_alike = all(given.get(name) == value for name, value in wanted.items())
        if is_alike and given.get(_USAGE, "").endswith(extra.usage):
            yield from (price / extra.hours for price in _list_prices(entry, extra.unit))


def _find_products(client: "PricingClient", service: str, wanted: Mapping[str, str]) -> Iterator[_Entry]:
    filters: list[Any] = [{"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in wanted.items()]
    following: dict[str, Any] = {}
    while True:
        with cloud_errors():
            page = client.get_products(ServiceCode=service, Filters=filters, **following)
        for text in page["PriceList"]:
            try:
                yield msgspec.json.decode(text, type=_Entry)
            except msgspec.DecodeError as error:
                raise CloudError("unknown", "InvalidPriceList", str(error)) from None
        if not page.get("NextToken"):
            return
        following = {"NextToken": page["NextToken"]}


def _list_prices(entry: _Entry, unit: str = "Hrs") -> Iterator[float]:
    """Yield the prices of a product per `unit`. Prices of 0 are omitted, because they belong to products that are sold
    on other conditions.
    """
    for text in list_hourly(entry.terms.OnDemand, unit):
        try:
            amount = float(text or "")
        except ValueError:
            continue
        if 0 < amount < float("inf"):
            yield amount
