"""Read prices from a file: AWS's price list of EC2 (JSON or CSV), or a simple list of rows (JSON or CSV).

A simple row has the keys type, zone or region, market and price. If a value is missing, the whole file is refused with
one fault that names the place in the file.
"""

import csv
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from scheduler.model.input_texts import parse_json
from scheduler.model.market import Price, Source
from scheduler.model.slots import Market
from scheduler.model.validation import (
    Before,
    Document,
    Fault,
    InvalidInputError,
    Name,
    conflicts,
    expected,
    fault,
    is_number,
    read_document,
    show,
)
from scheduler.protocol.input_files import open_input
from workers.settings import LINUX

_COLUMNS: Final = "the columns type, zone or region, market and price"
CURRENCY: Final = "USD"
FAMILIES: Final = frozenset({"Compute Instance", "Compute Instance (bare metal)"})
SYSTEMS: Final = {
    LINUX: {"operatingSystem": "Linux"},
    "Red Hat Enterprise Linux": {"operatingSystem": "RHEL"},
    "SUSE Linux": {"operatingSystem": "SUSE"},
    # AWS also lists Windows with licences that the customer brings.
    "Windows": {"operatingSystem": "Windows", "licenseModel": "No License required"},
}
"""Product, as `market.product` names it -> its attributes in AWS's price list."""
_PLAIN: Final = {"tenancy": "Shared", "preInstalledSw": "NA", "capacitystatus": "Used"}
"""Attribute of a product in AWS's price list -> its value for a plain instance on shared hardware."""
_CSV_NAMES: Final = {
    "licenseModel": "License Model",
    "operatingSystem": "Operating System",
    "tenancy": "Tenancy",
    "preInstalledSw": "Pre Installed S/W",
    "capacitystatus": "CapacityStatus",
}
_HEAD_LINES: Final = 20
"""How many lines at the begin of an AWS price list in CSV are searched for the line of column names."""


def _positive(value: object) -> float:
    if not is_number(value) or value <= 0:
        raise expected("a number > 0")
    return float(value)


def _market(value: object) -> object:
    return "on-demand" if value == "on_demand" else value


class PriceRow(Document):
    """One row of a simple price file: a price of one instance type in one market, in a zone or in all zones of a
    region.
    """

    type: Name
    """EC2 instance type."""
    zone: Name | None = None
    """Availability zone in which the price holds."""
    region: Name | None = None
    """Region in whose zones the price holds. A row has either a zone or a region."""
    market: Annotated[Market, Before(_market)]
    """Market: `spot` or `on-demand`."""
    price: Annotated[float, Before(_positive)]
    """Dollars per hour."""

    def check_fields(self) -> None:
        """Refuse a row without exactly one of zone and region. Raises ExpectedError."""
        if (self.zone is None) == (self.region is None):
            raise conflicts([Fault("zone", "either a zone or a region", "neither" if self.zone is None else "both")])


class _Found(NamedTuple):
    """A price that a file contains. `place`: its place in the file, which a fault about the price names. `location`: a
    zone or a region.
    """

    place: str
    type: str
    location: str
    market: Market
    price: float


def read_prices(path: Path, *, region: str | None, seen_at: float, product: str = LINUX) -> list[Price]:
    """Return the prices of a file that hold in `region`; None: the file must have prices of one region only. `seen_at`:
    the time that is recorded with the prices. `product`: which prices of AWS's price list are read, as
    `market.product`.

    Raises InvalidInputError with one fault for a file that cannot be read, a missing value, two different prices for
    the same instance type, zone and market, or no price.
    """
    try:
        source, found = _read(path, list_wanted(product))
        rows = [*found]
    except (OSError, UnicodeDecodeError) as error:
        raise fault(str(path), "a file that can be read", getattr(error, "strerror", None) or "no UTF-8") from None
    region = region or _find_region(path, rows)
    prices: dict[tuple[str, str, str], Price] = {}
    for row in rows:
        if _region_of(row.location) != region:
            continue
        price = Price(
            type=row.type, zone=row.location, market=row.market, price=row.price, seen_at=seen_at, source=source
        )
        known = prices.setdefault(price.key, price)
        if known.price != price.price:
            raise fault(
                f"{path}, {row.place}", f"the earlier price of {' '.join(price.key)} ({known.price:g})", row.price
            )
    if not prices:
        raise fault(str(path), f"at least one price in {region or 'a region'}", "none")
    return [prices[key] for key in sorted(prices)]


def _region_of(location: str) -> str:
    return location[:-1] if location[-1:].isalpha() else location


def _find_region(path: Path, rows: Iterable[_Found]) -> str | None:
    names = sorted({_region_of(row.location) for row in rows})
    if len(names) > 1:
        raise fault(str(path), "prices of one region only, or the option --region", ", ".join(names[:5]))
    return names[0] if names else None


def list_wanted(product: str) -> dict[str, str]:
    """Return the attributes that plain instances of a product have in AWS's price list. Only prices of products with
    all of these values are read.
    """
    return SYSTEMS[product] | _PLAIN


def _read(path: Path, wanted: Mapping[str, str]) -> tuple[Source, Iterable[_Found]]:
    with open(path, encoding="utf-8-sig", opener=open_input) as file:
        head = file.read(1000).lstrip()
    if "\0" in head:
        # A device without end has no first line either.
        raise fault(str(path), "a text in UTF-8", "binary data")
    if head.startswith(("{", "[")):
        data = path.read_bytes()
        if b'"offerCode"' in data[:100_000] or b'"products"' in data[:100_000]:
            return "price-list", _read_aws_json(path, data, wanted)
        return "file", _read_json(path, data)
    is_aws = head.startswith(('"FormatVersion"', "FormatVersion"))
    return ("price-list", _read_aws_csv(path, wanted)) if is_aws else ("file", _read_csv(path))


