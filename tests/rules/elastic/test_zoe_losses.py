"""Dead components and grace periods: what ends together, what waits, and which reservation has a claim meanwhile."""

from typing import Any

import pytest

from tests.rules.playing import Document, act, notice, play_out, tick
from tests.rules.zoe import MODES, a_lab, an_application, component, decided, holdings, on_slot, submitted

ON_THREE = [on_slot("lab-1", 1, ("r1", "core")), on_slot("lab-2", 1, ("r1", "more.0")), on_slot("lab-3", 1)]
"""r1 holds its essential instance and one of two elastic ones, each on a slot; the third slot is free."""


def held_by_r1(*timeline: Document, more: int = 1, slots: list[Document] = ON_THREE, **parts: Any) -> Document:
    """r1 holds the leases of the slot records: its essential and `more` elastic instances."""
    row = an_application("r1", 1, more + 1, phase="leased", restart_policy=parts.pop("policy", "never"))
    return a_lab(*timeline, slots=slots, reservations=[row], **parts)


GRACE = {"preemption_grace": 30}
FULL = [on_slot("lab-1", 3, ("r1", "core"), ("r1", "more.0"), ("r1", "more.1"))]
"""One slot, full of r1, which has one elastic instance more to get."""
OF_GPUS = {**on_slot("lab-3", 0), "resources": {"gpus": 1}}
ONE_OF_GPUS = [{"name": "core", "resources": {"gpus": 1}}, component("more", 1, kind="elastic")]

