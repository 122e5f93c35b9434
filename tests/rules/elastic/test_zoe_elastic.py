"""Elastic instances under each setting of `elastic`: cases from Zoe."""

import pytest

from tests.rules.playing import Document
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
    "rigid starts with all instances or not at all, and grants nothing later": (
        a_lab(
            submitted(0, an_application("r1", 1, 4)),
            submitted(1, an_application("r2", 1, 1)),
            slots=[4],
            elastic="rigid",
        ),
        ["1 assign r2 lab-1", "1 grant r2 more lab-1 room"],
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
}


@pytest.mark.parametrize("name", CASES)
def test_elastic_instances_are_granted_and_reclaimed_by_the_setting(name: str) -> None:
    scenario, expected = CASES[name]
    assert decided(scenario) == expected
