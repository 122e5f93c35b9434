"""Elastic instances under each setting of `elastic`: cases from Zoe."""

import pytest

from tests.rules.playing import Document, tick
from tests.rules.zoe import a_lab, an_application, component, decided, on_slot, submitted

WITH_GPUS = {
    "id": "r1",
    "system": "sim",
    "components": [
        component("core", 1),
        component("plain", 1, kind="elastic"),
        {**component("more", 2, kind="elastic"), "resources": {"units": 1, "gpus": 1}},
    ],
}

CASES: dict[str, tuple[Document, list[str]]] = {
    "a component that needs exactly what is free fits": (
        a_lab(submitted(0, an_application("r1", 1, units=10))),
        ["0 assign r1 lab-1"],
    ),
    "one slot of 13: four, and two elastic ones of four; one is left": (
        a_lab(submitted(0, an_application("r1", 1, 3, units=4)), slots=[13]),
        ["0 assign r1 lab-1", "0 grant r1 more.0 lab-1 room", "0 grant r1 more.1 lab-1 room"],
    ),
    "its first elastic instance is leased, capacity for one more: only the second is granted": (
        a_lab(
            tick(0),
            slots=[on_slot("lab-1", 3, ("r1", "core"), ("r1", "more.0"))],
            reservations=[an_application("r1", 1, 2, phase="leased")],
        ),
        ["0 grant r1 more.1 lab-1 room"],
    ),
    "elastic components that no slot could hold do not make a reservation wait": (
        a_lab(
            submitted(
                0,
                {
                    "id": "r1",
                    "system": "sim",
                    "components": [component("core", 1), component("huge", 1, 99, "elastic")],
                },
            )
        ),
        ["0 assign r1 lab-1"],
    ),
    "components are granted in the order in which they are listed": (
        a_lab(
            submitted(
                0,
                {
                    "id": "r1",
                    "system": "sim",
                    "components": [
                        component("b", 1, 1, "elastic"),
                        component("core", 1),
                        component("a", 2, 1, "elastic"),
                    ],
                },
            ),
            slots=[3],
        ),
        ["0 assign r1 lab-1", "0 grant r1 b lab-1 room", "0 grant r1 a.0 lab-1 room"],
    ),
    "essential instances of a new reservation take the slots of the last elastic ones": (
        a_lab(submitted(0, an_application("r1", 1, 5)), submitted(1, an_application("r2", 2)), slots=[4]),
        [
            "0 assign r1 lab-1",
            *(f"0 grant r1 more.{index} lab-1 room" for index in range(3)),
            "1 revoke r1 more.2 lab-1 reclaimed",
            "1 revoke r1 more.1 lab-1 reclaimed",
            "1 assign r2 lab-1 lab-1",
        ],
    ),
    "essential instances are never reclaimed": (
        a_lab(submitted(0, an_application("r1", 4)), submitted(1, an_application("r2", 1)), slots=[4]),
        ["0 assign r1 lab-1 lab-1 lab-1 lab-1"],
    ),
    "what a release leaves is granted in that instant": (
        a_lab(submitted(0, an_application("r1", 2), an_application("r2", 1, 2)), {"at": 5, "release": "r1"}, slots=[3]),
        [
            "0 assign r1 lab-1 lab-1",
            "0 assign r2 lab-1",
            "5 grant r2 more.0 lab-1 room",
            "5 grant r2 more.1 lab-1 room",
        ],
    ),
    "a reservation that ranks before has its elastic instances first, in place of those that rank behind": (
        a_lab(
            submitted(0, an_application("small", 1, 2, priority=1)),
            submitted(1, an_application("big", 1, 2, priority=9)),
            slots=[4],
            scheduler={"queue": "priority"},
        ),
        [
            "0 assign small lab-1",
            "0 grant small more.0 lab-1 room",
            "0 grant small more.1 lab-1 room",
            "1 assign big lab-1",
            "1 revoke small more.1 lab-1 reclaimed",
            "1 revoke small more.0 lab-1 reclaimed",
            "1 grant big more.0 lab-1 room",
            "1 grant big more.1 lab-1 room",
        ],
    ),
    "slots that count leases only are reclaimed too": (
        a_lab(
            submitted(0, an_application("small", 1, 2, priority=1)),
            submitted(1, an_application("big", 1, 2, priority=9)),
            slots=[{"id": "lab-1", "pool": "lab"}],
            lab={"resources": None, "max_leases_per_slot": 4},
            scheduler={"queue": "priority"},
        ),
        [
            "0 assign small lab-1",
            "0 grant small more.0 lab-1 room",
            "0 grant small more.1 lab-1 room",
            "1 assign big lab-1",
            "1 revoke small more.1 lab-1 reclaimed",
            "1 revoke small more.0 lab-1 reclaimed",
            "1 grant big more.0 lab-1 room",
            "1 grant big more.1 lab-1 room",
        ],
    ),
    "flexible: a reservation with elastic components that is placed can make a refused reclaim worth it": (
        a_lab(
            submitted(
                1,
                an_application("r1", 1, units=2),
                {**an_application("r2", 1), "components": [component("core", 1), component("more", 1, 2, "elastic")]},
                an_application("r3", 1, units=2),
            ),
            elastic="flexible",
            slots=[on_slot("lab-1", 2, ("low", "core")), on_slot("lab-2", 4, ("low", "more"))],
            reservations=[
                {
                    **an_application("low", 1, phase="leased"),
                    "components": [component("core", 1), component("more", 1, 3, "elastic")],
                }
            ],
            scheduler={"preemption": False},
        ),
        ["1 assign r2 lab-1", "1 revoke low more lab-2 reclaimed", "1 assign r3 lab-2", "1 grant r2 more lab-2 room"],
    ),
    "malleable reclaims nothing": (
        a_lab(
            submitted(0, an_application("r1", 1, 3)),
            submitted(1, an_application("r2", 1)),
            slots=[4],
            elastic="malleable",
        ),
        ["0 assign r1 lab-1", *(f"0 grant r1 more.{index} lab-1 room" for index in range(3))],
    ),
    "rigid starts with all instances or not at all, and grants nothing later": (
        a_lab(
            submitted(0, an_application("r1", 1, 4)),
            submitted(1, an_application("r2", 1, 1)),
            slots=[4],
            elastic="rigid",
        ),
        ["1 assign r2 lab-1", "1 grant r2 more lab-1 room"],
    ),
    "flexible starts no new reservation while the leased ones can use the whole pool": (
        a_lab(
            submitted(0, an_application("r1", 1, 3)),
            submitted(1, an_application("r2", 1)),
            slots=[4],
            elastic="flexible",
        ),
        ["0 assign r1 lab-1", *(f"0 grant r1 more.{index} lab-1 room" for index in range(3))],
    ),
    "flexible reclaims elastic instances for a new reservation if the use grows by it": (
        a_lab(
            submitted(0, an_application("r1", 1, 2)),
            submitted(1, an_application("r2", 2)),
            slots=[4],
            elastic="flexible",
        ),
        [
            "0 assign r1 lab-1",
            "0 grant r1 more.0 lab-1 room",
            "0 grant r1 more.1 lab-1 room",
            "1 revoke r1 more.1 lab-1 reclaimed",
            "1 assign r2 lab-1 lab-1",
        ],
    ),
    "flexible and preemption: a reservation starts beside the elastic instances of those that rank before it": (
        a_lab(
            submitted(0, an_application("small", 1, 3, priority=1)),
            submitted(1, an_application("big", 2, priority=9)),
            slots=[4],
            elastic="flexible",
            scheduler={"queue": "priority"},
        ),
        [
            "0 assign small lab-1",
            *(f"0 grant small more.{index} lab-1 room" for index in range(3)),
            "1 revoke small more.2 lab-1 reclaimed",
            "1 revoke small more.1 lab-1 reclaimed",
            "1 assign big lab-1 lab-1",
        ],
    ),
    "flexible without preemption: it waits": (
        a_lab(
            submitted(0, an_application("small", 1, 3, priority=1)),
            submitted(1, an_application("big", 2, priority=9)),
            slots=[4],
            elastic="flexible",
            scheduler={"queue": "priority", "preemption": False},
        ),
        ["0 assign small lab-1", *(f"0 grant small more.{index} lab-1 room" for index in range(3))],
    ),
    "no backfill: the first that cannot be placed ends the placing": (
        a_lab(
            submitted(0, an_application("old", 5)),
            submitted(1, an_application("head", 3, units=3), an_application("one", 1)),
            scheduler={"backfill": False},
        ),
        ["0 assign old lab-1 lab-1 lab-1 lab-1 lab-1"],
    ),
    "backfill: it is passed over": (
        a_lab(
            submitted(0, an_application("old", 5)),
            submitted(1, an_application("head", 3, units=3), an_application("one", 1)),
        ),
        ["0 assign old lab-1 lab-1 lab-1 lab-1 lab-1", "1 assign one lab-1"],
    ),
    "only elastic instances that are in the way are reclaimed, and none moves": (
        a_lab(submitted(0, an_application("r1", 1, 6)), submitted(1, an_application("r2", 1, units=3)), slots=[4, 4]),
        [
            "0 assign r1 lab-1",
            *(f"0 grant r1 more.{index} lab-1 room" for index in range(3)),
            *(f"0 grant r1 more.{index} lab-2 room" for index in range(3, 6)),
            "1 revoke r1 more.5 lab-2 reclaimed",
            "1 revoke r1 more.4 lab-2 reclaimed",
            "1 assign r2 lab-2",
        ],
    ),
    "an instance that was taken off without need keeps its slot, and another one moves": (
        a_lab(
            submitted(5, an_application("new", 1, units=2)),
            slots=[
                on_slot("lab-1", 2, ("r0", "core"), ("r1", "more.1")),
                on_slot("lab-2", 2, ("r1", "core")),
                on_slot("lab-3", 2, ("r1", "more.0"), ("r1", "more.2")),
            ],
            reservations=[an_application("r0", 1, phase="leased"), an_application("r1", 1, 3, phase="leased")],
        ),
        [
            "5 revoke r1 more.2 lab-3 reclaimed",
            "5 revoke r1 more.0 lab-3 reclaimed",
            "5 assign new lab-3",
            "5 grant r1 more.0 lab-2 room",
        ],
    ),
    "with a grace period, too, an instance that was taken off without need keeps its slot": (
        a_lab(
            submitted(5, an_application("new", 1, units=3)),
            slots=[
                on_slot("lab-1", 4, ("r1", "more"), ("r2", "more")),
                on_slot("lab-2", 4, ("r1", "core"), ("r2", "core")),
            ],
            reservations=[
                an_application("r1", 1, 1, units=3, phase="leased"),
                an_application("r2", 1, 1, phase="leased"),
            ],
            scheduler={"preemption_grace": 4},
        ),
        ["5 revoke r1 more lab-1 reclaimed"],
    ),
    "a slot that is cordoned takes no elastic instance, and keeps those that it has": (
        a_lab(
            submitted(0, an_application("r1", 1, 4)),
            {"at": 1, "cordon": "lab-1"},
            submitted(2, an_application("r2", 1)),
            {"at": 3, "uncordon": "lab-1"},
            slots=[3],
        ),
        [
            "0 assign r1 lab-1",
            "0 grant r1 more.0 lab-1 room",
            "0 grant r1 more.1 lab-1 room",
            "3 revoke r1 more.1 lab-1 reclaimed",
            "3 assign r2 lab-1",
        ],
    ),
    "a slot that registers with less gives elastic instances back, essential ones stay": (
        a_lab(
            submitted(0, an_application("r1", 2, 4)),
            {"at": 1, "register": {"id": "lab-1", "pool": "lab", "machine": "m", "resources": {"units": 3}}},
            slots=[{"id": "lab-1", "pool": "lab", "machine": "m", "resources": {"units": 5}}],
        ),
        [
            "0 assign r1 lab-1 lab-1",
            *(f"0 grant r1 more.{index} lab-1 room" for index in range(3)),
            "1 revoke r1 more.2 lab-1 reclaimed",
            "1 revoke r1 more.1 lab-1 reclaimed",
        ],
    ),
    "a slot that registers without a resource gives back what used it, as with 0 of it": (
        a_lab(
            submitted(0, WITH_GPUS),
            {"at": 1, "register": {"id": "lab-1", "pool": "lab", "machine": "m", "resources": {"units": 9}}},
            slots=[{"id": "lab-1", "pool": "lab", "machine": "m", "resources": {"units": 9, "gpus": 2}}],
        ),
        [
            "0 assign r1 lab-1",
            *("0 grant r1 plain lab-1 room", "0 grant r1 more.0 lab-1 room", "0 grant r1 more.1 lab-1 room"),
            *("1 revoke r1 more.1 lab-1 reclaimed", "1 revoke r1 more.0 lab-1 reclaimed"),
        ],
    ),
    "spread: an instance goes where the fewest leases are, counted again after each": (
        a_lab(submitted(0, an_application("r1", 1, 3)), slots=[4, 4], scheduler={"profile": "spread"}),
        [
            "0 assign r1 lab-1",
            "0 grant r1 more.0 lab-2 room",
            "0 grant r1 more.1 lab-1 room",
            "0 grant r1 more.2 lab-2 room",
        ],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_elastic_instances_are_granted_and_reclaimed_by_the_setting(name: str) -> None:
    scenario, expected = CASES[name]
    assert decided(scenario) == expected
