"""Commits of grants and of revokes with the assignment that needs them, and commands about elastic instances."""

from typing import Any

import pytest

from scheduler.model.decisions import Assign, Claim, Decision, Grant, Placement, Revoke
from scheduler.model.reservations import Component, Reservation
from scheduler.model.view import Row
from scheduler.operations.unit_of_work import UnitOfWork
from tests.operations.harness import NOW, Harness
from tests.operations.test_commit import SPOT, a_leased, a_pending, a_small_lease, slot, write_all

CPUS: dict[str, float] = {"cpus": 2}
PARTS = (Component(name="main", resources=CPUS), Component(name="more", count=2, kind="elastic", resources=CPUS))


def elastic_lease(index: int = 0, **changes: Any) -> Any:
    """Return the lease of an elastic instance with two CPUs."""
    return a_small_lease(component=f"more.{index}", kind="elastic", **{"token": 5 + index} | changes)


def with_elastic(*parts: Any, name: str = "r1", **changes: Any) -> Reservation:
    """Return a reservation with leases of its essential instance and of these elastic ones."""
    return a_leased(name, components=PARTS, leases=(a_small_lease(), *parts), **changes)


GRANT = Grant(reservation="r1", component="more.0", slot="linux-1", epoch=1, resources=CPUS)
REVOKE = Revoke(reservation="r1", component="more.0", slot="linux-1", reason="reclaimed", epoch=1)
REVOKE_LATER = Revoke(
    reservation="r1", component="more.0", slot="linux-1", reason="reclaimed", epoch=1, revoke_by=NOW + 30
)
GONE = Revoke(reservation="r1", component="more.0", slot="linux-1", reason="slot_gone", epoch=1)
INTERRUPTED = Revoke(reservation="r1", component="more.0", slot="linux-1", reason="slot_interrupted", epoch=1)
ASSIGN_R2 = Assign(reservation="r2", leases=(Placement("main", "linux-1", 1, CPUS),))
REVOKE_FOR_R2 = Revoke(reservation="r1", component="more.0", slot="linux-1", reason="reclaimed", epoch=1, room_for="r2")
REVOKE_LATER_FOR_R2 = Revoke(
    reservation="r1", component="more.0", slot="linux-1", reason="reclaimed", epoch=1, revoke_by=NOW + 30, room_for="r2"
)
CLAIM = Claim(reservation="r2", leases=ASSIGN_R2.leases)

LOST: list[tuple[str, list[Row], Decision, str]] = [
    ("it is pending again", [slot(), a_pending(components=PARTS)], GRANT, "the reservation is pending"),
    (
        "it has been cancelled",
        [slot(), a_pending(components=PARTS, phase="cancelled")],
        GRANT,
        "the reservation is cancelled",
    ),
    ("it has the lease already", [slot(), with_elastic(elastic_lease())], GRANT, "the instance has a lease already"),
    (
        "no capacity is left",
        [slot(), with_elastic(), a_leased("r3")],
        GRANT,
        "linux-1 has its maximum number of leases",
    ),
    (
        "the holder gave the instance back",
        [slot(), with_elastic(declined=("more.0",))],
        GRANT,
        "the holder does not want the instance any more",
    ),
    (
        "the holder wants fewer",
        [slot(), with_elastic(elastic_lease(1), declined=("more=1",))],
        GRANT,
        "the holder does not want the instance any more",
    ),
    ("the slot drains", [slot("draining"), with_elastic()], GRANT, "linux-1 is draining"),
    ("another machine", [slot(epoch=2), with_elastic()], GRANT, "linux-1 has another machine than planned"),
    ("cordoned", [slot(cordoned=True), with_elastic()], GRANT, "linux-1 takes no leases"),
    ("no such instance", [slot(), a_leased()], GRANT, "the rules have changed since the plan"),
    ("surrendered meanwhile", [slot(), with_elastic()], REVOKE, "the reservation does not have this lease any more"),
    (
        "it is on another slot",
        [slot(), with_elastic(elastic_lease(slot="linux-2"))],
        REVOKE,
        "the reservation does not have this lease any more",
    ),
    (
        "the whole reservation is revoked",
        [slot(), with_elastic(elastic_lease(), phase="revoking")],
        REVOKE,
        "the reservation is revoking",
    ),
    (
        "its grace is not over",
        [slot(), with_elastic(elastic_lease(state="revoking", revoke_by=NOW + 1))],
        REVOKE,
        "the grace period of the holder is not over",
    ),
    ("its slot came back", [slot(), with_elastic(elastic_lease())], GONE, "the slot of the lease is not lost"),
    (
        "it is not interrupted any more",
        [slot(), with_elastic(elastic_lease())],
        INTERRUPTED,
        "the slot of the lease is not lost",
    ),
    (
        "a claim beside leases that are not being revoked",
        [slot(), with_elastic(elastic_lease()), a_leased("r3"), a_pending("r2")],
        CLAIM,
        "linux-1 has its maximum number of leases",
    ),
]


