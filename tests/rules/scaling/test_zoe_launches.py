"""Launches for elastic instances, with and without `launch_for_elastic`."""

from typing import Any

import pytest

from tests.rules.playing import Document, act, play_out, tick
from tests.rules.zoe import a_lab, an_application, decided, on_slot, submitted


def growing(**pool: Any) -> Document:
    """One reservation that could use three more machines, and one that needs one."""
    most = {"system": "sim", "max_slots": 3, "lease_ttl": 0, "resources": {"units": 1}, **pool}
    return a_lab(
        submitted(0, an_application("r1", 1, 3)),
        submitted(1, an_application("r2", 1)),
        slots=[],
        lab={**most, "provider": "ec2"},
    )


def test_elastic_instances_alone_launch_nothing() -> None:
    assert decided(growing()) == [
        "0 launch lab-1 demand",
        "0 assign r1 lab-1",
        "1 launch lab-2 demand",
        "1 assign r2 lab-2",
    ]


def test_elastic_instances_launch_after_all_essential_ones_with_launch_for_elastic() -> None:
    scenario = growing(launch_for_elastic=True)
    scenario["timeline"][0] = submitted(0, an_application("r1", 1, 3), an_application("r2", 1))
    del scenario["timeline"][1]
    assert decided(scenario) == [
        "0 launch lab-1 demand",
        "0 launch lab-2 demand",
        "0 launch lab-3 demand",
        "0 assign r1 lab-1",
        "0 assign r2 lab-3",
        "0 grant r1 more.0 lab-2 room",
    ]


def test_elastic_instances_use_capacity_in_flight_before_more_is_launched() -> None:
    scenario = growing(launch_for_elastic=True, max_slots=9)
    scenario["timeline"] = [submitted(0, an_application("r1", 1, 3)), tick(6), tick(7)]
    assert [each for each in decided({**scenario, "cloud": {"boot": 5}, "until": 20}) if "launch" in each] == [
        *(f"0 launch lab-{number} demand" for number in (1, 2, 3, 4))
    ]


def test_one_slot_is_launched_for_the_one_instance_that_is_missing() -> None:
    held = on_slot("lab-1", 2, ("r1", "core"), ("r1", "more.0"))
    pool = {"provider": "ec2", "system": "sim", "max_slots": 3, "resources": {"units": 1}, "launch_for_elastic": True}
    scenario = a_lab(tick(0), slots=[held], reservations=[an_application("r1", 1, 2, phase="leased")], lab=pool)
    assert decided(scenario) == ["0 launch lab-2 demand", "0 grant r1 more.1 lab-2 room"]


def test_nothing_is_launched_for_an_instance_in_the_tick_that_reclaims_it() -> None:
    held = on_slot("lab-1", 2, ("r1", "core"), ("r1", "more"))
    pool = {"provider": "ec2", "system": "sim", "max_slots": 3, "resources": {"units": 1}, "launch_for_elastic": True}
    rows = [an_application("r1", 1, 1, phase="leased")]
    scenario = a_lab(
        submitted(5, an_application("r2", 1)), tick(5), slots=[held], reservations=rows, lab=pool, kicks=False
    )
    assert decided(scenario) == ["5 revoke r1 more lab-1 reclaimed", "5 assign r2 lab-1"]


def test_elastic_instances_of_a_pending_reservation_launch_only_if_its_essential_ones_do() -> None:
    """Nothing is launched for those of r2: its essential instances have no capacity and get none."""
    scenario = growing(launch_for_elastic=True, max_slots=4)
    scenario["timeline"] = [submitted(0, an_application("r1", 2, 1), an_application("r2", 3, 5)), tick(1)]
    played = play_out({**scenario, "cloud": {"boot": 5}, "until": 20})
    assert [each for each in played.decisions if "revoke" not in each] == [
        *(f"0 launch lab-{number} demand" for number in (1, 2, 3)),
        "5 assign r1 lab-1 lab-2",
        "5 grant r1 more lab-3 room",
    ]


@pytest.mark.parametrize("more", [2, 3])
def test_nothing_is_launched_for_an_instance_that_its_holder_gave_back(more: int) -> None:
    held = on_slot("lab-1", 1 + more, *(("r1", name) for name in ("core", "more.0", "more.1", "more.2")[: 1 + more]))
    pool = {"provider": "ec2", "system": "sim", "max_slots": 3, "resources": {"units": 1}, "launch_for_elastic": True}
    rows = [an_application("r1", 1, more, phase="leased"), an_application("r2", 1)]
    back = act(1, "surrender", {"reservation": "r1", "component": "more.1"})
    played = play_out(a_lab(back, tick(2), tick(3), slots=[held], reservations=rows, lab=pool, kicks=False))
    assert played.decisions == ["2 assign r2 lab-1"]
