"""Grants, and revokes with the assignment that follows, tested on current rows; commands about elastic parts."""

from typing import Any

import pytest

from scheduler.model.decisions import Assign, Claim, Decision, Grant, Placement, Revoke
from scheduler.model.reservations import Component, Reservation
from scheduler.model.view import Row
from scheduler.operations.unit_of_work import UnitOfWork
from tests.operations.harness import NOW, Harness
from tests.operations.test_commit import SPOT, holds, on, slot, waits, write_all

CPUS: dict[str, float] = {"cpus": 2}
PARTS = (
    Component(name="main", resources=CPUS),
    Component(name="more", count=2, kind="elastic", resources=CPUS),
)


def part(index: int = 0, **changes: Any) -> Any:
    """The lease of an elastic instance of two cpus."""
    return on(component=f"more.{index}", kind="elastic", **{"token": 5 + index} | changes)


def stretched(*parts: Any, name: str = "r1", **changes: Any) -> Reservation:
    """One that holds its essential instance and these elastic ones."""
    return holds(name, components=PARTS, leases=(on(), *parts), **changes)


GRANT = Grant(reservation="r1", component="more.0", slot="linux-1", epoch=1, resources=CPUS)
REVOKE = Revoke(reservation="r1", component="more.0", slot="linux-1", reason="reclaimed", epoch=1)
BY_THEN = Revoke(reservation="r1", component="more.0", slot="linux-1", reason="reclaimed", epoch=1, revoke_by=NOW + 30)
GONE = Revoke(reservation="r1", component="more.0", slot="linux-1", reason="slot_gone", epoch=1)
NOTICED = Revoke(reservation="r1", component="more.0", slot="linux-1", reason="slot_interrupted", epoch=1)
NEWCOMER = Assign(reservation="r2", leases=(Placement("main", "linux-1", 1, CPUS),))
FOR_IT = Revoke(reservation="r1", component="more.0", slot="linux-1", reason="reclaimed", epoch=1, room_for="r2")
BY_THEN_FOR_IT = Revoke(
    reservation="r1",
    component="more.0",
    slot="linux-1",
    reason="reclaimed",
    epoch=1,
    revoke_by=NOW + 30,
    room_for="r2",
)
CLAIM = Claim(reservation="r2", leases=NEWCOMER.leases)

LOST: list[tuple[str, list[Row], Decision, str]] = [
    ("it is pending again", [slot(), waits(components=PARTS)], GRANT, "it is pending"),
    ("it has been cancelled", [slot(), waits(components=PARTS, phase="cancelled")], GRANT, "it is cancelled"),
    ("it holds that", [slot(), stretched(part())], GRANT, "it holds that already"),
    ("no room is left", [slot(), stretched(), holds("r3")], GRANT, "linux-1 is taken"),
    ("the slot drains", [slot("draining"), stretched()], GRANT, "linux-1 is draining"),
    ("another machine", [slot(epoch=2), stretched()], GRANT, "linux-1 has another machine"),
    ("cordoned", [slot(cordoned=True), stretched()], GRANT, "linux-1 takes no leases"),
    ("no such instance", [slot(), holds()], GRANT, "the rules have changed"),
    ("given back meanwhile", [slot(), stretched()], REVOKE, "it does not hold that any more"),
    ("it stands elsewhere", [slot(), stretched(part(slot="linux-2"))], REVOKE, "it does not hold that any more"),
    ("the whole is revoked", [slot(), stretched(part(), phase="revoking")], REVOKE, "it is revoking"),
    (
        "its holder has time",
        [slot(), stretched(part(state="revoking", revoke_by=NOW + 1))],
        REVOKE,
        "its holder has time to let go",
    ),
    ("its slot came back", [slot(), stretched(part())], GONE, "its slot is there"),
    ("no notice any more", [slot(), stretched(part())], NOTICED, "its slot is there"),
    ("a claim alone", [slot(), waits("r2")], CLAIM, "no revokes make room for the claim"),
]


