"""Counts of what is pending, on every store; and several processes that insert under one limit."""

import msgspec

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
