"""Spot interruptions on real processes: EC2's notice arrives by EventBridge and SQS, and the holder is notified."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from leasehold import Client
from scheduler.model.reservations import Reservation
from scheduler.model.slots import Slot
from scheduler.ports import INTERRUPTION_SECONDS, EventFilter
from testbed.processes import wait_for
from testbed.stack import Stack, a_pool
from tests.system.conftest import RULES

pytestmark = pytest.mark.timeout(120)
POOL = "spot"
SHORT = 1.0
"""A grace in seconds, far shorter than the two minutes of EC2."""
ENDS_AFTER = 15.0
"""Seconds from a notice to the end of the machine, after which a test waits for the end: EC2 makes it, not a call."""
READ_BEFORE = 8.0
"""Seconds from a notice to the end of the machine, shorter than EC2's. The notice is read before: the stack reads the
queue in every other second.
"""


def some_rules(**scheduler: Any) -> dict[str, Any]:
    pool = a_pool(system=POOL, max_slots=2, max_leases_per_slot=1, offerings=[{"name": "m5.large", "market": "spot"}])
    return {"scheduler": scheduler, "pools": {**RULES["pools"], POOL: pool}}


@pytest.fixture(autouse=True)
def _spot(stack: Stack) -> Iterator[None]:
    """Apply a pool of spot machines.

    Afterwards check that EC2 launched one machine for each boot, and that all were terminated or interrupted.
    """
    stack.apply(some_rules())
    before = {each["id"] for each in stack.histories(POOL)}
    (last,) = stack.services.ports.store.read_events(EventFilter(newest=True, limit=1))
    yield
    for row in stack.services.ports.store.find_reservations(phases=["pending", "leased", "revoking"]):
        if row.request.pool == POOL:
            stack.ask("cancel", {"reservation": row.id})
    stack.await_empty(POOL)
    machines = [each for each in stack.histories(POOL) if each["id"] not in before]
    assert {each["cause"] for each in machines} <= {"call", "interrupted"}
    booted = stack.services.ports.store.read_events(EventFilter(after=last.number, name="slot_booting"))
    assert len(machines) == sum((event.slot or "").startswith(POOL) for event in booted) > 0
    stack.apply(RULES)


def lease(stack: Stack, **fields: Any) -> tuple[Reservation, Slot]:
    """Submit a reservation; return it with its slot when it is leased."""
    name = f"spot-{uuid4().hex[:8]}"
    assert stack.ask("submit", {"id": name, "pool": POOL, **fields})["ok"]
    (row,) = stack.await_phase([name], "leased")
    return row, slot_of(stack, row)


def lives(stack: Stack, slot: Slot) -> list[dict[str, Any]]:
    """Return the life of the slot's machine as the emulator has recorded it."""
    return [each for each in stack.histories(POOL) if each["id"] == slot.instance_id]


def slot_of(stack: Stack, row: Reservation) -> Slot:
    return next(slot for slot in stack.slots(POOL) if slot.id == row.leases[0].slot)


def test_a_surrendered_reservation_is_leased_on_another_slot_with_a_new_token(stack: Stack) -> None:
    row, slot = lease(stack)
    channel = stack.redis.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
    channel.subscribe(f"leasehold:notice:{row.id}")
    channel.get_message(timeout=5)
    (warned,) = stack.let_happen("interrupt", str(slot.instance_id), deadline=ENDS_AFTER)
    (revoking,) = stack.await_phase([row.id], "revoking")
    # EventBridge dates its events to the second.
    deadline = int(warned["deadline"] - INTERRUPTION_SECONDS) + INTERRUPTION_SECONDS
    assert (revoking.revoke_by, revoking.reason, revoking.token) == (deadline, "slot_interrupted", row.token)
    notices: list[dict[str, Any]] = []

    def listen() -> bool:
        message = channel.get_message(timeout=1)
        notices.extend([msgspec.json.decode(message["data"])] if message else [])
        return bool(notices) and notices[-1]["event"] == "revoking"

    wait_for(listen, "the notice")
    assert (notices[-1]["reason"], notices[-1]["deadline"]) == ("slot_interrupted", deadline)
    channel.close()
    assert stack.ask("surrender", {"reservation": row.id, "token": row.token})["ok"]
    (again,) = stack.await_phase([row.id], "leased")
    assert again.token > row.token
    assert again.leases[0].slot != slot.id
    assert slot_of(stack, again).instance_id != slot.instance_id
    refused = stack.ask("renew", {"reservation": row.id, "token": row.token})
    assert refused["errors"][0]["path"] == "token"
    # The slot has no lease any more; its machine costs nothing if EC2 ends it.
    life = wait_for(lambda: next((each for each in lives(stack, slot) if each["terminated_at"]), None), "the end")
    assert (life["cause"], life["terminated_at"] >= warned["deadline"]) == ("interrupted", True)