@pytest.mark.parametrize(("rows", "decision", "reason"), [each[1:] for each in LOST], ids=[each[0] for each in LOST])
def test_a_decision_that_no_longer_holds_changes_nothing(rows: list[Row], decision: Decision, reason: str) -> None:
    reasons, is_change, _ = write_all(rows, [decision])
    assert (reasons, is_change) == ([reason], False)


def leases_of(harness: Harness, name: str) -> list[tuple[str, str, float | None]]:
    [row] = harness.store.find_reservations(ids=[name])
    return [(each.component, each.state, each.revoke_by) for each in row.leases]


def test_a_grant_has_a_token_of_its_own_and_the_reservation_keeps_its_own() -> None:
    reasons, _, harness = write_all([slot(), holds(components=PARTS, token=99, leases=(on(token=99),))], [GRANT])
    [row] = harness.store.find_reservations(ids=["r1"])
    main, more = row.leases
    assert reasons == []
    assert (row.token, main.token, more.kind, more.token != main.token) == (99, 99, "elastic", True)
    assert [each.detail["component"] for each in harness.events if each.name == "reservation_granted"] == ["more.0"]


def test_a_revoke_ends_at_once_or_by_its_deadline() -> None:
    _, _, harness = write_all([slot(), stretched(part())], [REVOKE])
    assert leases_of(harness, "r1") == [("main", "held", None)]
    _, _, harness = write_all([slot(), stretched(part())], [BY_THEN])
    assert leases_of(harness, "r1") == [("main", "held", None), ("more.0", "revoking", NOW + 30)]
    over = stretched(part(state="revoking", revoke_by=NOW))
    _, _, harness = write_all([slot(), over], [REVOKE])
    assert leases_of(harness, "r1") == [("main", "held", None)]


def test_only_the_event_of_a_revoke_with_a_grace_period_has_a_deadline() -> None:
    """A reader of the events can distinguish the notice from the end."""
    told = []
    for row, decision in ((part(), BY_THEN), (part(state="revoking", revoke_by=NOW), REVOKE)):
        _, _, harness = write_all([slot(), stretched(row)], [decision])
        told += [each.detail.get("deadline") for each in harness.events if each.name == "reservation_revoked"]
    assert told == [NOW + 30, None]


def test_a_slot_that_is_lost_or_interrupted_ends_the_part_alone() -> None:
    gone = stretched(part(epoch=0))
    lost = Revoke(reservation="r1", component="more.0", slot="linux-1", reason="slot_gone", epoch=0)
    assert leases_of(write_all([slot(), gone], [lost])[2], "r1") == [("main", "held", None)]
    rows: list[Row] = [slot(**SPOT), stretched(part())]
    assert leases_of(write_all(rows, [NOTICED])[2], "r1") == [("main", "held", None)]


def test_the_reservation_that_needs_the_capacity_gets_it_in_the_same_write() -> None:
    reasons, _, harness = write_all([slot(), stretched(part()), waits("r2")], [FOR_IT, NEWCOMER])
    assert reasons == []
    assert leases_of(harness, "r1") == [("main", "held", None)]
    assert leases_of(harness, "r2") == [("main", "held", None)]


