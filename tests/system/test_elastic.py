"""Elastic parts through real processes: granted, taken back by notice and deadline, lost; and what an essential one
takes with it when its machine goes.
"""

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
from tests.system.conftest import RULES
from tests.system.processes import PATIENCE, wait_for
from tests.system.stack import Stack, a_pool

pytestmark = pytest.mark.timeout(180)
HALL, FLEET = "stretch-hall", "stretch-fleet"
HOSTS = tuple(f"stretch-{number}" for number in range(1, 4))
GRACE = 4.0
"""Seconds: longer than it takes to let go, shorter than a test waits."""
PARTED: dict[str, Any] = {
    "scheduler": {"system": {HALL: {"preemption_grace": GRACE}, FLEET: {"restart_delay": 1}}},
    "pools": {
        **RULES["pools"],
        HALL: {"system": HALL, "provider": "static", "offline_timeout": 600},
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


def parts(more: int) -> list[ComponentFields]:
    """One essential instance, and this number of elastic ones."""
    return [{"name": "core"}, {"name": "more", "count": more, "kind": "elastic"}]


@pytest.fixture(scope="module")
def parted(stack: Stack) -> Iterator[Stack]:
    """The stack with a pool of hosts and one of spot machines, a place on each; empty again afterwards."""
    stack.apply(PARTED)
    for name in HOSTS:
        assert stack.ask("register", {"slot": name, "pool": HALL, "machine": f"m-{name}"})["ok"]
    yield stack
    for row in stack.services.ports.store.find_reservations(phases=["pending", "leased", "revoking"]):
        if row.request.pool in {HALL, FLEET}:
            stack.ask("cancel", {"reservation": row.id})
    assert stack.ask("remove", {"items": [{"slot": name} for name in HOSTS]})["ok"]
    stack.apply({**PARTED, "pools": {**PARTED["pools"], FLEET: {**PARTED["pools"][FLEET], "idle_scale_down": 0.5}}})
    stack.await_empty(FLEET)
    stack.apply(RULES)


def newcomer(stack: Stack, name: str) -> Reservation:
    """Somebody who needs a place in the hall, as he is once he was given one or has a claim on one."""
    assert stack.ask("submit", {"id": name, "pool": HALL, "ttl": 0})["ok"]
    return wait_for(lambda: row if (row := stack.find(name)).leases else None, "a claim")


def stretch(stack: Stack, name: str) -> Reservation:
    """A reservation with an essential and an elastic instance, each on a machine of its own, once it holds both."""
    wish = {"id": name, "pool": FLEET, "ttl": 0, "restart_policy": "on_failure", "components": parts(1)}
    assert stack.ask("submit", wish)["ok"]
    return complete(stack, name, 0)


def complete(stack: Stack, name: str, token: int) -> Reservation:
    """The reservation, once it holds both under tokens after this one."""

    def look() -> Reservation | None:
        row = stack.find(name)
        return row if [each.token > token for each in row.leases] == [True, True] and row.phase == "leased" else None

    return wait_for(look, f"both parts of {name}")


def machine_of(stack: Stack, row: Reservation, component: str) -> str:
    """The EC2 instance of one of its leases."""
    slot = next(lease.slot for lease in row.leases if lease.component == component)
    return next(str(each.instance_id) for each in stack.slots(FLEET) if each.id == slot)


def told(stack: Stack, name: str) -> list[str]:
    """What became of it so far, but for what begins every story."""
    events = stack.services.ports.store.read_events(EventFilter(reservation=name))
    return [event.name.removeprefix("reservation_") for event in events][3:]


def read(lease: Lease, skipped: int, count: int) -> list[Change]:
    """The next changes, after those that were read before."""
    return list(islice(lease.changes(timeout=PATIENCE), skipped, skipped + count))


def turns(stack: Stack, slot: str, names: tuple[str, ...]) -> list[str]:
    """Who got this slot and who no longer had it, in the order in which that was committed, by the events."""
    found: list[tuple[int, str]] = []
    for name in names:
        held: list[str] = []
        for event in stack.services.ports.store.read_events(EventFilter(reservation=name)):
            detail: dict[str, Any] = dict(event.detail)
            what, mine = event.name.removeprefix("reservation_"), detail.get("slot") == slot
            if what == "leased" and slot in detail["slots"]:
                held, mine = ["core"], True
            elif what == "granted" and mine:
                held = [*held, detail["component"]]
            elif what == "revoked" and mine and "deadline" not in detail:
                held = [each for each in held if each != detail["component"]]
            elif what in {"pending", "released", "failed"} and held:
                held, mine = [], True
            else:
                continue
            if mine:
                found.append((event.number, f"{name} {'+' if held else '-'}"))
    return [turn for _, turn in sorted(found)]


def test_a_part_is_asked_back_for_a_newcomer_who_gets_its_place_when_it_is_given_up_or_the_time_is_over(
    parted: Stack,
) -> None:
    names = ("stretched", "patient", "impatient")
    with Client(parted.redis_server.url) as client:
        with client.lease(id="stretched", pool=HALL, components=parts(2), wait=PATIENCE) as lease:
            first = read(lease, 0, 2)
            assert [(each.kind, each.component, each.deadline) for each in first] == [
                ("granted", "more.0", None),
                ("granted", "more.1", None),
            ]
            claimed = newcomer(parted, "patient")
            assert (claimed.phase, [each.state for each in claimed.leases]) == ("pending", ["claimed"])
            (warned,) = read(lease, 2, 1)
            assert (warned.kind, warned.component) == ("revoking", "more.1")
            assert warned.deadline is not None
            assert parted.find("patient").phase == "pending"
            lease.surrender("more.1")
            (patient,) = parted.await_phase(["patient"], "leased")
            assert (patient.leased_at or 0) < warned.deadline
            assert [each.slot for each in patient.leases] == [warned.placement.slot]
            assert [(each.kind, each.component) for each in read(lease, 3, 1)] == [("revoked", "more.1")]

            newcomer(parted, "impatient")
            (warned,) = read(lease, 4, 1)
            assert (warned.kind, warned.component) == ("revoking", "more.0")
            (impatient,) = parted.await_phase(["impatient"], "leased")
            assert (impatient.leased_at or 0) >= (warned.deadline or 0)
            assert [(each.kind, each.component) for each in read(lease, 5, 1)] == [("revoked", "more.0")]

            assert parted.ask("release", {"reservation": patient.id, "token": patient.token})["ok"]
            assert [(each.kind, each.component) for each in read(lease, 6, 1)] == [("granted", "more.0")]
            assert not lease.lost.is_set()
        assert parted.ask("release", {"reservation": impatient.id, "token": impatient.token})["ok"]
    assert parted.find("stretched").token == lease.token
    for slot in HOSTS:
        told = turns(parted, slot, names)
        assert told
        assert [each.split()[1] for each in told] == ["+", "-"] * (len(told) // 2)
        assert [each.split()[0] for each in told[::2]] == [each.split()[0] for each in told[1::2]]


def test_a_holder_that_shrinks_by_itself_makes_room_and_is_given_no_more_of_that_component(parted: Stack) -> None:
    with (
        Client(parted.redis_server.url) as client,
        client.lease(id="shrinking", pool=HALL, components=parts(2), wait=PATIENCE) as lease,
    ):
        first, second = read(lease, 0, 2)
        lease.surrender(second.component)
        (gone,) = read(lease, 2, 1)
        assert (gone.kind, gone.component, gone.deadline) == ("revoked", "more.1", None)
        row = newcomer(parted, "moving-in")
        (row,) = parted.await_phase(["moving-in"], "leased")
        assert [each.slot for each in row.leases] == [gone.placement.slot]
        assert parted.ask("release", {"reservation": row.id, "token": row.token})["ok"]
        released = parted.services.ports.store.now()
        wait_for(lambda: parted.services.ports.store.load_leader_term().ticked_at > released, "a tick")
        held = [each.component for each in lease.placements]
        assert held == ["core", first.component]
    assert told(parted, "shrinking") == ["granted", "revoked", "released"]


def test_an_essential_part_on_an_interrupted_machine_takes_the_whole_back_to_the_queue_and_elsewhere(
    parted: Stack,
) -> None:
    row = stretch(parted, "noticed")
    core, more = row.leases
    parted.let_happen("interrupt", machine_of(parted, row, "core"))
    parted.await_phase(["noticed"], "revoking")
    assert parted.ask("surrender", {"reservation": "noticed", "token": row.token})["ok"]
    again = complete(parted, "noticed", max(core.token, more.token))
    assert core.slot not in {each.slot for each in again.leases}
    assert (again.restarts, again.component_restarts, again.interruptions) == (0, None, 1)
    assert told(parted, "noticed") == ["revoking", "pending", "leased", "granted"]
    assert parted.ask("release", {"reservation": "noticed", "token": again.token})["ok"]


def test_a_part_whose_machine_goes_without_notice_is_restarted_by_policy_and_counted(parted: Stack) -> None:
    """An essential one restarts the whole reservation; an elastic one is replaced, and the rest continues."""
    row = stretch(parted, "robbed")
    parted.let_happen("lose", machine_of(parted, row, "core"))
    again = complete(parted, "robbed", max(each.token for each in row.leases))
    assert told(parted, "robbed") == ["failed", "pending", "leased", "granted"]
    assert (again.restarts, again.component_restarts) == (1, {"core": 1})

    core, more = again.leases
    parted.let_happen("lose", machine_of(parted, again, "more"))

    def look() -> Reservation | None:
        found = parted.find("robbed")
        return found if found.leases[1:] and found.leases[1].token > more.token else None

    mended = wait_for(look, "a replacement")
    assert (mended.token, mended.leased_at, mended.leases[0]) == (again.token, again.leased_at, core)
    assert (mended.restarts, mended.component_restarts) == (1, {"core": 1, "more": 1})
    assert told(parted, "robbed")[4:] == ["revoked", "granted"]
    assert parted.ask("release", {"reservation": "robbed", "token": again.token})["ok"]