def _read_json(path: Path, data: bytes) -> Iterator[_Found]:
    try:
        document = parse_json(data.decode("utf-8-sig"))
    except ValueError as error:
        raise fault(str(path), "valid JSON", str(error)) from None
    rows = document.get("prices") if isinstance(document, dict) else document
    if not isinstance(rows, list):
        raise fault(f"{path}, prices", "a list of prices", document)
    for index, row in enumerate(rows):
        yield _read_row(path, f"prices[{index}]", ".", row)


def _read_csv(path: Path) -> Iterator[_Found]:
    with open(path, encoding="utf-8-sig", newline="", opener=open_input) as file:
        reader = csv.DictReader(file, skipinitialspace=True)
        names = [str(name).strip() for name in reader.fieldnames or ()]
        if not {"type", "market", "price"} <= {*names} or not {"zone", "region"} & {*names}:
            raise fault(f"{path}, line 1", _COLUMNS, ",".join(names))
        reader.fieldnames = names
        for row in reader:
            given: dict[str, Any] = {str(key): text.strip() for key, text in row.items() if isinstance(text, str)}
            filled = {key: text for key, text in given.items() if text}
            if "price" in filled:
                filled["price"] = _read_number(filled["price"])
            yield _read_row(path, f"line {reader.line_num}", ", ", filled)


def _read_number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _read_row(path: Path, place: str, separator: str, row: object) -> _Found:
    try:
        read = read_document(PriceRow, row)
    except InvalidInputError as error:
        first = error.faults[0]
        inner = "" if first.path == "." else f"{separator}{first.path}"
        raise InvalidInputError([Fault(f"{path}, {place}{inner}", first.expected, first.got)]) from None
    return _Found(place, read.type, read.zone or read.region or "", read.market, read.price)


class Product(msgspec.Struct):
    """A product of AWS's price list."""

    attributes: dict[str, str]
    productFamily: str = ""  # noqa: N815 - AWS's name


class Dimension(msgspec.Struct):
    """One price in a Term of AWS's price list, with its unit."""

    pricePerUnit: dict[str, str]  # noqa: N815 - AWS's name
    unit: str = ""


class Term(msgspec.Struct):
    """The prices of a product of AWS's price list under one condition of sale, such as on demand."""

    priceDimensions: dict[str, Dimension]  # noqa: N815 - AWS's name


class _OnDemand(msgspec.Struct):
    OnDemand: dict[str, dict[str, Term]] = {}


class _Offer(msgspec.Struct):
    """The parts of AWS's price list that are read. Its other parts, which are large, are skipped."""

    products: dict[str, Product]
    terms: _OnDemand


def _read_aws_json(path: Path, data: bytes, wanted: Mapping[str, str]) -> Iterator[_Found]:
    try:
        offer = msgspec.json.decode(data, type=_Offer)
    except (msgspec.DecodeError, RecursionError) as error:
        text = "the values are nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise fault(str(path), "AWS's price list of EC2", text) from None
    for sku, product in offer.products.items():
        if not is_wanted(product, wanted):
            continue
        place = f"terms.OnDemand.{sku}"
        prices = [*list_hourly(offer.terms.OnDemand.get(sku, {}))]
        yield _make_found(
            path,
            place,
            product.attributes.get("instanceType"),
            product.attributes.get("regionCode"),
            prices[0] if prices else None,
        )


def is_wanted(product: Product, wanted: Mapping[str, str]) -> bool:
    """Return whether a product is a plain instance with the attributes in `wanted`, see `list_wanted`."""
    is_plain = all(product.attributes.get(name) == value for name, value in wanted.items())
    return is_plain and product.productFamily in FAMILIES


def list_hourly(terms: Mapping[str, Term], unit: str = "Hrs") -> Iterator[str | None]:
    """Yield the prices of a product per `unit` as texts; None in place of a price in another currency than CURRENCY."""
    for term in terms.values():
        for dimension in term.priceDimensions.values():
            if dimension.unit == unit:
                yield dimension.pricePerUnit.get(CURRENCY)


def _read_aws_csv(path: Path, wanted: Mapping[str, str]) -> Iterator[_Found]:
    with open(path, encoding="utf-8-sig", newline="", opener=open_input) as file:
        rows = csv.reader(file)
        names = next((row for row, _ in zip(rows, range(_HEAD_LINES), strict=False) if row[:1] == ["SKU"]), None)
        if names is None:
            raise fault(str(path), "AWS's price list of EC2 with its line of column names (SKU, …)", "none")
        for values in rows:
            row = dict(zip(names, values, strict=False))
            is_plain = all(row.get(_CSV_NAMES[name]) == value for name, value in wanted.items())
            if not is_plain or row.get("TermType") != "OnDemand" or row.get("Product Family") not in FAMILIES:
                continue
            price = row.get("PricePerUnit") if row.get("Currency") == CURRENCY else None
            yield _make_found(path, f"line {rows.line_num}", row.get("Instance Type"), row.get("Region Code"), price)


def _make_found(path: Path, place: str, kind: str | None, region: str | None, price: str | None) -> _Found:
    """Return a price of AWS's list. Raises InvalidInputError if its type, region or price is missing."""
    amount = _read_number(price or "")
    if not kind or not region:
        raise fault(f"{path}, {place}", "an instance type and a region", show([kind, region]))
    if not is_number(amount) or amount <= 0:
        raise fault(f"{path}, {place}", f"a price of {kind} in {CURRENCY} per hour", price)
    return _Found(place, kind, region, "on-demand", float(amount))
