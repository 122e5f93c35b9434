"""Requirements resolved by the catalogue, and prices of the table: the offerings that a launch may choose."""

from typing import Any

import pytest

from scheduler.model.market import StoredMarket
from scheduler.model.rules import read_rules
from scheduler.model.validation import InvalidInputError
from scheduler.operations.market import MOST_TYPES, find_market_faults, resolve_rules
from scheduler.policy.scaling.offerings import list_alternatives, list_choices
from tests.operations.market import SMALL, TYPES, a_market, names, resolve, sold, some_rules
from tests.store.test_market import a_price, a_type


@pytest.mark.parametrize(
    ("require", "wanted"),
    [
        ({}, ["m5.large", "m5.xlarge"]),
        ({"cpus": {"min": 3}}, ["m5.xlarge"]),
        ({"cpus": {"max": 2}}, ["m5.large"]),
        # Both ends belong to a span.
        ({"cpus": {"min": 2, "max": 4}}, ["m5.large", "m5.xlarge"]),
        ({"memory_mib": {"min": 8193}}, ["m5.xlarge"]),
        ({"architecture": "arm64"}, ["m7g.large"]),
        ({"accelerators": {"min": 1}}, ["g5.xlarge"]),
        ({"include": ["m5.x*", "c*"]}, ["m5.xlarge"]),
        ({"include": ["m5*"], "exclude": ["*.xlarge"]}, ["m5.large"]),
        ({"exclude": ["*.large"]}, ["m5.xlarge"]),
        ({"exclude": ["m5.*"]}, []),
        ({"generation": "previous"}, []),
        ({"generation": "any"}, ["m5.large", "m5.xlarge"]),
        ({"local_disk_gib": {"min": 1}}, []),
    ],
)
def test_a_requirement_stands_for_the_types_that_meet_it(require: dict[str, Any], wanted: list[str]) -> None:
    found = [name.partition("/")[0] for name in names(resolve(some_rules(require), a_market()))]
    # A requirement that nothing meets stays, so that its pool is not taken for one without offerings.
    assert found == (wanted or ["general"])


@pytest.mark.parametrize(
    ("require", "wanted"),
    [
        ({}, ["m5.large"]),
        ({"accelerators": {"min": 1}}, ["f2.xlarge", "g6.xlarge", "inf2.xlarge"]),
        # A least number of one kind is enough: `accelerators` need not be set, too.
        ({"gpus": {"min": 1}}, ["g6.xlarge"]),
        ({"neurons": {"min": 1}}, ["inf2.xlarge"]),
        ({"fpgas": {"min": 1}}, ["f2.xlarge"]),
        ({"gpus": {"min": 2}}, []),
        ({"gpus": {"min": 1}, "accelerators": {"max": 0}}, []),
        ({"gpus": {"max": 0}}, ["m5.large"]),
        ({"gpus": {"max": 0}, "accelerators": {}}, ["f2.xlarge", "inf2.xlarge", "m5.large"]),
    ],
)
def test_each_kind_of_accelerator_is_a_requirement_of_its_own(require: dict[str, Any], wanted: list[str]) -> None:
    kinds = {"g6.xlarge": "gpus", "inf2.xlarge": "neurons", "f2.xlarge": "fpgas"}
    types = [SMALL, *(a_type(name, accelerators=1, **{kind: 1}) for name, kind in kinds.items())]
    found = resolve(some_rules(require), a_market(types=types))
    assert [name.partition("/")[0] for name in names(found)] == (wanted or ["general"])
    for offering in found.pools["linux"].offerings:
        if (kind := kinds.get(offering.instance_type)) is not None:
            assert offering.resources == {"cpus": 2.0, "memory_mib": 8192.0, "accelerators": 1.0, kind: 1.0}


def test_a_type_that_cannot_be_bought_in_the_market_or_is_bare_metal_is_not_taken() -> None:
    types = [a_type("m5.metal", is_bare_metal=True), a_type("p9.large", markets=("on-demand",)), SMALL]
    assert names(resolve(some_rules(), a_market(types=types))) == ["m5.large/spot"]
    assert names(resolve(some_rules({"bare_metal": True}), a_market(types=types))) == ["m5.large/spot", "m5.metal/spot"]
    on_demand = some_rules()
    on_demand["pools"]["linux"]["offerings"] = [{"name": "general", "market": "on-demand", "require": {}}]
    found = names(resolve(on_demand, a_market(types=types)))
    assert found == ["m5.large/on-demand", "p9.large/on-demand"]


def test_only_types_of_the_zones_of_the_pool_are_taken() -> None:
    gpus: dict[str, Any] = {"accelerators": {}}
    in_a = some_rules(gpus, ec2={"image": "ami-1", "subnets": ["eu-1a:subnet-1"]})
    assert names(resolve(in_a, a_market())) == ["m5.large/spot", "m5.xlarge/spot"]
    anywhere = some_rules(gpus, ec2={"image": "ami-1", "subnets": ["eu-1a:subnet-1", "subnet-2"]})
    assert "g5.xlarge/spot" in names(resolve(anywhere, a_market()))


