"""Accounts in every store: what is loaded of them, and what their leases have used since they were last charged."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.model.accounts import NOTHING, Account, BalanceSample, add, find_account, find_samples
from scheduler.model.reservations import Lease, Reservation
from scheduler.policy.quota.accounting import sum_running
from scheduler.ports import Store
from tests.builders import NOW, a_lease, a_reservation
from tests.store.test_contract import fail, insert, losing, save

SECONDS = st.integers(-40, 40).map(lambda quarters: NOW + quarters / 4)
"""Around now, in parts that sums of floats keep exactly."""
LEASES = st.builds(
    a_lease,
    st.sampled_from(["linux-1", "linux-2"]),
    level=st.integers(0, 5),
    charged_at=st.none() | SECONDS,
    weight=st.sampled_from([1.0, 0.5, 0.25]),
    state=st.sampled_from(["held", "revoking", "claimed"]),
)


def an_account(name: str = "ci", **changes: object) -> Account:
    fields: dict[str, object] = {"id": name, "charged_at": NOW, **changes}
    return Account(**fields)  # type: ignore[arg-type]


class TestLoad:
    def test_forgotten_ones_too_in_the_order_of_their_ids(self, store: Store) -> None:
        saved = save(store, an_account("b"), an_account("a", forgotten=True))
        with store.transaction() as transaction:
            assert transaction.load_all_accounts() == sorted(saved, key=lambda account: account.id)
            assert transaction.load_accounts(["b", "c"]) == {"b": saved[0]}

    def test_what_is_written_in_the_transaction_is_seen(self, store: Store) -> None:
        with store.transaction() as transaction:
            saved = transaction.save([an_account()])
            assert transaction.load_all_accounts() == saved


class TestRunning:
    @settings(max_examples=30)
    @given(leases=st.lists(LEASES, max_size=4), charged_at=SECONDS, forgotten=st.booleans(), upto=st.integers(0, 3))
    def test_it_is_the_sum_of_the_pure_rule(
        self, store: Store, leases: list[Lease], charged_at: float, *, forgotten: bool, upto: int
    ) -> None:
        clear(store)
        first = last_sequence(store)
        rows = insert(store, *(a_reservation(f"r{number}-{first}", account="ci") for number in range(len(leases))))
        held = [replace_leases(row, lease) for row, lease in zip(rows, leases, strict=True)]
        account = an_account(charged_at=charged_at, forgotten=forgotten, forgotten_upto=first + upto)
        save(store, *held, account)
        total = NOTHING
        for row in held:
            payer = find_account({"ci": account}, "ci", row.sequence)
            total = add(total, NOTHING if payer is None else sum_running(payer, row.leases, NOW))
        with store.transaction() as transaction:
            assert transaction.sum_running(NOW).get("ci", NOTHING) == total

    def test_a_reservation_without_a_known_account_counts_for_no_account(self, store: Store) -> None:
        rows = insert(store, a_reservation("r1"), a_reservation("r2", account="gone"))
        save(store, *(replace_leases(row, a_lease(level=0, charged_at=NOW - 9)) for row in rows), an_account())
        with store.transaction() as transaction:
            assert transaction.sum_running(NOW) == {}


class TestHolders:
    def test_reservations_with_leases_or_claims_in_the_order_of_their_ids(self, store: Store) -> None:
        rows = insert(store, *(a_reservation(name) for name in ("r1", "r2", "r3", "r4")))
        held = [replace_leases(rows[3], a_lease("linux-1")), replace_leases(rows[1], a_lease(state="claimed"))]
        save(store, *held)
        with store.transaction() as transaction:
            assert transaction.list_holders() == ["r2", "r4"]

    def test_what_is_written_in_the_transaction_is_seen(self, store: Store) -> None:
        rows = insert(store, a_reservation("r1"), a_reservation("r2"))
        (saved,) = save(store, replace_leases(rows[0], a_lease()))
        assert isinstance(saved, Reservation)
        with store.transaction() as transaction:
            transaction.save([msgspec.structs.replace(saved, leases=()), replace_leases(rows[1], a_lease())])
            assert transaction.list_holders() == ["r2"]


class TestFind:
    def test_forgotten_ones_too_in_the_order_of_their_ids(self, store: Store) -> None:
        saved = save(store, an_account("b", forgotten=True), an_account("a", balance=(1.5, 0.0, -2.0, 0.0, 0.0)))
        assert store.find_accounts() == [saved[1], saved[0]]


class TestBalances:
    def test_they_are_read_by_account_and_time_oldest_first(self, store: Store) -> None:
        kept = keep_balances(store, ("ci", 3.0), ("ci", 1.0), ("lab", 2.0), ("ci", 2.0))
        assert store.read_balances("ci") == [kept[1], kept[3], kept[0]]
        assert store.read_balances("ci", since=2.0) == [kept[3], kept[0]]
        assert store.read_balances("lab", since=2.5) == store.read_balances("nobody") == []

    def test_the_last_of_one_time_stays(self, store: Store) -> None:
        keep_balances(store, ("ci", 1.0))
        other = BalanceSample("ci", 1.0, (9.0, 0.0, 0.0, 0.0, 0.0))
        with store.transaction() as transaction:
            transaction.save_balances([BalanceSample("ci", 1.0, NOTHING), other])
        assert store.read_balances("ci") == [other]

    def test_what_was_rolled_back_was_never_kept(self, store: Store) -> None:
        with losing(store, KeyError) as transaction:
            transaction.save_balances([BalanceSample("ci", 1.0, NOTHING)])
            fail()
        assert store.read_balances("ci") == []

    def test_they_go_with_the_events_of_their_time(self, store: Store) -> None:
        keep_balances(store, ("ci", 1.0), ("lab", 1.0), ("ci", 2.0))
        assert store.prune(events_before=2.0, requests_before=0.0, ended_before=0.0) == 2
        assert [sample.at for sample in store.read_balances("ci")] == [2.0]
        assert store.read_balances("lab") == []


class TestSamples:
    @pytest.mark.parametrize(
        ("charged_at", "now", "is_kept"),
        [
            (120.0, 179.9, False),  # the same minute
            (120.0, 180.0, True),
            (179.9, 180.0, True),
            (120.0, 400.0, True),  # one sample however many minutes went by
            (180.0, 180.0, False),  # nothing was charged
        ],
    )
    def test_one_a_minute_is_kept(self, charged_at: float, now: float, is_kept: bool) -> None:
        before, after = an_account(charged_at=charged_at), an_account(charged_at=now, balance=(1.0, 2.0, 3.0, 4.0, 5.0))
        kept = [BalanceSample("ci", now, after.balance)] if is_kept else []
        assert find_samples([before], [after]) == kept

    def test_an_account_that_was_not_there_before_was_not_charged(self) -> None:
        assert find_samples([], [an_account()]) == []


class TestLastSequence:
    def test_it_is_that_of_the_newest_reservation(self, store: Store) -> None:
        assert last_sequence(store) == 0
        rows = insert(store, a_reservation("r1"), a_reservation("r2"))
        assert last_sequence(store) == rows[-1].sequence


def keep_balances(store: Store, *given: tuple[str, float]) -> list[BalanceSample]:
    samples = [BalanceSample(name, at, (at, -0.5, 0.0, 1e-9, 1e12)) for name, at in given]
    with store.transaction() as transaction:
        transaction.save_balances(samples)
    return samples


def last_sequence(store: Store) -> int:
    with store.transaction() as transaction:
        return transaction.last_sequence()


def replace_leases(row: Reservation, lease: Lease) -> Reservation:
    return a_reservation(
        row.id, version=row.version, sequence=row.sequence, account=row.request.account, phase="leased", leases=(lease,)
    )


def clear(store: Store) -> None:
    with store.transaction() as transaction:
        rows = list(store.find_reservations(limit=1000))
        transaction.delete([*rows, *transaction.load_all_accounts()])
