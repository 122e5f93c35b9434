"""With a grace period, a reservation that claims slots takes part in the cascade: its elastic instances keep capacity
that those of later rank would get, and are granted with its assignment.
"""

import pytest

from tests.rules.playing import act, play_out, tick
from tests.rules.zoe import a_lab, an_application, component, holdings, on_slot, submitted

GRACE = {"queue": "size", "preemption_grace": 30}
LONG, SHORT = an_application("long", 3, 7, size=9), an_application("short", 3, 7, size=1)


@pytest.mark.parametrize("elastic", ["yielding", "flexible"])
def test_what_is_surrendered_early_is_not_granted_again_to_a_later_rank(elastic: str) -> None:
    scenario = a_lab(
        submitted(0, LONG),
        submitted(1, SHORT),
        act(5, "surrender", {"reservation": "long", "component": "more.6"}),
        act(6, "surrender", {"reservation": "long", "component": "more.5"}),
        *(tick(7), tick(31), tick(32)),
        elastic=elastic,
        scheduler=GRACE,
    )
    played = play_out(scenario)
    decided = [line for line in played.decisions if not line.startswith(("0 ", "1 "))]
    assert decided == [
        *(f"31 revoke long more.{index} lab-1 reclaimed" for index in range(5)),
        "31 assign short lab-1 lab-1 lab-1",
        *(f"31 grant short more.{index} lab-1 room" for index in range(4)),
    ]
    assert holdings(played)["long"] == [f"core.{index}@lab-1" for index in range(3)]


def test_capacity_that_the_claim_does_not_need_is_granted_to_the_later_rank() -> None:
    scenario = a_lab(
        submitted(0, LONG),
        submitted(1, an_application("short", 3, 1, size=1)),
        act(5, "surrender", {"reservation": "long", "component": "more.6"}),
        *(tick(7), tick(31)),
        scheduler=GRACE,
    )
    assert holdings(play_out(scenario)) == {
        "long": [*(f"core.{index}@lab-1" for index in range(3)), *(f"more.{index}@lab-1" for index in range(3))],
        "short": [*(f"core.{index}@lab-1" for index in range(3)), "more@lab-1"],
    }


def test_elastic_instances_are_granted_with_the_assignment_and_not_with_the_claim() -> None:
    """lab-2 is free all the time. Only lab-1 has the two units of the essential instance."""
    held = on_slot("lab-1", 3, *(("long", name) for name in ("core", "more.0", "more.1")))
    short = an_application("short", 1, size=1)
    short["components"] = [component("core", 1, 2), component("more", 1, 1, "elastic")]
    scenario = a_lab(
        submitted(0, short),
        *(tick(1), tick(30)),
        slots=[held, 1],
        reservations=[an_application("long", 1, 2, size=9, phase="leased")],
        scheduler=GRACE,
    )
    assert play_out(scenario).decisions == [
        *("0 revoke long more.1 lab-1 reclaimed", "0 revoke long more.0 lab-1 reclaimed"),
        *("30 revoke long more.0 lab-1 reclaimed", "30 revoke long more.1 lab-1 reclaimed"),
        *("30 assign short lab-1", "30 grant short more lab-2 room"),
    ]