def test_a_resolved_offering_has_the_resources_and_labels_of_its_type() -> None:
    document = some_rules({"accelerators": {"min": 1}})
    document["pools"]["linux"]["offerings"][0] |= {"resources": {"memory_mib": 15000}, "labels": {"disk": "ssd"}}
    (offering,) = resolve(document, a_market()).pools["linux"].offerings
    assert offering.resources == {"cpus": 4.0, "memory_mib": 15000.0, "accelerators": 1.0}
    assert offering.labels == {"architecture": "x86_64", "accelerator": "A10G", "disk": "ssd"}
    assert (offering.instance_type, offering.require) == ("g5.xlarge", None)


def test_a_machine_has_the_disk_and_the_names_of_its_type_only_if_they_are_required() -> None:
    """Otherwise few types could take the place of another one in a request for many machines."""
    market = a_market(types=[a_type("m5d.large", local_disk_gib=69.8)])
    (plain,) = resolve(some_rules(), market).pools["linux"].offerings
    assert (plain.resources, plain.labels) == ({"cpus": 2.0, "memory_mib": 8192.0}, {"architecture": "x86_64"})
    required = some_rules({"local_disk_gib": {"min": 50}, "type_labels": True})
    (named,) = resolve(required, market).pools["linux"].offerings
    assert named.resources == {"cpus": 2.0, "memory_mib": 8192.0, "local_disk_gib": 69.8}
    assert named.labels == {"architecture": "x86_64", "instance_type": "m5d.large", "instance_family": "m5d"}


def test_types_with_as_much_replace_each_other_in_a_request_for_many_machines() -> None:
    same = a_type("m6.large", local_disk_gib=118.0)
    prices = [a_price(kind, price=0.04 + 0.001 * n) for n, kind in enumerate(("m5.large", "m6.large", "m5.xlarge"))]
    pool = resolve(some_rules(), a_market(*prices, types=[*TYPES, same])).pools["linux"]
    chosen, *_ = list_choices(pool)
    keys = [each.key for each in list_alternatives(pool, chosen, ())]
    assert keys == ["m5.large/spot", "m6.large/spot", "m5.xlarge/spot"]


def test_the_lowest_price_of_the_zones_counts() -> None:
    prices = (a_price(zone="eu-1a", price=0.05), a_price(zone="eu-1b", price=0.04), a_price("m5.xlarge", price=0.03))
    assert sold(resolve(some_rules(), a_market(*prices))) == [("m5.xlarge/spot", 0.03), ("m5.large/spot", 0.04)]
    in_a = some_rules(ec2={"image": "ami-1", "subnets": ["eu-1a:subnet-1"]})
    assert sold(resolve(in_a, a_market(*prices))) == [("m5.xlarge/spot", 0.03), ("m5.large/spot", 0.05)]


def test_a_price_of_a_region_holds_in_its_zones() -> None:
    document = some_rules(ec2={"image": "ami-1", "subnets": ["eu-1a:subnet-1"]})
    assert sold(resolve(document, a_market(a_price(zone="eu-1", price=0.07)))) == [("m5.large/spot", 0.07)]
    assert sold(resolve(document, a_market(a_price(zone="eu-2", price=0.07)))) == []


def test_an_offering_without_a_price_is_not_bought_but_stays_configured() -> None:
    rules = resolve(some_rules(), a_market(a_price()))
    assert sold(rules) == [("m5.large/spot", 0.04)]
    assert list(rules.pools["linux"].offering_by_key) == ["m5.large/spot", "m5.xlarge/spot"]


def test_a_price_set_by_hand_overrides_the_table() -> None:
    document = some_rules()
    document["pools"]["linux"]["offerings"][0]["price"] = 0.5
    assert sold(resolve(document, a_market(a_price()))) == [("m5.xlarge/spot", 0.5), ("m5.large/spot", 0.5)]


def test_static_offerings_use_the_table_only_where_the_pool_asks_for_it() -> None:
    static = {
        "pools": {"linux": {**some_rules()["pools"]["linux"], "offerings": [{"name": "m5.large"}, {"name": "x"}]}}
    }
    rules = read_rules(static)
    assert resolve_rules(rules, a_market(a_price())) is rules
    static["pools"]["linux"]["market"] = {"prices": True}
    assert sold(resolve(static, a_market(a_price()))) == [("m5.large", 0.04)]
    static["pools"]["linux"]["offerings"][1]["price"] = 0.01
    assert sold(resolve(static, a_market(a_price()))) == [("x", 0.01), ("m5.large", 0.04)]


def test_a_static_offering_beside_requirements_is_not_bought_without_a_price_either() -> None:
    document = some_rules({}, {"name": "m5.large", "market": "on-demand"})
    assert sold(resolve(document, a_market(a_price()))) == [("m5.large/spot", 0.04)]
    priced = a_market(a_price(), a_price(market="on-demand", zone="eu-1", price=0.09))
    assert sold(resolve(document, priced)) == [("m5.large/spot", 0.04), ("m5.large", 0.09)]


