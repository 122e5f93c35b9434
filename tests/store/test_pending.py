"""Counts of what is pending, on every store; and several processes that insert under one limit."""

import msgspec
import pytest

from scheduler.model.principals import Principal
from scheduler.model.reservations import Component, Request
from scheduler.operations.admission import Admission
from scheduler.operations.commands.intake import accept
from scheduler.ports import Pending, Store
from tests.builders import SYSTEM, a_reservation
from tests.operations.harness import CONFIG, Harness

GANG = Request(system=SYSTEM, account="lab", components=(Component(name="a", count=3), Component(name="b")))


def test_what_is_pending_is_counted_by_principal_and_account(store: Store) -> None:
    rows = [
        a_reservation("r1", principal="ci"),
        msgspec.structs.replace(a_reservation("r2", principal="ci", instances=4), request=GANG),
        msgspec.structs.replace(a_reservation("r3", instances=4), request=GANG),
        a_reservation("r4", principal="ci"),
    ]
    with store.transaction() as transaction:
        inserted = transaction.insert_reservations(rows)
        transaction.save([msgspec.structs.replace(inserted[-1], phase="cancelled")])
        counted = [transaction.count_pending_of_principal(name) for name in ("ci", None, "other")]
        assert counted == [Pending(2, 5), Pending(1, 4), Pending()]
        assert [transaction.count_pending_of_account(name) for name in ("lab", "other")] == [Pending(2, 8), Pending()]


def test_what_is_pending_of_unsigned_requests_is_counted_by_sender(store: Store) -> None:
    rows = [a_reservation("r1", sender="web-1", instances=3), a_reservation("r2", sender="web-2"), a_reservation("r3")]
    with store.transaction() as transaction:
        transaction.insert_reservations(rows)
    with store.transaction() as transaction:
        counted = [transaction.count_pending_of_principal(None, name) for name in ("web-1", "web-2", None, "web-3")]
    assert counted == [Pending(1, 3), Pending(1, 1), Pending(1, 1), Pending()]


def test_what_was_inserted_after_a_number_is_counted_in_every_phase(store: Store) -> None:
    first = [a_reservation("r1", principal="ci"), a_reservation("r2", principal="ci")]
    later = [
        a_reservation("r3", principal="ci"),
        msgspec.structs.replace(a_reservation("r4", principal="ci", instances=4), request=GANG),
        msgspec.structs.replace(a_reservation("r5", instances=4), request=GANG, sender="web-1"),
        a_reservation("r6", principal="ci"),
    ]
    with store.transaction() as transaction:
        transaction.insert_reservations(first)
        after = transaction.last_sequence()
        assert transaction.count_inserted(after, after + 9) == {}
    with store.transaction() as transaction:
        inserted = transaction.insert_reservations(later)
        transaction.save([msgspec.structs.replace(inserted[-1], phase="cancelled")])
        counted = transaction.count_inserted(after, after + 4)
        assert transaction.count_inserted(after, after + 1) == {("ci", None, None): Pending(1, 1)}
    assert counted == {
        ("ci", None, None): Pending(2, 2),
        ("ci", "lab", None): Pending(1, 4),
        (None, "lab", "web-1"): Pending(1, 4),
    }


@pytest.mark.parametrize("limit", ["principal", "account"])
def test_gangs_that_other_processes_insert_count_with_their_instances(store: Store, limit: str) -> None:
    """No process counts all that is pending again before the limit is near, and all stop at it together."""
    harness = Harness({**CONFIG, "limits": {f"instances_per_{limit}": 40_009}}, store=store)
    processes, producer = [Admission(), Admission()], Principal(name="ci", role="producer", accounts=("lab", "other"))
    accepted = []
    for number in range(14):
        harness.ports.admission = processes[number % 2]
        gang = {"account": "lab", "components": [{"name": "a", "count": 10_000}]}
        other = {"account": "other"}
        document = {"request": f"q{number}", "id": f"r{number}", "system": SYSTEM, **(gang if number % 3 else other)}
        accepted.append(accept(harness.ports, "submit", document, principal=producer)["ok"])
    # The fifth gang would exceed the limit; the other account has a limit of its own.
    gangs = [ok for number, ok in enumerate(accepted) if number % 3]
    assert gangs == [True] * 4 + [False] * 5
    assert all(accepted[::3])


def test_processes_that_insert_by_turns_never_exceed_a_limit(store: Store) -> None:
    """Each keeps counts of its own, and sees by the numbers of reservations what the others inserted."""
    harness = Harness({**CONFIG, "limits": {"pending_per_principal": 5}}, store=store)
    processes = [Admission() for _ in range(3)]
    accepted = 0
    for number in range(12):
        harness.ports.admission = processes[number % 3]
        document = {"request": f"q{number}", "id": f"r{number}", "system": SYSTEM}
        accepted += accept(harness.ports, "submit", document, principal=Principal(name="ci", role="producer"))["ok"]
    assert accepted == 5
    with store.transaction() as transaction:
        assert transaction.count_pending_of_principal("ci") == Pending(5, 5)
