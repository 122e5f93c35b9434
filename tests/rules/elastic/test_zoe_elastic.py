"""Elastic instances under each setting of `elastic`: cases from Zoe."""

import pytest

from scheduler.model.validation import InvalidInputError
from tests.rules.playing import Document, play_out, tick
from tests.rules.zoe import LAB, MODES, a_lab, an_application, component, decided, holdings, on_slot, submitted

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
        a_lab(
            submitted(0, an_application("r1", 2), an_application("r2", 1, 2)),
            {"at": 5, "release": "r1"},
            slots=[3],
        ),
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
        [
            "1 assign r2 lab-1",
            "1 revoke low more lab-2 reclaimed",
            "1 assign r3 lab-2",
            "1 grant r2 more lab-2 room",
        ],
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
        a_lab(
            submitted(0, an_application("r1", 1, 6)),
            submitted(1, an_application("r2", 1, units=3)),
            slots=[4, 4],
        ),
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


def test_an_instance_of_a_component_is_placed_only_on_slots_with_its_labels() -> None:
    slots = [
        {"id": f"lab-{number}", "pool": "lab", "resources": {"units": 1}, "labels": labels}
        for number, labels in enumerate([{}, {"gpu": "", "ssd": ""}, {"gpu": ""}], 1)
    ]
    wanting = {
        "id": "r1",
        "system": "sim",
        "components": [component("core", 1), component("more", 3, 1, "elastic", labels={"gpu": ""})],
    }
    played = play_out(a_lab(submitted(0, wanting), slots=slots))
    assert holdings(played) == {"r1": ["core@lab-1", "more.0@lab-3", "more.1@lab-2"]}


def test_without_backfill_the_first_of_a_queue_makes_the_others_wait() -> None:
    scenario = a_lab(
        submitted(0, an_application("old", 5)),
        submitted(1, an_application("head", 3, units=3), an_application("one", 1)),
        scheduler={"backfill": False},
    )
    assert play_out(scenario).ticks[-1] == ["head waits gang_incomplete", "one waits behind_queue"]


@pytest.mark.parametrize(
    ("elastic", "large"),
    [
        *((elastic, "essential") for elastic in MODES),
        ("rigid", "elastic"),  # which keeps all its instances together
    ],
)
def test_a_reservation_that_could_not_fit_an_empty_fleet_blocks_no_other(elastic: str, large: str) -> None:
    """In Zoe, it blocks the queue without end."""
    head = {"id": "head", "system": "sim", "components": [component("core", 1), component("large", 1, 11, large)]}
    scenario = a_lab(submitted(0, head, an_application("one", 1)), elastic=elastic, scheduler={"backfill": False})
    assert play_out(scenario).ticks == [["assign one lab-1", "head waits never_fits"]]


def test_every_resource_counts_and_each_may_be_used_completely() -> None:
    """Zoe checks memory alone, and leaves a rest of it."""
    both = {"units": 1, "memory_mib": 4}
    parts = [component("core", 1) | {"resources": both}, component("more", 3, kind="elastic") | {"resources": both}]
    scenario = a_lab(
        submitted(0, {"id": "r1", "system": "sim", "components": parts}),
        slots=[{"id": "lab-1", "pool": "lab", "resources": {"units": 10, "memory_mib": 12}}],
    )
    assert holdings(play_out(scenario)) == {"r1": ["core@lab-1", "more.0@lab-1", "more.1@lab-1"]}


@pytest.mark.parametrize("elastic", MODES)
def test_one_tick_is_one_pass(elastic: str) -> None:
    """Zoe repeats its pass as long as something was launched; here the decisions of a tick request no other tick."""
    four = [an_application(name, 3, more) for name, more in zip("ABCD", (4, 3, 5, 2), strict=True)]
    assert play_out(a_lab(submitted(0, *four), elastic=elastic)).tick_times == [0]


def test_a_reservation_needs_an_essential_component() -> None:
    wish = {"id": "r1", "system": "sim", "components": [component("more", 2, 1, "elastic")]}
    with pytest.raises(InvalidInputError, match="at least one essential component"):
        play_out(a_lab(submitted(0, wish)))


@pytest.mark.parametrize("elastic", ["flexible", "yielding"])
@pytest.mark.parametrize("grace", [0, 5])
def test_instances_are_granted_lowest_index_first_although_a_new_reservation_takes_capacity(
    elastic: str, grace: float
) -> None:
    """r2 takes the capacity on lab-1 that the second of the three would have had; that of the third one, on lab-2, is
    left.
    """
    r1 = {"id": "r1", "system": "sim", "components": [component("core", 1), component("more", 3, 2, "elastic")]}
    scheduler = {"preemption_grace": grace}
    lab = a_lab(submitted(0, r1, an_application("r2", 1, units=3)), elastic=elastic, slots=[6, 2], scheduler=scheduler)
    assert decided(lab) == [
        *("0 assign r1 lab-1", "0 assign r2 lab-1"),
        *("0 grant r1 more.0 lab-1 room", "0 grant r1 more.1 lab-2 room"),
    ]


def test_an_instance_that_moves_to_another_pool_takes_the_amounts_of_that_pool() -> None:
    """The `default_resources` of the other pool leave room for one of two instances."""
    scenario = a_lab(
        submitted(1, {"id": "r1", "pool": "lab", "components": [component("core", 1, 2)]}),
        slots=[
            on_slot("lab-1", 3, ("low", "core"), ("low", "more.0"), ("low", "more.1")),
            {"id": "annex-1", "pool": "annex", "resources": {"units": 2, "mem": 5}},
        ],
        reservations=[an_application("low", 1, 2, phase="leased")],
    )
    scenario["config"]["pools"]["annex"] = {**LAB, "default_resources": {"mem": 5}}
    assert decided(scenario) == [
        "1 revoke low more.1 lab-1 reclaimed",
        "1 revoke low more.0 lab-1 reclaimed",
        "1 assign r1 lab-1",
        "1 grant low more.0 annex-1 room",
    ]
