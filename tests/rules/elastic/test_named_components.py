"""Commands that name a component with several instances concern all of its instances."""

import pytest

from tests.rules.playing import Document, act, play_out, tick
from tests.rules.zoe import MODES, a_lab, an_application, holdings, on_slot

HELD = on_slot("lab-1", 4, ("r1", "core.0"), ("r1", "core.1"), ("r1", "more.0"), ("r1", "more.1"))
"""r1 holds both of its essential and both of its elastic instances."""
GRACE = {"preemption_grace": 30}


def held_by_r1(*timeline: Document, policy: str = "never", **parts: object) -> Document:
    row = an_application("r1", 2, 2, phase="leased", restart_policy=policy)
    return a_lab(*timeline, slots=[HELD], reservations=[row], **parts)  # type: ignore[arg-type]


@pytest.mark.parametrize("elastic", MODES)
def test_a_reservation_fails_when_its_essential_component_died(elastic: str) -> None:
    played = play_out(held_by_r1(act(5, "fail", {"reservation": "r1", "component": "core"}), elastic=elastic))
    assert (played.phases, holdings(played)) == ({"r1": "failed"}, {})


def test_each_instance_of_a_component_that_died_counts_a_restart() -> None:
    row = play_out(
        held_by_r1(act(5, "fail", {"reservation": "r1", "component": "core"}), policy="on_failure")
    ).reservation("r1")
    assert (row["restarts"], row["component_restarts"]) == (1, {"core.0": 1, "core.1": 1})


@pytest.mark.parametrize("elastic", MODES)
def test_each_instance_of_an_elastic_component_that_died_is_replaced(elastic: str) -> None:
    played = play_out(held_by_r1(act(5, "fail", {"reservation": "r1", "component": "more"}), elastic=elastic))
    assert played.decisions == ["5 grant r1 more.0 lab-1 room", "5 grant r1 more.1 lab-1 room"]
    assert (played.phases, played.reservation("r1")["restarts"]) == ({"r1": "leased"}, 0)


def test_all_instances_of_an_elastic_component_are_given_back_and_not_granted_again() -> None:
    played = play_out(held_by_r1(act(5, "surrender", {"reservation": "r1", "component": "more"}), tick(6)))
    assert (played.decisions, holdings(played)) == ([], {"r1": ["core.0@lab-1", "core.1@lab-1"]})


def test_instances_that_are_being_revoked_and_others_are_given_back_together() -> None:
    played = play_out(
        held_by_r1(
            {"at": 5, "submit": an_application("r2", 1)},
            act(9, "surrender", {"reservation": "r1", "component": "more"}),
            scheduler=GRACE,
        )
    )
    assert played.decisions == ["5 revoke r1 more.1 lab-1 reclaimed", "9 assign r2 lab-1"]
    assert holdings(played) == {"r1": ["core.0@lab-1", "core.1@lab-1"], "r2": ["core@lab-1"]}


def test_a_pending_reservation_fails_by_the_name_of_its_component() -> None:
    played = play_out(
        a_lab(
            {"at": 0, "submit": an_application("r1", 2, units=99)},
            act(5, "fail", {"reservation": "r1", "component": "core"}),
        )
    )
    assert played.phases == {"r1": "failed"}


@pytest.mark.parametrize("action", ["fail", "surrender"])
def test_a_component_that_the_reservation_does_not_have_changes_nothing(action: str) -> None:
    played = play_out(held_by_r1(act(5, action, {"reservation": "r1", "component": "less"})))
    assert (played.decisions, played.phases) == ([], {"r1": "leased"})
    assert holdings(played) == {"r1": ["core.0@lab-1", "core.1@lab-1", "more.0@lab-1", "more.1@lab-1"]}
