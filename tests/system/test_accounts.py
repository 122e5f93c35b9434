"""Quota accounts on real processes: a paid reservation preempts free work and gets its slot."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from scheduler.model.reservations import Reservation
from scheduler.ports import EventFilter
from testbed.processes import wait_for
from testbed.stack import Stack
from tests.system.conftest import RULES

pytestmark = pytest.mark.timeout(180)
POOL = "budget-lab"
HOSTS = ("budget-1", "budget-2")
GRACE = 6.0
"""Seconds; far longer than a surrender takes, and far shorter than the timeout of a wait."""
SPENT, SAVED = ("spent-1", "spent-2"), ("saved-1", "saved-2")
SHARED: dict[str, Any] = {
    "scheduler": {"system": {POOL: {"queue": "quota", "preemption_grace": GRACE}}},
    "pools": {**RULES["pools"], POOL: {"system": POOL, "provider": "static", "offline_timeout": 600}},
    "accounts": {"spending": {}, "saving": {"balance": [1000]}},
}


@pytest.fixture
def shared(stack: Stack) -> Iterator[Stack]:
    """The stack with two hosts that two accounts share. Both are removed afterwards."""
    stack.apply(SHARED)
    for name in HOSTS:
        assert stack.ask("register", {"slot": name, "pool": POOL, "machine": f"m-{name}"})["ok"]
    yield stack
    stack.ask("cancel", {"items": [{"reservation": name} for name in (*SPENT, *SAVED)]})
    assert stack.ask("remove", {"items": [{"slot": name} for name in HOSTS]})["ok"]
    stack.apply(RULES)


def submit(stack: Stack, names: tuple[str, ...], account: str) -> None:
    """Submit reservations for one lease each, without a ttl."""
    items = [{"id": name, "pool": POOL, "account": account, "ttl": 0} for name in names]
    assert stack.ask("submit", {"items": items})["ok"]


def find_revoked(stack: Stack) -> list[Reservation] | None:
    """Return the reservations of the account `spending` when both are revoked, else None."""
    rows = stack.services.ports.store.find_reservations(ids=SPENT)
    return rows if all(row.phase == "revoking" for row in rows) else None


def release(stack: Stack, row: Reservation) -> None:
    assert stack.ask("release", {"reservation": row.id, "token": row.token})["ok"]


def history(stack: Stack, slot: str) -> list[tuple[str, str]]:
    """Return (event, reservation) for each begin and end of a lease on this slot, in the order of commits."""
    store, found = stack.services.ports.store, []
    for name in (*SPENT, *SAVED):
        is_on_slot = False
        for event in store.read_events(EventFilter(reservation=name)):
            if event.name == "reservation_leased":
                is_on_slot = event.detail.get("slots") == [slot]
            if is_on_slot and event.name in {"reservation_leased", "reservation_pending", "reservation_released"}:
                found.append((event.number, event.name, name))
    return [(event, reservation) for _, event, reservation in sorted(found)]


def test_a_paid_reservation_preempts_and_no_slot_has_two_leases_at_once(shared: Stack) -> None:
    submit(shared, SPENT, "spending")
    victims = shared.await_phase(SPENT, "leased")
    assert [row.leases[0].level for row in victims] == [5, 5]

    submit(shared, SAVED, "saving")
    quick, stubborn = wait_for(lambda: find_revoked(shared), "the notices")
    assert {quick.revoke_reason, stubborn.revoke_reason} == {"preempted"}
    scheduler, term = shared.processes["ticks"], shared.services.ports.store.load_leader_term().term
    scheduler.kill()
    assert shared.ask("surrender", {"reservation": quick.id, "token": quick.token})["ok"]
    assert [row.phase for row in shared.services.ports.store.find_reservations(ids=SAVED)] == ["pending", "pending"]
    scheduler.start()

    savers = shared.await_phase(SAVED, "leased")
    assert shared.services.ports.store.load_leader_term().term > term
    by_slot = {row.leases[0].slot: row for row in savers}
    assert [row.leases[0].level for row in savers] == [0, 0]
    assert (by_slot[stubborn.leases[0].slot].leased_at or 0) >= (stubborn.revoke_by or 0)
    assert shared.ask("renew", {"reservation": stubborn.id, "token": stubborn.token})["phase"] == "pending"
    events = shared.services.ports.store.read_events(EventFilter(reservation=stubborn.id, name="reservation_revoking"))
    assert [event.detail["by"] for event in events] == [by_slot[stubborn.leases[0].slot].id]

    for row in savers:
        release(shared, row)
    for row in shared.await_phase(SPENT, "leased"):
        assert row.token > max(stubborn.token, quick.token)
        release(shared, row)
    for name in HOSTS:
        changes = history(shared, name)
        assert len(changes) == 6
        assert all(
            (before == "reservation_leased") != (after == "reservation_leased")
            for (before, _), (after, _) in pairwise(changes)
        )
        assert all(first[1] == second[1] for first, second in zip(changes[::2], changes[1::2], strict=True))
