"""The market in the database: refreshed from EC2, used by a tick, and listed by `leasehold offers`."""

from typing import Any

import pytest

from scheduler.model.launch_backoff import Hold, hold_id
from scheduler.model.market import ADDRESS, VOLUME, Price, StoredMarket
from scheduler.model.rules import read_rules
from scheduler.model.validation import InvalidInputError
from scheduler.operations.market import (
    OnDemandReader,
    Refreshed,
    refresh_market,
    refresh_on_demand,
    resolve_document,
    resolve_rules,
    save_market,
)
from scheduler.operations.rules.apply import apply_rules
from scheduler.operations.rules.offers import AccountStop, Ages, Offer, list_offers
from scheduler.operations.rules.preview import preview_rules
from scheduler.ports import CloudError, Store
from scheduler.store.memory import MemoryStore
from tests.operations.harness import NOW, Harness
from tests.operations.market import ARM, LARGE, TYPES, Clock, Source, sold, some_rules
from tests.store.test_market import a_price, a_type

AGES = Ages(3600.0, 7200.0)


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


LAST: dict[str, Any] = {"name": "last", "market": "on-demand", "require": {"cpus": {"max": 2}}}
PLAIN = {"name": "plain", "type": "c5.large", "market": "on-demand"}


def on_demand(name: str, price: float = 0.1) -> Price:
    return a_price(name, zone="eu-1", market="on-demand", price=price, source="pricing-api", seen_at=NOW)


def test_on_demand_prices_are_read_for_the_types_that_the_pools_may_use() -> None:
    """Also for spot types whose price is compared; not for an offering with a price set by hand."""
    store, source = MemoryStore(Clock()), Source(on_demand("m5.large"), on_demand("c5.large", 0.2))
    save_market(store, types=TYPES)
    by_hand = {"name": "m7i.large", "market": "on-demand", "price": 1.0}
    rules = read_rules(some_rules({}, LAST, PLAIN, by_hand))
    assert refresh_on_demand(store, source, rules) == Refreshed(prices=2, changed=True)
    compared = read_rules(some_rules({"cpus": {"min": 4}}, market={"spot_below": 0.5}))
    assert not refresh_on_demand(store, source, compared).changed
    assert refresh_on_demand(store, source, read_rules(some_rules())) == Refreshed()
    static = read_rules({"pools": {"linux": {"system": "s", "max_slots": 1, "offerings": [PLAIN, by_hand]}}})
    refresh_on_demand(store, source, static, all_pools=True)
    assert source.listed == [
        (ADDRESS, "c5.large", "m5.large"),
        (ADDRESS, "m5.xlarge"),
        (ADDRESS,),
        (ADDRESS, "c5.large", "m7i.large"),
    ]
    assert [(each.type, each.price) for each in store.load_market().prices] == [("c5.large", 0.2), ("m5.large", 0.1)]


def test_a_process_reads_on_demand_prices_once_in_an_interval_and_only_old_ones() -> None:
    clock, source, reader = Clock(), Source(on_demand("m5.large")), OnDemandReader()
    store, rules = MemoryStore(clock), read_rules(some_rules({}, LAST, PLAIN))
    save_market(store, types=TYPES)
    assert reader.read(store, source, rules, 100.0) == Refreshed(prices=1, changed=True)
    clock.now += 99
    assert reader.read(store, source, rules, 100.0) is None
    # Another process reads the price that is known, and asks again for the one that AWS does not list.
    assert OnDemandReader().read(store, source, rules, 100.0) == Refreshed()
    clock.now += 1
    assert reader.read(store, source, rules, 100.0) == Refreshed(prices=1)
    all_of_them = (ADDRESS, "c5.large", "m5.large")
    assert source.listed == [all_of_them, (ADDRESS, "c5.large"), all_of_them]


def test_volumes_and_addresses_are_priced_for_the_ledger_and_are_no_offerings(harness: Harness) -> None:
    """Also if no pool uses the market; not for pools of static hosts."""
    extras = [on_demand(VOLUME, 0.0001), on_demand(ADDRESS, 0.005)]
    clock, source = Clock(), Source(*extras)
    store = MemoryStore(clock)
    save_market(store, types=TYPES)
    plain = {"system": "s", "max_slots": 1, "ec2": {"image": "ami-1", "volume_gib": 40}}
    rules = read_rules({"pools": {"linux": plain}})
    assert refresh_on_demand(store, source, rules, age=100.0) == Refreshed(prices=2, changed=True)
    assert refresh_on_demand(store, source, rules, age=100.0) == Refreshed()
    hosts = read_rules({"pools": {"mac": {"system": "s", "provider": "static"}}})
    assert refresh_on_demand(store, source, hosts) == Refreshed()
    assert source.listed == [(ADDRESS, VOLUME)]
    save_market(harness.store, prices=[a_price(), *extras])
    apply_rules(harness.ports, some_rules({"exclude": ["m5.xlarge"]}))
    assert [each.key for each in list_(harness.store)] == ["m5.large/spot"]


