"""The contract of the market's rows: types, prices, and their version, on every store."""

from typing import Any

import msgspec
import pytest

from scheduler.model.launch_backoff import Hold, hold_id
from scheduler.model.market import InstanceType, Price, PriceChange, StoredMarket
from scheduler.ports import RulesVersion, Store
from tests.builders import NOW


def a_type(name: str = "m5.large", **changes: Any) -> InstanceType:
    defaults: dict[str, Any] = {"name": name, "cpus": 2.0, "memory_mib": 8192.0, "architectures": ("x86_64",)}
    return InstanceType(**(defaults | {"zones": ("eu-1a", "eu-1b"), "seen_at": NOW} | changes))


def a_price(kind: str = "m5.large", zone: str = "eu-1a", price: float = 0.04, **changes: Any) -> Price:
    defaults: dict[str, Any] = {"market": "spot", "seen_at": NOW, "source": "spot-history"}
    return Price(type=kind, zone=zone, price=price, **(defaults | changes))


def test_a_new_database_has_no_market(store: Store) -> None:
    assert store.load_market() == StoredMarket()
    assert store.rules_versions() == RulesVersion(0, 0)
    assert store.read_cluster().market_version == 0


def test_types_and_prices_are_stored_whole(store: Store) -> None:
    gpu = a_type("g4dn.metal", accelerators=8, accelerator="T4", local_disk_gib=1676.4, is_bare_metal=True)
    old = a_type("t1.micro", architectures=("x86_64", "i386"), is_current=False, markets=("on-demand",), zones=())
    prices = [a_price(zone="eu-1"), a_price(market="on-demand", price=0.096, source="file")]
    with store.transaction() as transaction:
        transaction.save_types([old, gpu])
        transaction.save_prices(prices)
    found = store.load_market()
    assert found.types == (gpu, old)
    assert found.prices == tuple(sorted(prices, key=lambda each: each.key))
    assert found.version == 0


def test_a_later_row_replaces_the_row_of_its_key_and_others_stay(store: Store) -> None:
    with store.transaction() as transaction:
        transaction.save_types([a_type(), a_type("c5.large")])
        transaction.save_prices([a_price(), a_price(zone="eu-1b"), a_price(market="on-demand")])
    with store.transaction() as transaction:
        transaction.save_types([a_type(cpus=4.0)])
        transaction.save_prices([a_price(price=0.05), a_price(price=0.06, seen_at=NOW + 1)])
    found = store.load_market()
    assert [(each.name, each.cpus) for each in found.types] == [("c5.large", 2.0), ("m5.large", 4.0)]
    assert [(*each.key, each.price, each.seen_at) for each in found.prices] == [
        ("m5.large", "eu-1a", "on-demand", 0.04, NOW),
        ("m5.large", "eu-1a", "spot", 0.06, NOW + 1),
        ("m5.large", "eu-1b", "spot", 0.04, NOW),
    ]


def test_deleted_types_are_gone_and_unknown_ones_are_ignored(store: Store) -> None:
    with store.transaction() as transaction:
        transaction.save_types([a_type(), a_type("c5.large")])
    with store.transaction() as transaction:
        transaction.delete_types(["m5.large", "x9.large"])
    assert [each.name for each in store.load_market().types] == ["c5.large"]


def test_a_counted_change_increases_the_version_of_the_market_alone(store: Store) -> None:
    for _ in range(2):
        with store.transaction() as transaction:
            transaction.count_market_change()
    assert store.load_market().version == store.read_cluster().market_version == 2
    assert store.rules_versions() == RulesVersion(0, 2)
    with store.transaction() as transaction:
        transaction.save_rules({}, 0)
    assert store.rules_versions() == RulesVersion(1, 2)


def write_and_fail(store: Store) -> None:
    with store.transaction() as transaction:
        transaction.save_types([a_type()])
        transaction.save_prices([a_price()])
        transaction.count_market_change()
        raise KeyError("on purpose")


def test_a_transaction_that_fails_changes_no_market(store: Store) -> None:
    with pytest.raises(KeyError):
        write_and_fail(store)
    assert store.load_market() == StoredMarket()


def test_thousands_of_prices_are_stored_at_once(store: Store) -> None:
    prices = [a_price(f"m{number}.large", price=float(number)) for number in range(2500)]
    with store.transaction() as transaction:
        transaction.save_prices(prices)
    assert sum(each.price for each in store.load_market().prices) == sum(range(2500))


def a_change(kind: str = "m5.large", hour: float = 3600.0, price: float = 0.04, zone: str = "eu-1a") -> PriceChange:
    return PriceChange(type=kind, zone=zone, market="spot", hour=hour, price=price)


def test_changes_of_prices_have_a_row_an_hour_until_they_are_pruned(store: Store) -> None:
    assert store.read_price_changes(["m5.large"]) == []
    with store.transaction() as transaction:
        transaction.save_price_changes([a_change(hour=7200.0), a_change(), a_change("c5.large"), a_change(price=0.05)])
    with store.transaction() as transaction:
        transaction.save_price_changes([a_change(price=0.06), a_change(zone="eu-1b")])
    kept = [a_change(price=0.06), a_change(hour=7200.0), a_change(zone="eu-1b")]
    assert store.read_price_changes(["m5.large", "m5.large"]) == kept
    assert store.read_price_changes([]) == []
    assert store.read_price_changes(["c5.large", "none"]) == [a_change("c5.large")]
    assert store.prune_ledger(costs_before=0.0, machines_before=0.0, prices_before=7200.0) == 3
    assert store.read_price_changes(["m5.large", "c5.large"]) == [a_change(hour=7200.0)]


def change_and_fail(store: Store) -> None:
    with store.transaction() as transaction:
        transaction.save_price_changes([a_change()])
        raise ConnectionError


def test_a_transaction_that_fails_stores_no_change(store: Store) -> None:
    with pytest.raises(ConnectionError):
        change_and_fail(store)
    assert store.read_price_changes(["m5.large"]) == []


def test_holds_are_found_by_their_ids(store: Store) -> None:
    def a_hold(subject: str) -> Hold:
        name = hold_id("linux", "capacity", subject)
        return Hold(id=name, pool="linux", kind="capacity", subject=subject, refused_at=NOW, until=NOW + 60)

    assert store.find_holds() == []
    with store.transaction() as transaction:
        transaction.save([a_hold("m5.large"), a_hold("c5.large")])
    found = [msgspec.structs.replace(each, version=0, marked_at=0.0) for each in store.find_holds()]
    assert [each.subject for each in found] == ["c5.large", "m5.large"]
