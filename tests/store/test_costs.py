"""The cost ledger in every store: costs of one key are added, and open intervals are computed when they are read."""

import pytest

from scheduler.model.costs import Cost, Meter
from scheduler.ports import PoolCost, Store
from tests.builders import NOW, a_slot
from tests.store.conftest import Clock
from tests.store.test_contract import save

HOUR = NOW // 3600 * 3600


def a_cost(**changes: object) -> Cost:
    fields: dict[str, object] = {
        "hour": HOUR,
        "pool": "linux",
        "offering": "small",
        "account": "ci",
        "kind": "used",
        "seconds": 900.0,
        "dollars": 0.25,
        **changes,
    }
    return Cost(**fields)  # type: ignore[arg-type]


def book(store: Store, *costs: Cost) -> None:
    with store.transaction() as transaction:
        transaction.book(costs)


def book_and_fail(store: Store) -> None:
    with store.transaction() as transaction:
        transaction.book([a_cost()])
        raise ConnectionError


class TestBook:
    def test_costs_of_one_key_are_added(self, store: Store) -> None:
        book(store, a_cost(), a_cost(seconds=100.0, unpriced=50.0))
        book(store, a_cost(dollars=1.0))
        assert store.read_costs() == [a_cost(seconds=1900.0, dollars=1.5, unpriced=50.0)]

    def test_each_field_of_the_key_separates_rows(self, store: Store) -> None:
        others = [
            a_cost(hour=HOUR - 3600),
            a_cost(pool="mac"),
            a_cost(offering=""),
            a_cost(account=""),
            a_cost(kind="idle"),
        ]
        book(store, a_cost(), *others)
        assert len(store.read_costs()) == 6

    def test_a_transaction_that_fails_books_nothing(self, store: Store) -> None:
        with pytest.raises(ConnectionError):
            book_and_fail(store)
        assert store.read_costs() == []


class TestRead:
    def test_the_whole_hour_that_contains_the_begin_counts(self, store: Store) -> None:
        book(store, a_cost(hour=HOUR - 3600), a_cost())
        assert store.read_costs(HOUR + 1800) == [a_cost()]

    def test_an_open_interval_counts_until_now(self, store: Store, clock: Clock) -> None:
        save(store, a_slot(meter=Meter(HOUR - 600, "used", "small", "ci", price=2.0)))
        book(store, a_cost(hour=HOUR - 3600))
        clock.now = HOUR + 900
        hours = [(each.hour, each.seconds, each.dollars) for each in store.read_costs()]
        assert hours == [(HOUR - 3600, 1500.0, 0.25 + 600 / 1800), (HOUR, 900.0, 0.5)]
        assert [each.hour for each in store.read_costs(HOUR)] == [HOUR]

    def test_seconds_without_a_price_cost_nothing_and_are_counted(self, store: Store, clock: Clock) -> None:
        save(store, a_slot(meter=Meter(HOUR, "idle")))
        clock.now = HOUR + 60
        [found] = store.read_costs()
        assert (found.seconds, found.dollars, found.unpriced) == (60.0, 0.0, 60.0)

    def test_sums_are_by_pool_and_account(self, store: Store, clock: Clock) -> None:
        book(store, a_cost(), a_cost(kind="idle"), a_cost(account=""), a_cost(hour=HOUR - 3600))
        save(store, a_slot(meter=Meter(HOUR, "used", "small", "ci", price=1.0)))
        clock.now = HOUR + 1800
        assert store.sum_costs(HOUR) == [PoolCost("linux", "", 0.25), PoolCost("linux", "ci", 1.0)]


def test_old_hours_are_pruned(store: Store) -> None:
    book(store, a_cost(hour=HOUR - 3600), a_cost())
    assert store.prune_costs(HOUR) == 1
    assert store.read_costs() == [a_cost()]
