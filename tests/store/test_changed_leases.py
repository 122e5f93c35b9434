"""Leases of a reservation that change, end, come or change their order are stored as the reservation has them."""

from collections.abc import Sequence

import msgspec
import pytest

from scheduler.model.reservations import Lease
from scheduler.ports import Store
from tests.builders import a_lease, a_reservation

FOUR = tuple(a_lease(component=f"c{number}", token=number) for number in range(4))
A, B, C, D = FOUR
NEW = a_lease(component="z", token=9)
OTHER = a_lease(component="other", token=10)


def moved(lease: Lease) -> Lease:
    """The same instance on another slot."""
    return msgspec.structs.replace(lease, slot="linux-2", token=lease.token + 100)


STEPS: dict[str, list[Sequence[Lease]]] = {
    "one changes": [(A, moved(B), C, D)],
    "one in the middle ends": [(A, C, D)],
    "one comes": [(*FOUR, NEW)],
    "one ends, and another comes": [(A, B, D, NEW), (A, B, D, NEW, OTHER)],
    "the last one ends, and another comes": [(A, B, C), (A, B, C, NEW), (A, B, C, NEW, OTHER)],
    "all end": [()],
    "all end, and others come": [(NEW, OTHER)],
    "their order changes": [(D, C, B, A)],
    "one comes before the others": [(NEW, *FOUR)],
    "one ends and comes back": [(A, C, D), (A, C, D, B), (A, B, C, D)],
    "everything at once": [(moved(C), A, NEW), (A, NEW, OTHER, moved(moved(C)))],
}


def save(store: Store, leases: Sequence[Sequence[Lease]]) -> None:
    """Save the reservation with these leases, one after the other, in one transaction."""
    with store.transaction() as transaction:
        row = transaction.load_reservations(["r1"])["r1"]
        known = list(row.leases)
        for each in leases:
            # A caller keeps the leases that it has read, and replaces those that it changes.
            wanted = tuple(next((one for one in known if one == lease), lease) for lease in each)
            (row,) = transaction.save([msgspec.structs.replace(row, leases=wanted)])  # type: ignore[assignment]


def read(store: Store) -> tuple[Lease, ...]:
    (row,) = store.find_reservations(ids=["r1"])
    return row.leases


@pytest.mark.parametrize("steps", STEPS.values(), ids=list(STEPS))
def test_leases_are_stored_in_the_order_of_their_reservation(store: Store, steps: list[Sequence[Lease]]) -> None:
    with store.transaction() as transaction:
        transaction.insert_reservations([a_reservation("r1", phase="leased", token=1, leases=FOUR)])
    for leases in steps:
        save(store, [leases])
        assert read(store) == tuple(leases)


@pytest.mark.parametrize("steps", STEPS.values(), ids=list(STEPS))
def test_several_changes_in_one_transaction_are_stored_as_the_last_one(
    store: Store, steps: list[Sequence[Lease]]
) -> None:
    with store.transaction() as transaction:
        transaction.insert_reservations([a_reservation("r1", phase="leased", token=1, leases=FOUR)])
    save(store, [*steps, FOUR, *steps])
    assert read(store) == tuple(steps[-1])
