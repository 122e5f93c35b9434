"""What a holder or an operator may do except release: decline, suspend, resume."""

import pytest

from scheduler.model.validation import InvalidInputError
from scheduler.simulation.runner import play
from scheduler.simulation.scenario import read_scenario
from tests.rules.playing import Document, a_scenario, a_slot, act, submit, tick

HOST = {"system": "x86_64-linux", "provider": "static", "offline_timeout": 1e9, "lease_ttl": 0}


def placed(scenario: Document) -> list[tuple[float, str, str]]:
    """Return (time, reservation, slot) of every assignment."""
    return [
        (line["at"], each["reservation"], each["leases"][0]["slot"])
        for line in play(read_scenario(scenario))
        for each in line.get("decisions", [])
        if each["do"] == "assign"
    ]


def a_lab(*timeline: Document) -> Document:
    return a_scenario(*timeline, pools={"lab": HOST}, slots=[a_slot("lab-1"), a_slot("lab-2")])


def test_a_declined_slot_is_skipped_once_and_the_queue_position_is_kept() -> None:
    """r1 gets the other slot at its next assignment, before the younger r2, which gets the declined slot."""
    scenario = a_lab(submit(0, "r1"), tick(0), act(1, "decline", "r1"), submit(2, "r2"), tick(2))
    assert placed(scenario) == [(0, "r1", "lab-1"), (2, "r1", "lab-2"), (2, "r2", "lab-1")]


def test_a_reservation_waits_if_the_only_slot_is_the_declined_one() -> None:
    scenario = a_lab(submit(0, "r1"), tick(0), act(0, "cordon", "lab-2"), act(1, "decline", "r1"), tick(2), tick(3))
    assert placed(scenario) == [(0, "r1", "lab-1")]


def test_a_suspended_reservation_gives_back_its_leases_and_waits_on_hold() -> None:
    scenario = a_lab(submit(0, "r1"), tick(0), act(1, "suspend", "r1"), tick(2), act(3, "resume", "r1"), tick(3))
    lines = list(play(read_scenario(scenario)))
    codes = [[each["code"] for each in line["waiting"]] for line in lines if "tick" in line]
    assert codes == [[], ["on_hold"], []]
    assert placed(scenario) == [(0, "r1", "lab-1"), (3, "r1", "lab-1")]


def test_a_pending_reservation_keeps_its_queue_position_while_it_is_suspended() -> None:
    scenario = a_lab(
        *(act(0, "cordon", name) for name in ("lab-1", "lab-2")),
        submit(0, "r1"),
        submit(1, "r2"),
        act(1, "suspend", "r1"),
        act(2, "resume", "r1"),
        act(2, "uncordon", "lab-2"),
        tick(2),
    )
    assert placed(scenario) == [(2, "r1", "lab-2")]


@pytest.mark.parametrize("action", ["decline", "suspend", "resume"])
def test_an_undeclared_reservation_is_refused(action: str) -> None:
    with pytest.raises(InvalidInputError, match=rf"timeline\[0\].{action}: expected a reservation that was declared"):
        read_scenario(a_lab(act(0, action, "r1")))