@pytest.mark.parametrize(("rows", "decision", "reason"), [each[1:] for each in LOST], ids=[each[0] for each in LOST])
def test_an_elastic_decision_that_no_longer_holds_changes_nothing(
    rows: list[Row], decision: Decision, reason: str
) -> None:
    reasons, is_change, _ = write_all(rows, [decision])
    assert (reasons, is_change) == ([reason], False)


def leases_of(harness: Harness, name: str) -> list[tuple[str, str, float | None]]:
    [row] = harness.store.find_reservations(ids=[name])
    return [(each.component, each.state, each.revoke_by) for each in row.leases]


def test_a_grant_gets_a_new_token_and_the_reservation_keeps_its_token() -> None:
    reasons, _, harness = write_all(
        [slot(), a_leased(components=PARTS, token=99, leases=(a_small_lease(token=99),))], [GRANT]
    )
    [row] = harness.store.find_reservations(ids=["r1"])
    main, more = row.leases
    assert reasons == []
    assert (row.token, main.token, more.kind, more.token != main.token) == (99, 99, "elastic", True)
    assert [each.detail["component"] for each in harness.events if each.name == "reservation_granted"] == ["more.0"]


def test_a_revoke_ends_at_once_or_by_its_deadline() -> None:
    _, _, harness = write_all([slot(), with_elastic(elastic_lease())], [REVOKE])
    assert leases_of(harness, "r1") == [("main", "held", None)]
    _, _, harness = write_all([slot(), with_elastic(elastic_lease())], [REVOKE_LATER])
    assert leases_of(harness, "r1") == [("main", "held", None), ("more.0", "revoking", NOW + 30)]
    over = with_elastic(elastic_lease(state="revoking", revoke_by=NOW))
    _, _, harness = write_all([slot(), over], [REVOKE])
    assert leases_of(harness, "r1") == [("main", "held", None)]


def test_only_the_event_of_a_revoke_with_a_grace_period_has_a_deadline() -> None:
    """So a reader of the events can distinguish the notice from the end."""
    deadlines = []
    for row, decision in ((elastic_lease(), REVOKE_LATER), (elastic_lease(state="revoking", revoke_by=NOW), REVOKE)):
        _, _, harness = write_all([slot(), with_elastic(row)], [decision])
        deadlines += [each.detail.get("deadline") for each in harness.events if each.name == "reservation_revoked"]
    assert deadlines == [NOW + 30, None]


def test_a_lost_or_interrupted_slot_ends_only_its_elastic_instance() -> None:
    gone = with_elastic(elastic_lease(epoch=0))
    lost = Revoke(reservation="r1", component="more.0", slot="linux-1", reason="slot_gone", epoch=0)
    assert leases_of(write_all([slot(), gone], [lost])[2], "r1") == [("main", "held", None)]
    rows: list[Row] = [slot(**SPOT), with_elastic(elastic_lease())]
    assert leases_of(write_all(rows, [INTERRUPTED])[2], "r1") == [("main", "held", None)]


