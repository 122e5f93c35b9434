"""Elastic instances: rules from Zoe that hold under each setting of `elastic`, and faults that are not copied."""

import pytest

from scheduler.model.validation import InvalidInputError
from tests.rules.playing import play_out, tick
from tests.rules.zoe import LAB, MODES, a_lab, an_application, component, decided, holdings, on_slot, submitted


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


@pytest.mark.parametrize("grace", [0, 30])
@pytest.mark.parametrize("is_useful", [True, False])
def test_a_grace_changes_when_a_newcomer_is_admitted_not_whether(grace: float, *, is_useful: bool) -> None:
    """`flexible` admits a newcomer if the use of the pool grows. What counts is the use after the grace: then the
    instances that made way have other slots, here on lab-2, if there is room.
    """
    spare = 2 if is_useful else 0
    newcomer = {"id": "r1", "system": "sim", "labels": {"gpu": "yes"}, "resources": {"units": 2}}
    played = play_out(
        a_lab(
            submitted(5, newcomer),
            *(tick(at) for at in (5, 35)),
            kicks=False,
            elastic="flexible",
            scheduler={"preemption_grace": grace, "preemption": False},
            slots=[
                on_slot("lab-1", 2, ("e", "more.0"), ("e", "more.1"), labels={"gpu": "yes"}),
                on_slot("lab-2", 1 + spare, ("e", "core")),
            ],
            reservations=[
                {
                    "id": "e",
                    "system": "sim",
                    "phase": "leased",
                    "components": [component("core", 1), component("more", 2, 1, "elastic")],
                }
            ],
        )
    )
    expected = {"e": ["core@lab-2", "more.0@lab-2", "more.1@lab-2"], "r1": ["main@lab-1"]}
    assert holdings(played) == (expected if is_useful else {"e": ["core@lab-2", "more.0@lab-1", "more.1@lab-1"]})
    assert [line for line in played.decisions if "assign" in line] == ([f"{5 + grace:g} assign r1 lab-1"] * is_useful)