def test_a_machine_that_costs_more_than_the_maximum_is_not_bought() -> None:
    prices = (a_price(price=0.04), a_price("m5.xlarge", price=0.05))
    limited = some_rules({}, {"name": "dear", "price": 0.06, "type": "x"}, market={"max_price": 0.05})
    assert sold(resolve(limited, a_market(*prices))) == [("m5.large/spot", 0.04), ("m5.xlarge/spot", 0.05)]
    limited["pools"]["linux"]["market"] = {"max_price": 0.04}
    assert sold(resolve(limited, a_market(*prices))) == [("m5.large/spot", 0.04)]
    # A limit alone does not make the table count for static offerings.
    static = some_rules(market={"max_price": 0.04})
    static["pools"]["linux"]["offerings"] = [{"name": "m5.large"}, {"name": "m5.xlarge", "price": 0.05}]
    assert sold(resolve(static, a_market(*prices))) == [("m5.large", 0.0)]


def test_spot_machines_are_bought_only_below_a_share_of_the_on_demand_price() -> None:
    spot = (a_price(price=0.08), a_price("m5.xlarge", price=0.1))
    on_demand = (
        a_price(market="on-demand", zone="eu-1", price=0.1),
        a_price("m5.xlarge", market="on-demand", zone="eu-1", price=0.2),
    )
    limited = some_rules({}, {"name": "m5.large", "market": "on-demand"}, market={"spot_below": 0.8})
    assert sold(resolve(limited, a_market(*spot, *on_demand))) == [
        ("m5.large/spot", 0.08),
        ("m5.xlarge/spot", 0.1),
        ("m5.large", 0.1),
    ]
    limited["pools"]["linux"]["market"] = {"spot_below": 0.7}
    assert sold(resolve(limited, a_market(*spot, *on_demand))) == [("m5.xlarge/spot", 0.1), ("m5.large", 0.1)]
    # A type without a known on-demand price has no such limit.
    assert [key for key, _ in sold(resolve(limited, a_market(*spot)))] == ["m5.large/spot", "m5.xlarge/spot"]


def test_of_two_equal_offerings_the_first_one_counts() -> None:
    twice = some_rules({"cpus": {"max": 2}}, {"name": "all", "price": 9, "require": {}})
    assert sold(resolve(twice, a_market(a_price()))) == [("m5.large/spot", 0.04), ("m5.xlarge/spot", 9.0)]


@pytest.mark.parametrize(
    ("require", "market", "line"),
    [
        (
            {},
            a_market(types=()),
            "a catalogue of instance types (`leasehold prices refresh` reads it from EC2), got none",
        ),
        ({"cpus": {"min": 99}}, a_market(), "at least one spot type of the catalogue, got none of 4; 2 miss only cpus"),
        ({"exclude": ["*"]}, a_market(), "at least one spot type of the catalogue, got none of 4; 2 miss only exclude"),
        ({}, a_market(), "a type with a known spot price (`leasehold prices refresh`), or `price`, got 2 without one"),
        (
            {},
            a_market(types=[a_type(f"m{number}.large") for number in range(MOST_TYPES + 1)]),
            f"at most {MOST_TYPES} instance types, got {MOST_TYPES + 1}: narrow the requirements",
        ),
    ],
)
def test_a_requirement_that_cannot_be_bought_is_one_fault(
    require: dict[str, Any], market: StoredMarket, line: str
) -> None:
    found = [str(each) for each in find_market_faults(read_rules(some_rules(require)), market, "config")]
    assert found == [f"config.pools.linux.offerings[0].require: expected {line}"]


@pytest.mark.parametrize(
    ("require", "line"),
    [
        ({"cpus": {"min": 4, "max": 2}}, "require.cpus.max: expected at least min (4), got 2"),
        ({"cpus": {"most": 2}}, 'require.cpus: expected the key min or max, got "most"'),
        ({"cpus": {"min": -1}}, "require.cpus.min: expected a number >= 0, got -1"),
        ({"generation": "new"}, 'require.generation: expected one of current, previous, any, got "new"'),
        ({"cpu": {}}, 'require.cpu: expected a known key (did you mean "cpus"?), got "cpu"'),
    ],
)
def test_a_wrong_requirement_is_one_line(require: dict[str, Any], line: str) -> None:
    with pytest.raises(InvalidInputError) as found:
        read_rules(some_rules(require), "")
    assert str(found.value) == f"pools.linux.offerings[0].{line}"


def test_an_offering_has_a_type_or_requirements() -> None:
    document = some_rules()
    document["pools"]["linux"]["offerings"][0]["type"] = "m5.large"
    with pytest.raises(InvalidInputError, match=r"offerings\[0\].type: expected no `type` beside `require`, got"):
        read_rules(document)