@pytest.mark.parametrize("newcomer", [None, NEWCOMER], ids=["for none", "for a newcomer"])
def test_however_many_instances_are_taken_back_their_reservation_is_changed_once(
    newcomer: Assign | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each change copies all leases of the reservation, so that one for each instance would cost their square."""
    count = 50
    components = (PARTS[0], Component(name="more", count=count, kind="elastic", resources=CPUS))
    held = holds("r1", components=components, leases=(on(), *(part(number) for number in range(count))))
    room_for = None if newcomer is None else newcomer.reservation
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
    decisions: list[Decision] = [*revokes, *([] if newcomer is None else [newcomer])]
    reasons, _, harness = write_all([slot(), held, waits("r2")], decisions)
    assert reasons == []
    assert changed.count("r1") == 1
    assert leases_of(harness, "r1") == [("main", "held", None)]
    assert sum(each.name == "reservation_revoked" for each in harness.events) == count


def test_with_a_grace_it_claims_the_room() -> None:
    reasons, _, harness = write_all([slot(), stretched(part()), waits("r2")], [BY_THEN_FOR_IT, CLAIM])
    assert reasons == []
    assert leases_of(harness, "r1") == [("main", "held", None), ("more.0", "revoking", NOW + 30)]
    assert leases_of(harness, "r2") == [("main", "claimed", None)]
    assert harness.store.find_reservations(ids=["r2"])[0].phase == "pending"


ALL_OR_NONE: dict[str, list[Row]] = {
    "the newcomer was cancelled": [slot(), stretched(part()), waits("r2", phase="cancelled")],
    "the newcomer is gone": [slot(), stretched(part())],
    "what was to be revoked was given back": [slot(), stretched(part(1)), waits("r2")],
    "its holder was requeued": [slot(), waits("r1", components=PARTS), waits("r2"), holds("r3"), holds("r4")],
    "the slot is cordoned": [slot(cordoned=True), stretched(part()), waits("r2")],
}


@pytest.mark.parametrize("name", ALL_OR_NONE)
@pytest.mark.parametrize("unit", [[FOR_IT, NEWCOMER], [BY_THEN_FOR_IT, CLAIM]], ids=["at once", "with a grace"])
def test_revokes_and_the_one_they_are_for_are_written_together_or_not_at_all(name: str, unit: list[Decision]) -> None:
    reasons, is_change, _ = write_all(ALL_OR_NONE[name], unit)
    assert (len(reasons), is_change) == (2, False)


def leased() -> Harness:
    """r1 holds its essential instance and two elastic ones."""
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


def test_each_part_is_surrendered_with_its_own_token_or_the_reservation_s() -> None:
    harness = leased()
    [row] = harness.store.find_reservations(ids=["r1"])
    main, first, second = row.leases
    assert len({main.token, first.token, second.token}) == 3
    stale = harness.ask("surrender", reservation="r1", component="more.0", token=second.token)
    assert stale["errors"][0]["path"] == "token"
    assert harness.ask("surrender", reservation="r1", component="more.0", token=first.token)["ok"]
    assert harness.ask("surrender", reservation="r1", component="more.1", token=main.token)["ok"]
    assert leases_of(harness, "r1") == [("main", "held", None)]


def test_an_essential_instance_that_is_not_revoked_cannot_be_surrendered() -> None:
    harness = leased()
    [row] = harness.store.find_reservations(ids=["r1"])
    for component in ({"component": "main"}, {}):
        answer = harness.ask("surrender", reservation="r1", token=row.token, **component)
        assert answer["errors"][0]["expected"] == "one that is being revoked"


def test_the_event_of_a_failure_names_what_died() -> None:
    harness = leased()
    [row] = harness.store.find_reservations(ids=["r1"])
    harness.ask("fail", reservation="r1", component="main", token=row.token)
    assert [each.detail["died"] for each in harness.events if each.name == "reservation_failed"] == [["main"]]


def test_waiters_hear_of_parts_that_come_and_go() -> None:
    harness = leased()
    [row] = harness.store.find_reservations(ids=["r1"])
    harness.ask("fail", reservation="r1", component="more.1", token=row.token)
    told = [(each["event"], len(each["leases"])) for _, each in harness.ports.notifier.notices]  # type: ignore[attr-defined]
    assert told == [("granted", 3), ("revoked", 2)]


def test_several_grants_to_one_reservation_are_each_written_or_not() -> None:
    """The room of one that is written is taken for those after it."""
    asked: list[Decision] = [
        Grant(reservation="r1", component=component, slot=name, epoch=1, resources=CPUS)
        for component, name in [
            ("more.0", "linux-9"),
            ("more.0", "linux-1"),
            ("more.1", "linux-1"),
            ("more.0", "linux-1"),
        ]
    ]
    reasons, _, harness = write_all([slot(uses=3), stretched()], asked)
    assert reasons == ["its slot is gone", "linux-1 is taken", "it holds that already"]
    assert leases_of(harness, "r1") == [("main", "held", None), ("more.0", "held", None)]
    [row] = harness.store.find_slots(ids=["linux-1"])
    assert row.uses == 4
