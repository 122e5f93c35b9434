"""Marks of reservations that the same transaction has loaded, inserted, changed or deleted before."""

import msgspec

from scheduler.model.reservations import Reservation
from scheduler.ports import StaleWriteError, Store
from tests.builders import a_lease, a_reservation
from tests.store.test_contract import LATER, losing


def test_a_second_mark_is_added_to_the_first_one(store: Store) -> None:
    with store.transaction() as transaction:
        (row,) = transaction.insert_reservations([a_reservation()])
        (leased,) = transaction.save([msgspec.structs.replace(row, phase="leased", leases=(a_lease(),), token=1)])
    with store.transaction() as transaction:
        (loaded,) = transaction.load_reservations([row.id]).values()
        confirmed = tuple(msgspec.structs.replace(lease, confirmed_at=LATER) for lease in loaded.leases)
        transaction.mark([msgspec.structs.replace(loaded, confirmed_at=LATER, leases=confirmed)])
        (marked,) = transaction.mark([msgspec.structs.replace(loaded, expires_at=LATER, leases=confirmed)])
    assert isinstance(marked, Reservation)
    assert (marked.version, marked.leases[0].confirmed_at) == (leased.version, LATER)
    assert (marked.expires_at, marked.confirmed_at) == (LATER, None)
    assert store.find_reservations() == [marked]


def test_a_row_that_was_saved_in_the_transaction_is_marked_in_its_new_version_only(store: Store) -> None:
    with store.transaction() as transaction:
        (row,) = transaction.insert_reservations([a_reservation()])
    with store.transaction() as transaction:
        (loaded,) = transaction.load_reservations([row.id]).values()
        (saved,) = transaction.save([msgspec.structs.replace(loaded, priority=5)])
        assert isinstance(saved, Reservation)
        (marked,) = transaction.mark([msgspec.structs.replace(saved, expires_at=LATER)])
    assert isinstance(marked, Reservation)
    assert (marked.priority, marked.expires_at, marked.version) == (5, LATER, 2)
    assert store.find_reservations() == [marked]
    with losing(store, StaleWriteError) as transaction:
        transaction.load_reservations([row.id])
        transaction.save([marked])
        transaction.mark([marked])


def test_a_row_that_was_deleted_in_the_transaction_cannot_be_marked(store: Store) -> None:
    with store.transaction() as transaction:
        (row,) = transaction.insert_reservations([a_reservation()])
    with losing(store, StaleWriteError) as transaction:
        transaction.load_reservations([row.id])
        transaction.delete([row])
        transaction.mark([row])
    assert store.find_reservations() == [row]


def test_of_many_rows_only_some_of_which_were_loaded_all_are_marked(store: Store) -> None:
    with store.transaction() as transaction:
        rows = transaction.insert_reservations([a_reservation("r1"), a_reservation("r2")])
    with store.transaction() as transaction:
        transaction.load_reservations(["r1"])
        marked = transaction.mark([msgspec.structs.replace(row, expires_at=LATER) for row in rows])
    assert [each.expires_at for each in store.find_reservations()] == [LATER, LATER]
    assert store.find_reservations() == marked
