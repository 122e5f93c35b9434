"""Elastic instances on real processes: grants, revocations with a deadline, and lost machines of either kind."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from leasehold import Client
from leasehold.client.lease import Lease
from leasehold.client.lease_changes import Change
from leasehold.client.reservation_fields import ComponentFields
from scheduler.model.reservations import Reservation
from scheduler.ports import EventFilter
from testbed.processes import PATIENCE, wait_for
from testbed.stack import Stack, a_pool
from tests.system.conftest import RULES

pytestmark = pytest.mark.timeout(180)
LAB, FLEET = "elastic-lab", "elastic-fleet"
HOSTS = tuple(f"elastic-{number}" for number in range(1, 4))
GRACE = 4.0
"""Seconds; longer than a surrender takes, and shorter than the timeout of a wait."""
ELASTIC_RULES: dict[str, Any] = {
    "scheduler": {"system": {LAB: {"preemption_grace": GRACE}, FLEET: {"restart_delay": 1}}},
    "pools": {
        **RULES["pools"],
        LAB: {"system": LAB, "provider": "static", "offline_timeout": 600},
        FLEET: a_pool(
            system=FLEET,
            max_slots=4,
            max_leases_per_slot=1,
            launch_for_elastic=True,
            idle_scale_down=600,
            offerings=[{"name": "m5.large", "market": "spot"}],
        ),
    },
}


def components(more: int) -> list[ComponentFields]:
    """Return one essential instance and this number of elastic instances."""
    return [{"name": "core"}, {"name": "more", "count": more, "kind": "elastic"}]


@pytest.fixture(scope="module")
def elastic_stack(stack: Stack) -> Iterator[Stack]:
    """The stack with a pool of static hosts and a pool of spot machines; one lease fits on each machine."""
    stack.apply(ELASTIC_RULES)
    for name in HOSTS:
        assert stack.ask("register", {"slot": name, "pool": LAB, "machine": f"m-{name}"})["ok"]
    yield stack
    for row in stack.services.ports.store.find_reservations(phases=["pending", "leased", "revoking"]):
        if row.request.pool in {LAB, FLEET}:
            stack.ask("cancel", {"reservation": row.id})
    assert stack.ask("remove", {"items": [{"slot": name} for name in HOSTS]})["ok"]
    stack.apply(
        {
            **ELASTIC_RULES,
            "pools": {**ELASTIC_RULES["pools"], FLEET: {**ELASTIC_RULES["pools"][FLEET], "idle_scale_down": 0.5}},
        }
    )
    stack.await_empty(FLEET)
    stack.apply(RULES)


def submit_and_await(stack: Stack, name: str) -> Reservation:
    """Submit a reservation for a static host; return its row when it has a lease or a claim."""
    assert stack.ask("submit", {"id": name, "pool": LAB, "ttl": 0})["ok"]
    return wait_for(lambda: row if (row := stack.find(name)).leases else None, "a lease or a claim")


def hold_elastic(stack: Stack, name: str) -> Reservation:
    """Submit a reservation with an essential and an elastic instance; return its row when both are leased."""
    request = {"id": name, "pool": FLEET, "ttl": 0, "restart_policy": "on_failure", "components": components(1)}
    assert stack.ask("submit", request)["ok"]
    return await_both(stack, name, 0)


def await_both(stack: Stack, name: str, token: int) -> Reservation:
    """Return the reservation when both instances have leases with tokens above `token`."""

    def look() -> Reservation | None:
        row = stack.find(name)
        return row if [each.token > token for each in row.leases] == [True, True] and row.phase == "leased" else None

    return wait_for(look, f"both leases of {name}")


def machine_of(stack: Stack, row: Reservation, component: str) -> str:
    """Return the EC2 instance of the lease of this component."""
    slot = next(lease.slot for lease in row.leases if lease.component == component)
    return next(str(each.instance_id) for each in stack.slots(FLEET) if each.id == slot)


def list_events(stack: Stack, name: str) -> list[str]:
    """Return the events of the reservation after the first three (submitted, leased, granted)."""
    events = stack.services.ports.store.read_events(EventFilter(reservation=name))
    return [event.name.removeprefix("reservation_") for event in events][3:]


def read(lease: Lease, skipped: int, count: int) -> list[Change]:
    """Return the next `count` changes of the lease after the first `skipped`."""
    return list(islice(lease.changes(timeout=PATIENCE), skipped, skipped + count))


def list_changes(stack: Stack, slot: str, names: tuple[str, ...]) -> list[str]:
    """Return "RESERVATION +" or "RESERVATION -" for each begin and end of a lease on this slot, in order of commits."""
    found: list[tuple[int, str]] = []
    for name in names:
        held: list[str] = []
        for event in stack.services.ports.store.read_events(EventFilter(reservation=name)):
            detail: dict[str, Any] = dict(event.detail)
            kind, is_here = event.name.removeprefix("reservation_"), detail.get("slot") == slot
            if kind == "leased" and slot in detail["slots"]:
                held, is_here = ["core"], True
            elif kind == "granted" and is_here:
                held = [*held, detail["component"]]
            elif kind == "revoked" and is_here and "deadline" not in detail:
                held = [each for each in held if each != detail["component"]]
            elif kind in {"pending", "released", "failed"} and held:
                held, is_here = [], True
            else:
                continue
            if is_here:
                found.append((event.number, f"{name} {'+' if held else '-'}"))
    return [change for _, change in sorted(found)]


def test_an_elastic_instance_is_revoked_for_a_pending_reservation_until_surrender_or_deadline(
    elastic_stack: Stack,
) -> None:
    names = ("elastic", "claimant", "second-claimant")
    with Client(elastic_stack.redis_server.url) as client:
        with client.lease(id="elastic", pool=LAB, components=components(2), wait=PATIENCE) as lease:
            first = read(lease, 0, 2)
            assert [(each.kind, each.component, each.deadline) for each in first] == [
                ("granted", "more.0", None),
                ("granted", "more.1", None),
            ]
            pending = submit_and_await(elastic_stack, "claimant")
            assert (pending.phase, [each.state for each in pending.leases]) == ("pending", ["claimed"])
            (warned,) = read(lease, 2, 1)
            assert (warned.kind, warned.component) == ("revoking", "more.1")
            assert warned.deadline is not None
            assert elastic_stack.find("claimant").phase == "pending"
            lease.surrender("more.1")
            (claimant,) = elastic_stack.await_phase(["claimant"], "leased")
            assert (claimant.leased_at or 0) < warned.deadline
            assert [each.slot for each in claimant.leases] == [warned.placement.slot]
            assert [(each.kind, each.component) for each in read(lease, 3, 1)] == [("revoked", "more.1")]

            submit_and_await(elastic_stack, "second-claimant")
            (warned,) = read(lease, 4, 1)
            assert (warned.kind, warned.component) == ("revoking", "more.0")
            (second,) = elastic_stack.await_phase(["second-claimant"], "leased")
            assert (second.leased_at or 0) >= (warned.deadline or 0)
            assert [(each.kind, each.component) for each in read(lease, 5, 1)] == [("revoked", "more.0")]

            assert elastic_stack.ask("release", {"reservation": claimant.id, "token": claimant.token})["ok"]
            assert [(each.kind, each.component) for each in read(lease, 6, 1)] == [("granted", "more.0")]
            assert not lease.lost.is_set()
        assert elastic_stack.ask("release", {"reservation": second.id, "token": second.token})["ok"]
    assert elastic_stack.find("elastic").token == lease.token
    for slot in HOSTS:
        changes = list_changes(elastic_stack, slot, names)
        assert changes
        assert [each.split()[1] for each in changes] == ["+", "-"] * (len(changes) // 2)
        assert [each.split()[0] for each in changes[::2]] == [each.split()[0] for each in changes[1::2]]


def test_a_surrendered_instance_frees_its_slot_and_is_not_granted_again(elastic_stack: Stack) -> None:
    with (
        Client(elastic_stack.redis_server.url) as client,
        client.lease(id="shrinking", pool=LAB, components=components(2), wait=PATIENCE) as lease,
    ):
        first, second = read(lease, 0, 2)
        lease.surrender(second.component)
        (gone,) = read(lease, 2, 1)
        assert (gone.kind, gone.component, gone.deadline) == ("revoked", "more.1", None)
        row = submit_and_await(elastic_stack, "next")
        (row,) = elastic_stack.await_phase(["next"], "leased")
        assert [each.slot for each in row.leases] == [gone.placement.slot]
        assert elastic_stack.ask("release", {"reservation": row.id, "token": row.token})["ok"]
        released = elastic_stack.services.ports.store.now()
        wait_for(lambda: elastic_stack.services.ports.store.load_leader_term().ticked_at > released, "a tick")
        held = [each.component for each in lease.placements]
        assert held == ["core", first.component]
    assert list_events(elastic_stack, "shrinking") == ["granted", "revoked", "released"]


def test_an_interrupted_essential_instance_requeues_the_whole_reservation(elastic_stack: Stack) -> None:
    row = hold_elastic(elastic_stack, "interrupted")
    core, more = row.leases
    # The machine is left to EC2 until it ends, and the next test needs empty slots.
    elastic_stack.let_happen("interrupt", machine_of(elastic_stack, row, "core"), deadline=15)
    elastic_stack.await_phase(["interrupted"], "revoking")
    assert elastic_stack.ask("surrender", {"reservation": "interrupted", "token": row.token})["ok"]
    again = await_both(elastic_stack, "interrupted", max(core.token, more.token))
    assert core.slot not in {each.slot for each in again.leases}
    assert (again.restarts, again.component_restarts, again.interruptions) == (0, None, 1)
    assert list_events(elastic_stack, "interrupted") == ["revoking", "pending", "leased", "granted"]
    assert elastic_stack.ask("release", {"reservation": "interrupted", "token": again.token})["ok"]


def test_an_instance_whose_machine_is_lost_is_restarted_by_policy_and_counted(elastic_stack: Stack) -> None:
    """A lost essential instance restarts the whole reservation. A lost elastic instance is replaced alone."""
    row = hold_elastic(elastic_stack, "lost")
    elastic_stack.let_happen("lose", machine_of(elastic_stack, row, "core"))
    again = await_both(elastic_stack, "lost", max(each.token for each in row.leases))
    assert list_events(elastic_stack, "lost") == ["failed", "pending", "leased", "granted"]
    assert (again.restarts, again.component_restarts) == (1, {"core": 1})

    core, more = again.leases
    elastic_stack.let_happen("lose", machine_of(elastic_stack, again, "more"))

    def look() -> Reservation | None:
        found = elastic_stack.find("lost")
        return found if found.leases[1:] and found.leases[1].token > more.token else None

    replaced = wait_for(look, "a replacement")
    assert (replaced.token, replaced.leased_at, replaced.leases[0]) == (again.token, again.leased_at, core)
    assert (replaced.restarts, replaced.component_restarts) == (1, {"core": 1, "more": 1})
    assert list_events(elastic_stack, "lost")[4:] == ["revoked", "granted"]
    assert elastic_stack.ask("release", {"reservation": "lost", "token": again.token})["ok"]
