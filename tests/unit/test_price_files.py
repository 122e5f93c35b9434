"""Files of prices: AWS's price list and simple lists; a file with a hole is refused with one line."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from scheduler.model.market import ADDRESS, VOLUME
from scheduler.model.validation import InvalidInputError
from tests.builders import NOW
from workers.price_files import read_prices

ATTRIBUTES = {
    "instanceType": "m5.large",
    "regionCode": "eu-west-1",
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
}


def a_product(**changes: str) -> dict[str, Any]:
    return {"sku": "x", "productFamily": "Compute Instance", "attributes": {**ATTRIBUTES, **changes}}


def a_term(price: str = "0.107", currency: str = "USD", unit: str = "Hrs") -> dict[str, Any]:
    dimension = {"unit": unit, "pricePerUnit": {currency: price}, "description": "…"}
    return {"T1": {"sku": "x", "priceDimensions": {"T1.1": dimension}, "termAttributes": {}}}


def an_offer(products: dict[str, Any], terms: dict[str, Any]) -> str:
    document = {"formatVersion": "v1.0", "offerCode": "AmazonEC2", "products": products}
    return json.dumps({**document, "terms": {"OnDemand": terms, "Reserved": {"A": {}}}})


COLUMNS = (
    *("SKU", "TermType", "Unit", "PricePerUnit", "Currency", "Product Family", "Instance Type", "Region Code"),
    *("Operating System", "Tenancy", "Pre Installed S/W", "CapacityStatus"),
)
ROW = (
    *("A", "OnDemand", "Hrs", "0.107", "USD", "Compute Instance", "m5.large", "eu-west-1"),
    *("Linux", "Shared", "NA", "Used"),
)


def a_csv_offer(*rows: tuple[str, ...]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL)
    writer.writerows([("FormatVersion", "v1.0"), ("Disclaimer", "…"), ("OfferCode", "AmazonEC2"), COLUMNS, *rows])
    return text.getvalue()


def read(tmp_path: Path, text: str, name: str = "f", region: str | None = None) -> list[tuple[Any, ...]]:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    found = read_prices(path, region=region, seen_at=NOW)
    assert {each.seen_at for each in found} == {NOW}
    return [(*each.key, each.price, each.source) for each in found]


def test_a_simple_csv_has_zones_or_regions(tmp_path: Path) -> None:
    text = "market, type, price, zone, region\nspot, m5.large, 0.04, eu-1a,\non_demand, m5.large, .1,, eu-1\n"
    assert read(tmp_path, text) == [
        ("m5.large", "eu-1", "on-demand", 0.1, "file"),
        ("m5.large", "eu-1a", "spot", 0.04, "file"),
    ]


def test_a_simple_file_may_have_volumes_and_addresses(tmp_path: Path) -> None:
    text = f"type,region,market,price\n{VOLUME},eu-1,on-demand,0.0001\n{ADDRESS},eu-1,on-demand,0.005\n"
    assert [row[:4] for row in read(tmp_path, text)] == [
        (ADDRESS, "eu-1", "on-demand", 0.005),
        (VOLUME, "eu-1", "on-demand", 0.0001),
    ]


@pytest.mark.parametrize("wrap", [False, True])
def test_a_simple_json_is_a_list_or_has_one(tmp_path: Path, wrap: bool) -> None:
    rows = [{"type": "m5.large", "zone": "eu-1a", "market": "spot", "price": 1}]
    text = json.dumps({"prices": rows} if wrap else rows)
    assert read(tmp_path, text) == [("m5.large", "eu-1a", "spot", 1.0, "file")]


def test_of_awss_list_the_prices_of_plain_linux_are_taken(tmp_path: Path) -> None:
    products = {
        "A": a_product(),
        "B": a_product(operatingSystem="Windows"),
        "C": a_product(capacitystatus="UnusedCapacityReservation"),
        "D": a_product(tenancy="Dedicated"),
        "E": {"productFamily": "Storage", "attributes": ATTRIBUTES},
        "F": a_product(instanceType="c5.large"),
    }
    terms = {"A": a_term(), "F": a_term("0.091"), "B": a_term("9")}
    assert read(tmp_path, an_offer(products, terms)) == [
        ("c5.large", "eu-west-1", "on-demand", 0.091, "price-list"),
        ("m5.large", "eu-west-1", "on-demand", 0.107, "price-list"),
    ]


def test_awss_list_in_csv_gives_the_same(tmp_path: Path) -> None:
    def changed(**changes: str) -> tuple[str, ...]:
        return tuple(changes.get(name.replace(" ", "_"), value) for name, value in zip(COLUMNS, ROW, strict=True))

    rows = [ROW, changed(TermType="Reserved"), changed(Tenancy="Host"), changed(Operating_System="RHEL")]
    assert read(tmp_path, a_csv_offer(*rows)) == [("m5.large", "eu-west-1", "on-demand", 0.107, "price-list")]


def test_only_the_prices_of_the_region_are_taken(tmp_path: Path) -> None:
    text = "type,zone,market,price\nm5.large,eu-1a,spot,0.04\nm5.large,us-1a,spot,0.05\n"
    assert read(tmp_path, text, region="us-1") == [("m5.large", "us-1a", "spot", 0.05, "file")]


HEAD = "type,zone,region,market,price\n"
TOO_DEEP = "the values are nested too deeply"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 'f, line 1: expected the columns type, zone or region, market and price, got ""'),
        ("type,price\n", 'f, line 1: expected the columns type, zone or region, market and price, got "type,price"'),
        (HEAD, 'f: expected at least one price in a region, got "none"'),
        (HEAD + "m5.large,eu-1a,,spot\n", "f, line 2, price: expected a value, got nothing"),
        (HEAD + "m5.large,eu-1a,,spot,free\n", 'f, line 2, price: expected a number > 0, got "free"'),
        (HEAD + "m5.large,eu-1a,,spot,0\n", "f, line 2, price: expected a number > 0, got 0.0"),
        (HEAD + "m5.large,eu-1a,,spot,1\n,eu-1a,,spot,1\n", "f, line 3, type: expected a value, got nothing"),
        (HEAD + "m5.large,,,spot,1\n", "f, line 2, zone: expected either a zone or a region, got neither"),
        (HEAD + "m5.large,eu-1a,eu-1,spot,1\n", "f, line 2, zone: expected either a zone or a region, got both"),
        (
            HEAD + "m5.large,eu-1a,,sport,1\n",
            'f, line 2, market: expected one of spot, on-demand (did you mean "spot"?), got "sport"',
        ),
        (
            HEAD + "m5.large,eu-1a,,spot,1\nm5.large,eu-1a,,spot,2\n",
            "f, line 3: expected the earlier price of m5.large eu-1a spot (1), got 2.0",
        ),
        (
            HEAD + "m5.large,eu-1a,,spot,1\nm5.large,us-1a,,spot,2\n",
            'f: expected prices of one region only, or the option --region, got "eu-1, us-1"',
        ),
        pytest.param("[" * 100_000, f'f: expected valid JSON, got "{TOO_DEEP}"', id="deep rows"),
        pytest.param(
            '{"offerCode":' * 100_000, f'f: expected AWS\'s price list of EC2, got "{TOO_DEEP}"', id="deep price list"
        ),
        ("[1]", "f, prices[0]: expected a table, got 1"),
        ('{"prices": [{"type": "a"}]}', "f, prices[0].market: expected a value, got nothing"),
        ('{"price": []}', 'f, prices: expected a list of prices, got {"price": []}'),
        (
            an_offer({"A": a_product(), "B": a_product(instanceType="c5.large")}, {"A": a_term()}),
            "f, terms.OnDemand.B: expected a price of c5.large in USD per hour, got null",
        ),
        (
            an_offer({"A": a_product()}, {"A": a_term(currency="CNY")}),
            "f, terms.OnDemand.A: expected a price of m5.large in USD per hour, got null",
        ),
        (a_csv_offer(ROW, (*ROW[:3], "", *ROW[4:])), 'f, line 6: expected a price of m5.large in USD per hour, got ""'),
    ],
)
def test_a_fault_of_a_file_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, line: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("f").write_text(text, encoding="utf-8")
    with pytest.raises(InvalidInputError) as found:
        read_prices(Path("f"), region=None, seen_at=NOW)
    assert str(found.value) == line


def test_a_file_that_cannot_be_read_or_is_no_text_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\xff\xfe\x00")
    for name in ("f", "missing"):
        with pytest.raises(InvalidInputError) as found:
            read_prices(tmp_path / name, region=None, seen_at=NOW)
        assert len(found.value.faults) == 1


def test_the_prices_of_the_product_are_taken(tmp_path: Path) -> None:
    """AWS also lists Windows with licences that the customer brings, at the price of Linux."""
    licences = {"operatingSystem": "Windows", "licenseModel": "No License required"}
    own = {**licences, "licenseModel": "Bring your own license"}
    products = {
        "A": a_product(),
        "B": a_product(**licences),
        "C": a_product(**own),
        "D": a_product(operatingSystem="SUSE"),
    }
    terms = {name: a_term(price) for name, price in zip("ABCD", ("0.1", "0.2", "0.11", "0.3"), strict=True)}
    path = tmp_path / "offer"
    path.write_text(an_offer(products, terms), encoding="utf-8")
    found = {
        product: [each.price for each in read_prices(path, region=None, seen_at=NOW, product=product)]
        for product in ("Linux/UNIX", "Windows", "SUSE Linux")
    }
    assert found == {"Linux/UNIX": [0.1], "Windows": [0.2], "SUSE Linux": [0.3]}
