"""The planner and the commit ask one rule of capacity (`policy/capacity/fits.py`): on unchanged rows they agree."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from scheduler.model.reservations import Component, Lease, Reservation
from scheduler.model.slots import Slot
from scheduler.model.view import Row
from scheduler.operations.tick.tick import Ticked
from tests.builders import a_component, a_lease, a_reservation, a_slot
from tests.operations.harness import NOW, Harness
from tests.rules.fleets import QUICKLY
from tests.rules.quotas import an_account

Document = dict[str, Any]
OBSTACLES = (
    "has its maximum number of leases",
    "has too few resources left",
    "has had its maximum number of leases (max_uses)",
)
NAMES = ("linux-1", "linux-2")


def tick_on(config: Document, rows: list[Row]) -> tuple[Harness, Ticked]:
    """Store these rows unchanged and run a tick on them."""
    harness = Harness(config)
    reservations = [row for row in rows if isinstance(row, Reservation)]
    with harness.store.transaction() as transaction:
        new = [msgspec.structs.replace(row, leases=(), phase="pending") for row in reservations]
        stored = transaction.insert_reservations(new)
        known = transaction.load_slots(NAMES)
    accounts = [row for row in rows if not isinstance(row, Reservation | Slot)]
    slots = [msgspec.structs.replace(row, version=known[row.id].version) for row in rows if isinstance(row, Slot)]
    harness.put(
        *accounts,
        *slots,
        *(
            msgspec.structs.replace(row, version=new.version, sequence=new.sequence)
            for row, new in zip(reservations, stored, strict=True)
        ),
    )
    harness.ports.view_cache.rebuild(list(harness.store.read_rows()))
    return harness, harness.tick()


@st.composite
def configs(draw: st.DrawFn) -> Document:
    """Draw rules with one pool, limits of each kind, and any queue and elastic setting."""
    pool: Document = {"system": "x86_64-linux", "max_slots": 2, "max_uses": draw(st.sampled_from([0, 0, 2, 4]))}
    if draw(st.booleans()):
        pool["resources"] = {"cpus": 4}
    if limit := draw(st.sampled_from([0, 1, 2, 3])):
        pool["max_leases_per_slot"] = limit
    scheduler = {
        "queue": draw(st.sampled_from(["fifo", "quota"])),
        "preemption": draw(st.booleans()),
        "preemption_grace": draw(st.sampled_from([0, 30])),
        "elastic": draw(st.sampled_from(["malleable", "flexible", "yielding"])),
    }
    return {"scheduler": scheduler, "pools": {"linux": pool}}


@st.composite
def rows(draw: st.DrawFn) -> list[Row]:
    """Draw two slots, which may be smaller than their leases, and reservations in each state."""
    found: list[Row] = [an_account("A", 100), an_account("B", 1)]
    for name in NAMES:
        capacity = draw(st.none() | st.fixed_dictionaries({"cpus": st.integers(1, 5)}))
        found.append(a_slot(name, resources=capacity, uses=draw(st.integers(0, 3))))
    return [*found, *(draw(_reservations(f"r{number}")) for number in range(draw(st.integers(1, 6))))]


@st.composite
def _reservations(draw: st.DrawFn, name: str) -> Reservation:
    cpus = draw(st.integers(0, 3))
    parts = (_part("main", cpus), _part("more", draw(st.integers(0, 2)), kind="elastic", count=2))
    components = parts if draw(st.booleans()) else parts[:1]
    changes: Document = {"components": components, "account": draw(st.sampled_from([None, "A", "B"]))}
    state = draw(st.sampled_from(["pending", "pending", "claimed", "held", "held", "revoking"]))
    slot = draw(st.sampled_from(NAMES))
    lease = _lease("main", slot, cpus, state)
    match state:
        case "claimed":
            changes |= {"leases": (lease,)}
        case "held":
            more = [
                _lease(f"more.{index}", draw(st.sampled_from(NAMES)), components[1].resources["cpus"], each, "elastic")
                for index, each in enumerate(draw(st.lists(st.sampled_from(["held", "revoking"]), max_size=2)))
                if len(components) > 1
            ]
            changes |= {"phase": "leased", "leased_at": NOW - 9, "confirmed_at": NOW - 9, "leases": (lease, *more)}
        case "revoking":
            changes |= {"phase": "revoking", "revoke_reason": "preempted", "revoke_by": NOW + 9, "leases": (lease,)}
    return a_reservation(name, created_at=NOW - 60, token=1, **changes)


def _part(name: str, cpus: float, **changes: Any) -> Component:
    return a_component(name, resources={"cpus": cpus}, **changes)


def _lease(component: str, slot: str, cpus: float, state: Any, kind: Any = "essential") -> Lease:
    metered = {"level": 5, "charged_at": None if state == "revoking" else NOW - 9}
    ends = {"revoke_by": NOW + 9} if state == "revoking" else {}
    fields: Document = {"state": state, "kind": kind, "assigned_at": NOW - 9, **metered, **ends}
    return a_lease(slot, component=component, resources={"cpus": cpus}, **fields)


@QUICKLY
@given(configs(), rows())
def test_on_unchanged_rows_the_commit_refuses_no_decision_for_capacity(config: Document, found: list[Row]) -> None:
    _, ticked = tick_on(config, found)
    assert [str(each) for each in ticked.skipped if each.reason.endswith(OBSTACLES)] == []


def _a_claiming(name: str, assigned_at: float) -> Reservation:
    lease = msgspec.structs.replace(_lease("main", "linux-1", 2, "claimed"), assigned_at=assigned_at)
    return a_reservation(name, created_at=NOW - 60, resources={"cpus": 2}, leases=(lease,))


def test_a_claim_becomes_a_lease_on_a_host_with_less_capacity_than_its_claims() -> None:
    """The host registered again with 3 instead of 4 CPUs. The earlier claim fits; the later one has to wait."""
    config = {"scheduler": {"queue": "quota"}, "pools": {"linux": {"system": "x86_64-linux", "max_slots": 2}}}
    harness, ticked = tick_on(
        config, [a_slot("linux-1", resources={"cpus": 3}), _a_claiming("r1", NOW - 9), _a_claiming("r2", NOW - 5)]
    )
    assert (ticked.skipped, harness.phase("r1"), harness.phase("r2")) == ([], "leased", "pending")


def test_a_claim_keeps_its_use_of_a_machine_whose_limit_was_lowered() -> None:
    pool = {"system": "x86_64-linux", "max_slots": 2, "max_uses": 2}
    slot = a_slot("linux-1", resources={"cpus": 4}, uses=2)
    harness, ticked = tick_on({"pools": {"linux": pool}}, [slot, _a_claiming("r1", NOW - 9), a_reservation("r2")])
    assert (ticked.skipped, harness.phase("r1"), harness.phase("r2")) == ([], "leased", "pending")


def test_a_lease_waits_for_one_that_is_revoked_on_a_slot_whose_limit_was_lowered() -> None:
    """The limit was 4 leases for a slot and a grace of 9 s; now they are 2 and 0. The instances `more` of `r2` end at
    once for `r1`, and `r3` uses its place until its deadline.
    """
    config = {
        "scheduler": {"elastic": "flexible", "preemption_grace": 0},
        "pools": {"linux": {"system": "x86_64-linux", "max_slots": 1, "max_leases_per_slot": 2}},
    }
    more = [_lease(f"more.{index}", "linux-1", 0, "held", "elastic") for index in range(2)]
    held = {"phase": "leased", "leased_at": NOW - 9, "confirmed_at": NOW - 9, "token": 1}
    ending = {"phase": "revoking", "revoke_reason": "preempted", "revoke_by": NOW + 9, "token": 1}
    harness, ticked = tick_on(
        config,
        [
            a_slot("linux-1"),
            a_reservation("r1", created_at=NOW - 90),
            a_reservation(
                "r2",
                created_at=NOW - 60,
                components=(_part("main", 0), _part("more", 0, kind="elastic", count=2)),
                leases=(_lease("main", "linux-1", 0, "held"), *more),
                **held,
            ),
            a_reservation("r3", created_at=NOW - 60, leases=(_lease("main", "linux-1", 0, "revoking"),), **ending),
        ],
    )
    assert (ticked.skipped, harness.phase("r1")) == ([], "pending")
    harness.now += 10
    assert harness.tick().skipped == []
    assert (harness.phase("r3"), harness.phase("r1")) == ("pending", "leased")