def test_a_lease_of_the_client_has_its_revocation_deadline_and_reason(stack: Stack) -> None:
    with Client(stack.redis_server.url) as client, client.lease(pool=POOL, wait=40) as lease:
        (warned,) = stack.let_happen("interrupt", str(lease.instance_id), deadline=ENDS_AFTER)
        wait_for(lease.revoking.is_set, "the lease to be revoked")
        assert lease.deadline == pytest.approx(int(warned["deadline"]), abs=0.5)
        assert lease.reason == "slot_interrupted"
        assert not lease.lost.is_set()
    assert stack.find(lease.id).phase == "released"


def test_an_ignored_revocation_ends_with_the_machine(stack: Stack) -> None:
    """The lease ends with the machine. The reservation is leased again and keeps its age in the queue."""
    row, slot = lease(stack)
    (warned,) = stack.let_happen("interrupt", str(slot.instance_id), deadline=READ_BEFORE)
    stack.await_phase([row.id], "revoking")
    again = wait_for(lambda: found if (found := stack.find(row.id)).token > row.token else None, "another lease")
    assert slot_of(stack, again).instance_id != slot.instance_id
    assert (again.created_at, again.interruptions) == (row.created_at, 1)
    last = EventFilter(slot=slot.id, name="slot_interrupted", newest=True, limit=1)
    (interrupted,) = stack.services.ports.store.read_events(last)
    assert interrupted.detail == {"epoch": slot.epoch, "gone_at": int(warned["deadline"])}


@pytest.fixture
def no_notices(stack: Stack) -> Iterator[None]:
    """Let EventBridge lose every event about a machine."""
    stack.control("settings", {"dropped_notices": 1}, "PUT")
    yield
    stack.control("settings", {"dropped_notices": 0}, "PUT")


@pytest.mark.usefixtures("no_notices")
def test_a_machine_that_ends_without_a_notice_requeues_its_reservation(stack: Stack) -> None:
    row, slot = lease(stack)
    stack.let_happen("interrupt", str(slot.instance_id), deadline=0.1)
    again = wait_for(lambda: found if (found := stack.find(row.id)).token > row.token else None, "another lease")
    assert slot_of(stack, again).instance_id != slot.instance_id
    assert (again.created_at, again.interruptions, again.restarts) == (row.created_at, 1, 0)


@pytest.mark.parametrize("grace", [0, SHORT])
def test_a_grace_ends_the_lease_before_the_deadline(stack: Stack, grace: float) -> None:
    stack.apply(some_rules(interruption_grace=grace))
    row, slot = lease(stack)
    stack.let_happen("interrupt", str(slot.instance_id), deadline=ENDS_AFTER)
    again = wait_for(lambda: found if (found := stack.find(row.id)).token > row.token else None, "another lease")
    events = stack.services.ports.store.read_events(EventFilter(reservation=row.id))
    names = [event.name.removeprefix("reservation_") for event in events]
    assert names == ["submitted", "leased", *(["revoking"] if grace else []), "pending", "leased"]
    assert again.leased_at is not None
    assert slot_of(stack, again).id != slot.id


def test_with_on_interruption_fail_the_reservation_fails(stack: Stack) -> None:
    row, slot = lease(stack, on_interruption="fail")
    stack.let_happen("interrupt", str(slot.instance_id), deadline=ENDS_AFTER)
    (failed,) = stack.await_phase([row.id], "failed")
    assert failed.reason == "slot_interrupted"


def test_a_rebalance_recommendation_keeps_the_lease_and_the_slot_takes_no_new_one(stack: Stack) -> None:
    row, slot = lease(stack)
    stack.let_happen("rebalance", str(slot.instance_id))
    draining = wait_for(lambda: found if (found := slot_of(stack, row)).state == "draining" else None, "the drain")
    assert draining.drain_reason == "rebalance"
    other, elsewhere = lease(stack)
    assert elsewhere.id != slot.id
    assert stack.find(row.id).phase == "leased"
    assert stack.ask("release", {"reservation": row.id, "token": row.token})["ok"]
    wait_for(lambda: all(each.instance_id != slot.instance_id for each in stack.slots(POOL)), "the end of the machine")
    assert stack.find(other.id).phase == "leased"
