"""A transaction that has ended leaves its rows to reference counts, and not to Python's garbage collector."""

import weakref

import msgspec

from scheduler.operations.paused_gc import PausedGC
from scheduler.ports import Store
from tests.builders import a_lease, a_reservation


def test_a_transaction_leaves_no_cycle_of_references(store: Store) -> None:
    with PausedGC():
        with store.transaction() as transaction:
            (stored,) = transaction.insert_reservations([a_reservation("r1")])
            transaction.save([msgspec.structs.replace(stored, phase="leased", leases=(a_lease(),))])
            left = weakref.ref(transaction)
        del transaction
        assert left() is None