CASES: dict[str, tuple[Document, list[str]]] = {
    "an elastic instance whose slot is lost ends alone, and the tick that sees it grants another": (
        held_by_r1(act(5, "lose", "lab-2")),
        ["5 revoke r1 more.0 lab-2 slot_gone", "5 grant r1 more.0 lab-3 room"],
    ),
    "of several instances that are lost between two ticks each is replaced": (
        held_by_r1(
            act(5, "lose", "lab-2"),
            act(5, "lose", "lab-3"),
            more=2,
            slots=[*ON_THREE[:2], on_slot("lab-3", 1, ("r1", "more.1")), on_slot("lab-4", 1)],
        ),
        ["5 revoke r1 more.0 lab-2 slot_gone", "5 revoke r1 more.1 lab-3 slot_gone", "5 grant r1 more.0 lab-4 room"],
    ),
    "an elastic instance that is reported as dead is replaced by the next tick": (
        held_by_r1(act(5, "fail", {"reservation": "r1", "component": "more.0"})),
        ["5 grant r1 more.0 lab-2 room", "5 grant r1 more.1 lab-3 room"],
    ),
    "essential and elastic dead together: it fails once, and nothing is granted to it": (
        held_by_r1(act(5, "lose", "lab-2"), act(5, "lose", "lab-1")),
        ["5 fail r1 slot_gone"],
    ),
    "it fails though not all of its elastic instances were granted, and restarts by its policy": (
        held_by_r1(act(5, "lose", "lab-1"), tick(6), policy="on_failure", slots=ON_THREE[:2]),
        ["5 fail r1 slot_gone", "6 restart r1 restart_due", "6 assign r1 lab-2"],
    ),
    "an interrupted slot: its elastic instance stays until the machine ends": (
        held_by_r1(notice(5, "lab-2", 60), slots=ON_THREE[:2], until=100, wakes=True),
        [
            "5 drain lab-2 interrupted",
            "5 revoke r1 more.0 lab-2 slot_interrupted",
            "65 revoke r1 more.0 lab-2 slot_gone",
        ],
    ),
    "or ends at once with an interruption_grace of 0": (
        held_by_r1(notice(5, "lab-2", 60), slots=ON_THREE[:2], scheduler={"interruption_grace": 0}),
        ["5 drain lab-2 interrupted", "5 revoke r1 more.0 lab-2 slot_interrupted"],
    ),
    "an interrupted slot with an essential instance: the whole reservation returns to the queue": (
        held_by_r1(notice(5, "lab-1", 60), scheduler={"interruption_grace": 0}),
        [
            "5 drain lab-1 interrupted",
            "5 requeue r1 slot_interrupted",
            "5 assign r1 lab-2",
            "5 grant r1 more.0 lab-3 room",
        ],
    ),
    "an offline host loses its elastic instances": (
        held_by_r1(act(10, "seen", "lab-1"), act(10, "seen", "lab-3"), tick(11), lab={"offline_timeout": 10.5}),
        ["11 revoke r1 more.0 lab-2 slot_offline", "11 grant r1 more.0 lab-3 room"],
    ),
    "a draining slot keeps its elastic instances until its drain timeout": (
        held_by_r1(act(5, "drain", "lab-2"), tick(9), tick(15), slots=ON_THREE[:2], lab={"drain_timeout": 10}),
        ["15 revoke r1 more.0 lab-2 slot_draining", "15 reset lab-2 timeout"],
    ),
    "with a grace period the new reservation is assigned when it is over": (
        held_by_r1(submitted(5, an_application("r2", 1)), slots=FULL, scheduler=GRACE, until=60, wakes=True),
        ["5 revoke r1 more.1 lab-1 reclaimed", "35 revoke r1 more.1 lab-1 reclaimed", "35 assign r2 lab-1"],
    ),
    "or as soon as the holder surrenders": (
        held_by_r1(
            submitted(5, an_application("r2", 1)),
            act(9, "surrender", {"reservation": "r1"}),
            slots=FULL,
            scheduler=GRACE,
        ),
        ["5 revoke r1 more.1 lab-1 reclaimed", "9 assign r2 lab-1"],
    ),
    "no other reservation gets a slot that is being given back": (
        held_by_r1(
            submitted(5, an_application("r2", 1)),
            submitted(6, an_application("r3", 2, priority=9)),
            act(9, "surrender", {"reservation": "r1"}),
            slots=FULL,
            scheduler={**GRACE, "queue": "priority"},
        ),
        ["5 revoke r1 more.1 lab-1 reclaimed", "9 assign r2 lab-1"],
    ),
    "elastic instances of a reservation that ranks before wait for the surrender too": (
        held_by_r1(
            submitted(5, an_application("big", 1, 1, priority=9)),
            act(9, "surrender", {"reservation": "r1"}),
            slots=[*FULL, on_slot("lab-2", 1)],
            more=2,
            scheduler={**GRACE, "queue": "priority"},
        ),
        ["5 assign big lab-2", "5 revoke r1 more.1 lab-1 reclaimed", "9 grant big more lab-1 room"],
    ),
    "a tick in the grace period revokes no further instances for the same shortage": (
        held_by_r1(
            submitted(5, an_application("big", 1, 1, priority=9)),
            tick(6),
            tick(7),
            act(9, "surrender", {"reservation": "r1"}),
            slots=[*FULL, on_slot("lab-2", 1)],
            more=2,
            scheduler={**GRACE, "queue": "priority"},
        ),
        ["5 assign big lab-2", "5 revoke r1 more.1 lab-1 reclaimed", "9 grant big more lab-1 room"],
    ),
    "the place of one lease that ends is promised once: a second missing instance revokes another lease": (
        held_by_r1(
            submitted(5, an_application("big", 1, 1, priority=9)),
            submitted(6, {**an_application("r3", 1, priority=8), "components": ONE_OF_GPUS}),
            slots=[{**FULL[0], "resources": {"units": 9}}, on_slot("lab-2", 1), OF_GPUS],
            more=2,
            lab={"max_leases_per_slot": 3},
            scheduler={**GRACE, "queue": "priority"},
        ),
        [
            "5 assign big lab-2",
            "5 revoke r1 more.1 lab-1 reclaimed",
            "6 assign r3 lab-3",
            "6 revoke r1 more.0 lab-1 reclaimed",
        ],
    ),
    "a larger shortage revokes what is missing beyond the leases that end": (
        held_by_r1(
            submitted(5, an_application("big", 1, 1, priority=9)),
            submitted(6, an_application("r3", 1, priority=8)),
            act(9, "surrender", {"reservation": "r1"}),
            slots=[*FULL, on_slot("lab-2", 1)],
            more=2,
            scheduler={**GRACE, "queue": "priority"},
        ),
        [
            "5 assign big lab-2",
            "5 revoke r1 more.1 lab-1 reclaimed",
            "6 revoke r1 more.0 lab-1 reclaimed",
            "9 assign r3 lab-1",
            "9 grant big more lab-1 room",
        ],
    ),
    "a larger shortage claims what an earlier tick took back, so that no later reservation gets it": (
        held_by_r1(
            submitted(5, an_application("big", 1, 1, priority=9)),
            submitted(6, an_application("r3", 1, priority=7)),
            submitted(7, an_application("r4", 1, priority=8)),
            slots=[*FULL, on_slot("lab-2", 1)],
            more=2,
            scheduler={**GRACE, "queue": "priority"},
            until=60,
            wakes=True,
        ),
        [
            "5 assign big lab-2",
            "5 revoke r1 more.1 lab-1 reclaimed",
            "6 revoke r1 more.0 lab-1 reclaimed",
            "35 revoke r1 more.1 lab-1 reclaimed",
            "35 assign r3 lab-1",
            "36 revoke r1 more.0 lab-1 reclaimed",
            "36 assign r4 lab-1",
        ],
    ),
    "a claim ends if its slot drains as unclean, and the tick does not assign it": (
        held_by_r1(
            submitted(5, an_application("r2", 1)),
            slots=FULL,
            scheduler=GRACE,
            lab={"recycle_unclean": True},
            until=35,
            wakes=True,
        ),
        [
            "5 revoke r1 more.1 lab-1 reclaimed",
            "35 revoke r1 more.1 lab-1 reclaimed",
            "35 drain lab-1 unclean",
            "35 requeue r2 slot_draining",
        ],
    ),
    "a second new reservation gets another slot": (
        held_by_r1(
            submitted(5, an_application("r2", 1)), submitted(6, an_application("r3", 1)), slots=FULL, scheduler=GRACE
        ),
        ["5 revoke r1 more.1 lab-1 reclaimed", "6 revoke r1 more.0 lab-1 reclaimed"],
    ),
    "a claim whose slot drains ends": (
        held_by_r1(submitted(5, an_application("r2", 1)), act(6, "drain", "lab-1"), slots=FULL, scheduler=GRACE),
        ["5 revoke r1 more.1 lab-1 reclaimed", "6 requeue r2 slot_draining"],
    ),
    "instances that take the slot of a worse one in its grace wait until it has ended": (
        a_lab(
            submitted(
                5,
                {
                    **an_application("r2", 1, 2, priority=2),
                    "components": [component("core", 1, 1), component("more", 2, 3, "elastic")],
                },
            ),
            act(9, "surrender", {"reservation": "r1"}),
            slots=[on_slot("lab-1", 6, ("r1", "more")), on_slot("lab-2", 1, ("r1", "core")), on_slot("lab-3", 1)],
            reservations=[
                {
                    **an_application("r1", 1, phase="leased"),
                    "components": [component("core", 1, 1), component("more", 1, 6, "elastic")],
                }
            ],
            scheduler={**GRACE, "queue": "priority"},
        ),
        [
            *("5 assign r2 lab-3", "5 revoke r1 more lab-1 reclaimed"),
            *("9 grant r2 more.0 lab-1 room", "9 grant r2 more.1 lab-1 room"),
        ],
    ),
    "on a slot that counts leases only an instance is reclaimed as well": (
        held_by_r1(
            submitted(5, an_application("r2", 1)),
            slots=[{**FULL[0], "resources": None}],
            lab={"resources": None, "max_leases_per_slot": 3},
        ),
        ["5 revoke r1 more.1 lab-1 reclaimed", "5 assign r2 lab-1"],
    ),
    "each of several equal slots counts for what a reclaim may free": (
        a_lab(
            submitted(5, *(an_application(name, 1, units=2) for name in ("r2", "r3"))),
            slots=[
                on_slot(f"lab-{number}", 2, ("r1", part)) for number, part in enumerate(("core", "more.0", "more.1"), 1)
            ],
            reservations=[an_application("r1", 1, 2, units=2, phase="leased")],
        ),
        [
            *("5 revoke r1 more.1 lab-3 reclaimed", "5 assign r2 lab-3"),
            *("5 revoke r1 more.0 lab-2 reclaimed", "5 assign r3 lab-2"),
        ],
    ),
    "when the claim is cancelled the instance is granted again once the slot is free": (
        held_by_r1(
            submitted(5, an_application("r2", 1)),
            act(6, "cancel", "r2"),
            act(9, "surrender", {"reservation": "r1"}),
            slots=FULL,
            scheduler=GRACE,
        ),
        ["5 revoke r1 more.1 lab-1 reclaimed", "9 grant r1 more.1 lab-1 room"],
    ),
    "an instance that a holder gave back without a revocation is not granted again, another one is": (
        held_by_r1(act(5, "surrender", {"reservation": "r1", "component": "more.0"}), tick(6), slots=FULL, more=2),
        ["5 grant r1 more.2 lab-1 room"],
    ),
    "but all of it is granted after the next assignment": (
        held_by_r1(
            act(5, "surrender", {"reservation": "r1", "component": "more.0"}),
            act(6, "decline", "r1"),
            slots=[*FULL, on_slot("lab-2", 3)],
        ),
        ["6 assign r1 lab-2", "6 grant r1 more.0 lab-2 room", "6 grant r1 more.1 lab-2 room"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_losses_and_grace_periods_end_leases_and_grant_others(name: str) -> None:
    scenario, expected = CASES[name]
    assert decided(scenario) == expected


TWICE = {"r1": (1, {"core": 1, "more.0": 1})}
COUNTED: dict[str, tuple[Document, dict[str, tuple[int, dict[str, int]]]]] = {
    "an elastic instance alone": (
        held_by_r1(act(5, "fail", {"reservation": "r1", "component": "more.0"})),
        {"r1": (0, {"more.0": 1})},
    ),
    "whose slot is lost": (held_by_r1(act(5, "lose", "lab-2")), {"r1": (0, {"more.0": 1})}),
    "an essential one with the whole reservation": (
        held_by_r1(act(5, "fail", {"reservation": "r1", "component": "core"}), policy="on_failure"),
        {"r1": (1, {"core": 1})},
    ),
    "both together": (
        held_by_r1(act(5, "lose", "lab-1"), act(5, "lose", "lab-2"), tick(6), policy="on_failure"),
        TWICE,
    ),
    "the whole": (held_by_r1(act(5, "fail", {"reservation": "r1"}), policy="on_failure"), TWICE),
    "the policy never restarts no reservation": (held_by_r1(act(5, "lose", "lab-1"), tick(6)), {"r1": (0, {})}),
    "nor after the last restart": (
        held_by_r1(
            act(5, "lose", "lab-1"),
            tick(6),
            act(60, "lose", "lab-3"),
            tick(61),
            policy="on_failure",
            slots=[ON_THREE[0], on_slot("lab-3", 1)],
            more=0,
            scheduler={"max_restarts": 1},
        ),
        {"r1": (1, {"core": 1})},
    ),
    "a notice counts no restart": (held_by_r1(notice(5, "lab-2", 60), until=100, wakes=True), {"r1": (0, {})}),
    "the end of a host counts no restart of what it has to give back": (
        held_by_r1(submitted(5, an_application("r2", 1)), act(6, "lose", "lab-2"), slots=ON_THREE[:2], scheduler=GRACE),
        {"r1": (0, {}), "r2": (0, {})},
    ),
}
"""Restarts of the reservation, and of its components."""


@pytest.mark.parametrize("name", COUNTED)
def test_restarts_are_counted_by_component_too(name: str) -> None:
    scenario, expected = COUNTED[name]
    rows = play_out(scenario).state["reservations"]
    assert {row["id"]: (row["restarts"], row["component_restarts"]) for row in rows} == expected


@pytest.mark.parametrize("elastic", MODES)
def test_a_dead_essential_component_ends_all_leases(elastic: str) -> None:
    scenario = held_by_r1(act(5, "fail", {"reservation": "r1", "component": "core"}), elastic=elastic)
    played = play_out(scenario)
    assert (played.phases, holdings(played)) == ({"r1": "failed"}, {})


@pytest.mark.parametrize("elastic", MODES)
def test_a_dead_elastic_component_is_replaced_under_every_setting_and_counts_no_restart(elastic: str) -> None:
    """Under `rigid` too, which otherwise grants nothing later."""
    scenario = held_by_r1(act(5, "fail", {"reservation": "r1", "component": "more.0"}), elastic=elastic)
    played = play_out(scenario)
    assert holdings(played) == {"r1": ["core@lab-1", "more.0@lab-2", "more.1@lab-3"]}
    assert (played.reservation("r1")["restarts"], played.phases) == (0, {"r1": "leased"})


def test_work_is_kept_when_elastic_instances_are_granted_and_reclaimed() -> None:
    """Twenty instance-seconds: two a second until 4, one until 8, two again: done after 4 s more."""
    scenario = a_lab(
        submitted(0, an_application("r1", 1, 1, runtime=10)),
        act(4, "cordon", "lab-2"),
        act(4, "fail", {"reservation": "r1", "component": "more"}),
        act(8, "uncordon", "lab-2"),
        tick(100),
        slots=[1, 1],
    )
    assert play_out(scenario).reservation("r1")["finished_at"] == 12


def test_leases_fit_the_slot_after_any_number_of_ticks() -> None:
    """Zoe: A, B, C, D (26 units) start on 10."""
    four = [an_application(name, 3, more) for name, more in zip("ABCD", (4, 3, 5, 2), strict=True)]
    for elastic in MODES:
        played = play_out(a_lab(submitted(0, *four), *[tick(0) for _ in range(5)], tick(1), elastic=elastic))
        assert sum(map(len, holdings(played).values())) <= 10


def test_a_reservation_that_has_ended_is_never_placed() -> None:
    """Zoe starts an execution that was terminated."""
    rows = [an_application(phase, 1, 1, phase=phase) for phase in ("cancelled", "failed", "expired", "released")]
    assert decided(a_lab(tick(0), reservations=rows)) == []


def test_of_several_components_an_elastic_instance_of_the_last_one_is_reclaimed() -> None:
    wish = {
        "id": "r1",
        "system": "sim",
        "components": [component("core", 1), component("a", 1, 1, "elastic"), component("b", 1, 1, "elastic")],
    }
    scenario = a_lab(submitted(0, wish), submitted(1, an_application("r2", 1)), slots=[3])
    assert decided(scenario)[-2:] == ["1 revoke r1 b lab-1 reclaimed", "1 assign r2 lab-1"]