def test_a_refused_price_list_changes_nothing_and_is_tried_again_after_the_interval() -> None:
    clock, source, reader = Clock(), Source(), OnDemandReader()
    store, rules = MemoryStore(clock), read_rules(some_rules({}, PLAIN))
    save_market(store, prices=[on_demand("c5.large")])
    source.error = CloudError("auth", "AccessDeniedException", "no")
    clock.now += 100
    with pytest.raises(CloudError):
        reader.read(store, source, rules, 100.0)
    assert reader.read(store, source, rules, 100.0) is None
    assert [each.seen_at for each in store.load_market().prices] == [on_demand("c5.large").seen_at]


def test_the_history_has_the_amounts_that_changed() -> None:
    clock = Clock()
    store = MemoryStore(clock)
    hour = NOW // 3600 * 3600
    save_market(store, prices=[a_price(seen_at=hour + 5.0), a_price("c5.large", seen_at=hour + 5.0)])
    save_market(store, prices=[a_price(seen_at=hour + 3605.0), a_price("c5.large", price=0.09, seen_at=hour + 3605.0)])
    save_market(store, prices=[a_price("c5.large", price=0.08, seen_at=hour + 3700.0)])
    found = [(each.type, each.hour - hour, each.price) for each in store.read_price_changes(["m5.large", "c5.large"])]
    assert found == [("c5.large", 0.0, 0.04), ("c5.large", 3600.0, 0.08), ("m5.large", 0.0, 0.04)]


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
    with pytest.raises(InvalidInputError, match='pool: expected one of linux, got "other"'):
        list_(harness.store, pools=["other"])


def test_offers_name_the_budget_that_stops_them(harness: Harness) -> None:
    """A budget that only warns stops nothing. A budget of accounts stops launches for these accounts only, so it is no
    reason that holds for all.
    """
    dear = {"name": "dear", "market": "on-demand", "type": "m5.large", "price": 1.0}
    document = some_rules({}, dear, price_factor=100)
    document["budgets"] = {
        "day": {"per_hour": 0.5},
        "low": {"per_hour": 0.01, "action": "warn"},
        "mild": {"per_hour": 0.01, "accounts": ["ci"], "action": "warn"},
        "some": {"per_hour": 0.04, "accounts": ["ci", "web"]},
    }
    apply_rules(harness.ports, document)
    found = {each.key: each for each in list_(harness.store)}
    assert (found["m5.large/spot"].reasons, found["m5.large/spot"].stopped_for) == ((), ())
    text = "budget some stops it: it allows 0.04 dollars an hour at present, 0.00 run"
    assert (found["m5.xlarge/spot"].reasons, found["m5.xlarge/spot"].stopped_for) == (
        (),
        (AccountStop(budget="some", accounts=("ci", "web"), reason=text),),
    )
    assert found["dear"].reasons == ("budget day stops it: it allows 0.50 dollars an hour at present, 0.00 run",)
    assert [each.budget for each in found["dear"].stopped_for] == ["some"]


def test_offers_name_what_prevents_a_launch(harness: Harness) -> None:
    types = [*TYPES, a_type("c5.large")]
    save_market(harness.store, types=types)
    apply_rules(harness.ports, some_rules({"exclude": ["m5.xlarge"]}))
    held = hold_id("linux", "capacity", "m5.large/spot")
    over = hold_id("linux", "throttled")
    with harness.store.transaction() as transaction:
        fields: dict[str, Any] = {"pool": "linux", "refused_at": harness.now, "code": "UnfulfillableCapacity"}
        fields["message"] = "There is none."
        transaction.save([Hold(id=held, kind="capacity", subject="m5.large/spot", until=harness.now + 60, **fields)])
        transaction.save([Hold(id=over, kind="throttled", until=harness.now, **fields)])
    assert [(each.key, each.price, each.reasons) for each in list_(harness.store)] == [
        ("m5.large/spot", 0.04, ("launches pause: capacity; EC2's answer: UnfulfillableCapacity: There is none.",)),
        ("c5.large/spot", None, ("no price is known",)),
    ]


def test_offers_name_the_limit_that_a_price_exceeds(harness: Harness) -> None:
    save_market(harness.store, prices=[a_price(market="on-demand", zone="eu-1", price=0.041)])
    apply_rules(harness.ports, some_rules(market={"max_price": 0.045, "spot_below": 0.9}))
    assert [(each.key, each.price, each.reasons) for each in list_(harness.store)] == [
        ("m5.large/spot", 0.04, ("costs more than 0.9 of the on-demand price (0.041)",)),
        ("m5.xlarge/spot", 0.05, ("costs more than max_price (0.045)",)),
    ]


def test_an_old_price_counts_and_is_shown_as_stale(harness: Harness) -> None:
    apply_rules(harness.ports, some_rules({"exclude": ["m5.xlarge"]}))
    save_market(harness.store, prices=[a_price(seen_at=harness.now - 3599)])
    assert [each.is_stale for each in list_(harness.store)] == [False]
    save_market(harness.store, prices=[a_price(seen_at=harness.now - 3601)])
    (offer,) = list_(harness.store)
    assert (offer.is_stale, offer.price, offer.reasons) == (True, 0.04, ())