def test_the_reservation_that_needs_the_capacity_gets_it_in_the_same_write() -> None:
    reasons, _, harness = write_all(
        [slot(), with_elastic(elastic_lease()), a_pending("r2")], [REVOKE_FOR_R2, ASSIGN_R2]
    )
    assert reasons == []
    assert leases_of(harness, "r1") == [("main", "held", None)]
    assert leases_of(harness, "r2") == [("main", "held", None)]


@pytest.mark.parametrize("assignment", [None, ASSIGN_R2], ids=["alone", "with an assignment"])
def test_revokes_of_many_instances_change_their_reservation_once(
    assignment: Assign | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each change copies all leases of the reservation, so one change per instance would take quadratic time."""
    count = 50
    components = (PARTS[0], Component(name="more", count=count, kind="elastic", resources=CPUS))
    held = a_leased(
        "r1", components=components, leases=(a_small_lease(), *(elastic_lease(number) for number in range(count)))
    )
    room_for = None if assignment is None else assignment.reservation
    revokes = [
        Revoke(
            reservation="r1", component=each.component, slot="linux-1", reason="reclaimed", epoch=1, room_for=room_for
        )
        for each in held.leases[1:]
    ]
    changed: list[str] = []
    put = UnitOfWork.put

    def count_put(work: UnitOfWork, row: Row) -> None:
        changed.append(row.id)
        put(work, row)

    monkeypatch.setattr(UnitOfWork, "put", count_put)
    decisions: list[Decision] = [*revokes, *([] if assignment is None else [assignment])]
    reasons, _, harness = write_all([slot(), held, a_pending("r2")], decisions)
    assert reasons == []
    assert changed.count("r1") == 1
    assert leases_of(harness, "r1") == [("main", "held", None)]
    assert sum(each.name == "reservation_revoked" for each in harness.events) == count


def test_with_a_grace_the_other_reservation_gets_a_claim() -> None:
    reasons, _, harness = write_all(
        [slot(), with_elastic(elastic_lease()), a_pending("r2")], [REVOKE_LATER_FOR_R2, CLAIM]
    )
    assert reasons == []
    assert leases_of(harness, "r1") == [("main", "held", None), ("more.0", "revoking", NOW + 30)]
    assert leases_of(harness, "r2") == [("main", "claimed", None)]
    assert harness.store.find_reservations(ids=["r2"])[0].phase == "pending"


ALL_OR_NONE: dict[str, list[Row]] = {
    "the other reservation was cancelled": [slot(), with_elastic(elastic_lease()), a_pending("r2", phase="cancelled")],
    "the other reservation was deleted": [slot(), with_elastic(elastic_lease())],
    "the instance was surrendered": [slot(), with_elastic(elastic_lease(1)), a_pending("r2")],
    "the revoked reservation was requeued": [
        slot(),
        a_pending("r1", components=PARTS),
        a_pending("r2"),
        a_leased("r3"),
        a_leased("r4"),
    ],
    "the slot is cordoned": [slot(cordoned=True), with_elastic(elastic_lease()), a_pending("r2")],
}


@pytest.mark.parametrize("name", ALL_OR_NONE)
@pytest.mark.parametrize(
    "unit", [[REVOKE_FOR_R2, ASSIGN_R2], [REVOKE_LATER_FOR_R2, CLAIM]], ids=["at once", "with a grace"]
)
def test_revokes_and_their_assignment_are_committed_together_or_not_at_all(name: str, unit: list[Decision]) -> None:
    reasons, is_change, _ = write_all(ALL_OR_NONE[name], unit)
    assert (len(reasons), is_change) == (2, False)


def a_harness() -> Harness:
    """Return a harness where r1 has leases of its essential instance and of two elastic ones."""
    linux = {"system": "x86_64-linux", "max_slots": 1, "max_leases_per_slot": 9, "resources": {"cpus": 6}}
    harness = Harness({"pools": {"linux": linux}})
    harness.ask(
        "submit",
        id="r1",
        system="x86_64-linux",
        components=[
            {"name": "main", "resources": CPUS},
            {"name": "more", "count": 2, "kind": "elastic", "resources": CPUS},
        ],
    )
    harness.settle()
    return harness


def test_an_instance_is_surrendered_with_its_own_token_or_the_reservations() -> None:
    harness = a_harness()
    [row] = harness.store.find_reservations(ids=["r1"])
    main, first, second = row.leases
    assert len({main.token, first.token, second.token}) == 3
    stale = harness.ask("surrender", reservation="r1", component="more.0", token=second.token)
    assert stale["errors"][0]["path"] == "token"
    assert harness.ask("surrender", reservation="r1", component="more.0", token=first.token)["ok"]
    assert harness.ask("surrender", reservation="r1", component="more.1", token=main.token)["ok"]
    assert leases_of(harness, "r1") == [("main", "held", None)]


def test_a_number_needs_an_elastic_component_a_leased_reservation_and_its_token() -> None:
    harness = a_harness()
    [row] = harness.store.find_reservations(ids=["r1"])
    ask = {"reservation": "r1", "want": 1}
    for fields, path in (
        ({"component": "main", "token": row.token}, "component"),
        ({"component": "more.7", "token": row.token}, "component"),
        ({"component": "more", "token": row.leases[1].token}, "token"),
        ({"component": "more", "token": row.token, "want": -1}, "want"),
    ):
        assert harness.ask("surrender", **ask | fields)["errors"][0]["path"] == path
    assert harness.ask("surrender", **ask, token=row.token)["ok"]
    assert len(leases_of(harness, "r1")) == 2
    harness.submit("r2", resources={"cpus": 6})
    assert harness.ask("surrender", reservation="r2", want=0)["errors"][0]["path"] == "reservation"


def test_an_essential_instance_that_is_not_revoked_cannot_be_surrendered() -> None:
    harness = a_harness()
    [row] = harness.store.find_reservations(ids=["r1"])
    for component in ({"component": "main"}, {}):
        answer = harness.ask("surrender", reservation="r1", token=row.token, **component)
        assert answer["errors"][0]["expected"] == "a reservation that is being revoked"


def test_the_event_of_a_failure_names_the_failed_component() -> None:
    harness = a_harness()
    [row] = harness.store.find_reservations(ids=["r1"])
    harness.ask("fail", reservation="r1", component="main", token=row.token)
    assert [each.detail["died"] for each in harness.events if each.name == "reservation_failed"] == [["main"]]


def test_grants_and_revocations_are_published_as_notices() -> None:
    harness = a_harness()
    [row] = harness.store.find_reservations(ids=["r1"])
    harness.ask("fail", reservation="r1", component="more.1", token=row.token)
    notices = [(each["event"], len(each["leases"])) for _, each in harness.ports.notifier.notices]  # type: ignore[attr-defined]
    assert notices == [("granted", 3), ("revoked", 2)]


def test_each_of_several_grants_to_one_reservation_is_committed_or_skipped() -> None:
    """A committed grant uses up capacity for the later ones."""
    grants: list[Decision] = [
        Grant(reservation="r1", component=component, slot=name, epoch=1, resources=CPUS)
        for component, name in [
            ("more.0", "linux-9"),
            ("more.0", "linux-1"),
            ("more.1", "linux-1"),
            ("more.0", "linux-1"),
        ]
    ]
    reasons, _, harness = write_all([slot(uses=3), with_elastic()], grants)
    assert reasons == [
        "the slot does not exist any more",
        "linux-1 has its maximum number of leases",
        "the instance has a lease already",
    ]
    assert leases_of(harness, "r1") == [("main", "held", None), ("more.0", "held", None)]
    [row] = harness.store.find_slots(ids=["linux-1"])
    assert row.uses == 4
