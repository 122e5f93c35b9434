"""Requirements resolved by the catalogue, prices of the table, and what a tick and `leasehold offers` make of them."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from scheduler.model.launch_backoff import Hold, hold_id
from scheduler.model.market import InstanceType, Price, StoredMarket
from scheduler.model.rules import Rules, read_rules
from scheduler.model.validation import InvalidInputError
from scheduler.operations.apply import apply_rules, preview_rules
from scheduler.operations.market.offers import Ages, Offer, list_offers
from scheduler.operations.market.refresh import refresh_market, save_market
from scheduler.operations.market.resolve import MOST_TYPES, find_market_faults, resolve_document, resolve_rules
from scheduler.policy.scaling.launch_limits import list_choices
from scheduler.ports import CloudError, Store
from scheduler.store.memory import MemoryStore
from tests.operations.harness import NOW, Harness
from tests.store.test_market import a_price, a_type

SMALL, LARGE = a_type("m5.large"), a_type("m5.xlarge", cpus=4.0, memory_mib=16384.0)
ARM = a_type("m7g.large", architectures=("arm64",))
GPU = a_type("g5.xlarge", cpus=4.0, memory_mib=16384.0, accelerators=1, accelerator="A10G", zones=("eu-1b",))
TYPES = (SMALL, LARGE, ARM, GPU)
AGES = Ages(3600.0, 7200.0)


def some_rules(require: dict[str, Any] | None = None, *more: dict[str, Any], **pool: Any) -> dict[str, Any]:
    """Return a document with one pool, whose first offering has requirements."""
    first = {"name": "general", "require": require or {}}
    table = {"system": "x86_64-linux", "max_slots": 5, "lease_ttl": 0, "offerings": [first, *more], **pool}
    return {"pools": {"linux": table}}


def a_market(*prices: Price, types: Sequence[InstanceType] = TYPES) -> StoredMarket:
    return StoredMarket(types=tuple(types), prices=prices)


def resolve(document: dict[str, Any], market: StoredMarket) -> Rules:
    return resolve_rules(read_rules(document), market)


def names(rules: Rules) -> list[str]:
    return [each.name for each in rules.pools["linux"].offerings]


def sold(rules: Rules) -> list[tuple[str | None, float]]:
    """Return the offerings that a launch may choose, in the order of choice, with their prices."""
    return [(each.key, each.price) for each in list_choices(rules.pools["linux"])]


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
    assert offering.labels == {
        "instance_type": "g5.xlarge",
        "instance_family": "g5",
        "architecture": "x86_64",
        "accelerator": "A10G",
        "disk": "ssd",
    }
    assert (offering.instance_type, offering.require) == ("g5.xlarge", None)


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
    static["pools"]["linux"]["market_prices"] = True
    assert sold(resolve(static, a_market(a_price()))) == [("m5.large", 0.04)]
    static["pools"]["linux"]["offerings"][1]["price"] = 0.01
    assert sold(resolve(static, a_market(a_price()))) == [("x", 0.01), ("m5.large", 0.04)]


def test_a_static_offering_beside_requirements_is_not_bought_without_a_price_either() -> None:
    document = some_rules({}, {"name": "m5.large", "market": "on-demand"})
    assert sold(resolve(document, a_market(a_price()))) == [("m5.large/spot", 0.04)]
    priced = a_market(a_price(), a_price(market="on-demand", zone="eu-1", price=0.09))
    assert sold(resolve(document, priced)) == [("m5.large/spot", 0.04), ("m5.large", 0.09)]


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
        (
            {},
            a_market(),
            "a type with a known spot price (`leasehold prices refresh`), or `price`, got 2 without one",
        ),
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
        ({"cpus": {"most": 2}}, 'require.cpus: expected min or max as key, got "most"'),
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
    with pytest.raises(InvalidInputError, match=r"offerings\[0\].type: expected nothing beside require, got"):
        read_rules(document)


class Source:
    """A market of EC2 with given types and prices, which counts its calls."""

    def __init__(self, *prices: Price, types: Sequence[InstanceType] = TYPES) -> None:
        self.types, self.prices, self.catalogues = list(types), list(prices), 0
        self.asked: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
        self.error: CloudError | None = None

    def read_types(self, seen_at: float) -> list[InstanceType]:
        """See MarketSource."""
        self.catalogues += 1
        return [msgspec.structs.replace(each, seen_at=seen_at) for each in self.types]

    def read_spot_prices(self, types: Sequence[str], zones: Sequence[str], seen_at: float) -> list[Price]:
        """See MarketSource."""
        if self.error is not None:
            raise self.error
        self.asked.append((tuple(types), tuple(zones)))
        found = [each for each in self.prices if each.type in types and (not zones or each.zone in zones)]
        return [msgspec.structs.replace(each, seen_at=seen_at) for each in found]


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


def test_a_refresh_reads_types_and_then_the_prices_of_the_pools() -> None:
    store, source = MemoryStore(Clock()), Source(a_price(), a_price("m5.xlarge"), a_price("t3.nano"))
    rules = read_rules(some_rules(ec2={"image": "ami-1", "subnets": ["eu-1a:subnet-1"]}))
    found = refresh_market(store, source, rules)
    assert (found.types, found.prices, found.changed) == (4, 2, True)
    assert source.asked == [(("m5.large", "m5.xlarge"), ("eu-1a",))]
    market = store.load_market()
    assert (market.version, len(market.types), [each.type for each in market.prices]) == (
        1,
        4,
        ["m5.large", "m5.xlarge"],
    )


def test_the_same_types_and_prices_are_no_new_version_but_are_seen_again() -> None:
    clock, source, rules = Clock(), Source(a_price()), read_rules(some_rules())
    store = MemoryStore(clock)
    refresh_market(store, source, rules)
    clock.now += 60
    found = refresh_market(store, source, rules, catalogue_age=3600.0)
    assert (found.types, found.changed, source.catalogues) == (0, False, 1)
    assert (store.load_market().version, store.load_market().prices[0].seen_at) == (1, NOW + 60)
    clock.now += 3600
    source.types.remove(ARM)
    assert refresh_market(store, source, rules, catalogue_age=3600.0).changed
    assert (source.catalogues, store.load_market().version, len(store.load_market().types)) == (2, 2, 3)


def test_a_refresh_that_ec2_refuses_changes_nothing() -> None:
    store, source = MemoryStore(Clock()), Source(a_price())
    source.error = CloudError("auth", "UnauthorizedOperation", "no")
    with pytest.raises(CloudError):
        refresh_market(store, source, read_rules(some_rules()))
    assert store.load_market() == StoredMarket()


def test_rules_that_do_not_use_the_market_read_nothing() -> None:
    store, source = MemoryStore(Clock()), Source(a_price())
    static = read_rules({"pools": {"linux": {"system": "s", "max_slots": 1, "offerings": [{"name": "m5.large"}]}}})
    assert refresh_market(store, source, static).prices == 0
    assert (source.catalogues, source.asked) == (0, [])
    assert refresh_market(store, source, static, all_pools=True).prices == 1


@pytest.fixture
def harness() -> Harness:
    """Return a process with the market of TYPES, in which m5.large is the cheapest."""
    harness = Harness({"pools": {}})
    save_market(harness.store, types=TYPES, prices=[a_price(), a_price("m5.xlarge", price=0.05)])
    return harness


def test_a_requirement_that_matches_nothing_is_refused_and_nothing_is_applied(harness: Harness) -> None:
    version = harness.store.rules_version()
    for act in (lambda d: apply_rules(harness.ports, d), lambda d: preview_rules(harness.store, d)):
        with pytest.raises(InvalidInputError, match=r"pools\.linux\.offerings\[0\]\.require: expected at least one"):
            act(some_rules({"cpus": {"min": 99}}))
    assert harness.store.rules_version() == version


def test_a_launch_takes_the_cheapest_type_and_follows_the_prices(harness: Harness) -> None:
    apply_rules(harness.ports, some_rules(default_resources={"cpus": 1}))
    harness.submit("r1")
    harness.tick()
    assert (harness.slot().offering, harness.slot().price) == ("m5.large/spot", 0.04)
    assert harness.slot().resources == {"cpus": 2.0, "memory_mib": 8192.0}
    save_market(harness.store, prices=[a_price("m5.xlarge", price=0.01)])
    harness.submit("r2", resources={"cpus": 2})
    harness.tick()
    assert harness.slot("linux-2").offering == "m5.xlarge/spot"
    # The machine whose type is dearer now stays.
    assert harness.slot().state != "empty"


def test_a_machine_whose_type_left_the_catalogue_drains(harness: Harness) -> None:
    apply_rules(harness.ports, some_rules())
    harness.submit("r1")
    harness.tick()
    save_market(harness.store, types=[LARGE])
    harness.tick()
    assert harness.slot().state in {"draining", "terminating"}


def test_the_rules_are_resolved_once_for_each_version_of_the_market(harness: Harness) -> None:
    apply_rules(harness.ports, some_rules())
    first = harness.ports.rules()
    save_market(harness.store, prices=[a_price(seen_at=NOW + 5)])
    assert harness.ports.rules() is first
    save_market(harness.store, prices=[a_price(price=0.02)])
    assert harness.ports.rules() is not first


def test_a_snapshot_has_the_offerings_in_place_of_requirements(harness: Harness) -> None:
    document = some_rules()
    rules = resolve_rules(read_rules(document), harness.store.load_market())
    found = read_rules(resolve_document(document, rules))
    assert sold(found) == sold(rules)
    assert all(each.require is None for each in found.pools["linux"].offerings)


def list_(store: Store, **wanted: Any) -> list[Offer]:
    return list_offers(store, AGES, **wanted)


def test_offers_are_listed_in_the_order_of_choice_with_their_prices(harness: Harness) -> None:
    document = some_rules({}, {"name": "dear", "market": "on-demand", "type": "m5.large", "price": 1.0})
    apply_rules(harness.ports, document)
    found = list_(harness.store)
    assert [(each.key, each.price, each.source, each.zone, each.reasons) for each in found] == [
        ("m5.large/spot", 0.04, "spot-history", "eu-1a", ()),
        ("m5.xlarge/spot", 0.05, "spot-history", "eu-1a", ()),
        ("dear", 1.0, "rules", None, ("costs more than 1.5 times the cheapest one that fits",)),
    ]
    large = list_(harness.store, wanted={"cpus": 4.0})
    assert (large[0].key, large[0].reasons) == ("m5.xlarge/spot", ())
    assert ("m5.large/spot", ("is too small",)) in [(each.key, each.reasons) for each in large]
    assert list_(harness.store, pools=["other"]) == []


def test_offers_name_what_prevents_a_launch(harness: Harness) -> None:
    types = [*TYPES, a_type("c5.large")]
    save_market(harness.store, types=types)
    apply_rules(harness.ports, some_rules({"exclude": ["m5.xlarge"]}))
    held = hold_id("linux", "capacity", "m5.large/spot")
    over = hold_id("linux", "throttled")
    with harness.store.transaction() as transaction:
        fields: dict[str, Any] = {"pool": "linux", "refused_at": harness.now}
        transaction.save([Hold(id=held, kind="capacity", subject="m5.large/spot", until=harness.now + 60, **fields)])
        transaction.save([Hold(id=over, kind="throttled", until=harness.now, **fields)])
    assert [(each.key, each.price, each.reasons) for each in list_(harness.store)] == [
        ("m5.large/spot", 0.04, ("launches pause: capacity",)),
        ("c5.large/spot", None, ("no price is known",)),
    ]


def test_an_old_price_counts_and_is_shown_as_stale(harness: Harness) -> None:
    apply_rules(harness.ports, some_rules({"exclude": ["m5.xlarge"]}))
    save_market(harness.store, prices=[a_price(seen_at=harness.now - 3599)])
    assert [each.is_stale for each in list_(harness.store)] == [False]
    save_market(harness.store, prices=[a_price(seen_at=harness.now - 3601)])
    (offer,) = list_(harness.store)
    assert (offer.is_stale, offer.price, offer.reasons) == (True, 0.04, ())
