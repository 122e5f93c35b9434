"""The cost ledger in every store: costs of one key are added, and open intervals are computed when they are read."""

from threading import Thread

import pytest

from scheduler.model.costs import Cost
from scheduler.model.slots import Meter
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


def take(store: Store, born: dict[str, float]) -> dict[str, float]:
    with store.transaction() as transaction:
        return transaction.take_unbooked(born)


def take_and_fail(store: Store) -> None:
    with store.transaction() as transaction:
        transaction.take_unbooked({"i-1": HOUR})
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
    assert store.prune_ledger(costs_before=HOUR, machines_before=0.0, prices_before=0.0) == 1
    assert store.read_costs() == [a_cost()]


class TestMachinesWithoutASlot:
    def test_the_time_of_a_machine_is_given_once(self, store: Store, clock: Clock) -> None:
        assert take(store, {"i-1": HOUR - 60}) == {"i-1": HOUR - 60}
        begin = clock.now
        assert take(store, {"i-1": HOUR - 60}) == {"i-1": begin}
        clock.now += 30
        assert take(store, {"i-2": HOUR, "i-1": HOUR - 60}) == {"i-1": begin, "i-2": HOUR}

    def test_a_transaction_that_fails_takes_nothing(self, store: Store) -> None:
        with pytest.raises(ConnectionError):
            take_and_fail(store)
        assert take(store, {"i-1": HOUR}) == {"i-1": HOUR}

    def test_the_time_is_not_given_again_if_the_clock_is_late(self, store: Store, clock: Clock) -> None:
        take(store, {"i-1": HOUR})
        end = clock.now
        clock.now -= 20
        assert take(store, {"i-1": HOUR}) == {"i-1": end}
        clock.now += 50
        assert take(store, {"i-1": HOUR}) == {"i-1": end}

    def test_two_transactions_at_once_take_no_time_twice(self, store: Store, clock: Clock) -> None:
        begins: list[float] = []

        def act() -> None:
            begins.append(take(store, {"i-1": HOUR, "i-2": HOUR})["i-1"])

        threads = [Thread(target=act) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(begins) == [HOUR, clock.now, clock.now, clock.now]

    def test_machines_that_were_not_seen_for_long_are_forgotten(self, store: Store, clock: Clock) -> None:
        take(store, {"i-1": HOUR})
        clock.now += 100
        take(store, {"i-2": HOUR})
        assert store.prune_ledger(costs_before=0.0, machines_before=clock.now - 50, prices_before=0.0) == 1
        assert take(store, {"i-1": HOUR, "i-2": HOUR}) == {"i-1": HOUR, "i-2": clock.now}
