"""Outages that a simulated cloud has from the start: launches are refused while they last, and launches of the pools
pause.
"""

from typing import Any

import pytest

from scheduler.model.validation import InvalidInputError
from scheduler.simulation.runner import play
from scheduler.simulation.scenario import read_scenario
from tests.rules.playing import a_pool, a_scenario, submit

Line = dict[str, Any]
POOL = {"pools": {"linux": a_pool(capacity_hold=10, offerings=[{"name": "m5.large"}])}}


def an_outage(**more: Any) -> Line:
    return {"pool": "linux", "offering": "m5.large", "at": 100, "until": "3m", **more}


@pytest.mark.parametrize(
    ("asked_at", "ready_at"),
    [
        (90, 90),  # before it begins
        (100, 180),  # it begins, and the pause after the last refusal ends with it
        (175, 185),  # refused once
        (180, 180),  # it is over
    ],
)
def test_launches_are_refused_while_a_planned_outage_lasts(asked_at: float, ready_at: float) -> None:
    scenario = a_scenario(
        submit(asked_at, "r1"), **POOL, cloud={"outages": [an_outage()]}, kicks=True, wakes=True, until=200
    )
    lines = list(play(read_scenario(scenario)))
    assert [line["at"] for line in lines if line.get("event") == "slot_ready"] == [ready_at]


@pytest.mark.parametrize(
    ("outage", "stated"),
    [
        (
            an_outage(pool="linus"),
            'cloud.outages[0].pool: expected a pool of config (did you mean "linux"?), got "linus"',
        ),
        (an_outage(offering="m6"), 'cloud.outages[0].offering: expected an offering of linux, got "m6"'),
        (an_outage(until=None), "cloud.outages[0].until: expected a duration"),
    ],
)
def test_an_outage_of_an_unknown_pool_is_refused(outage: Line, stated: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        read_scenario(a_scenario(**POOL, cloud={"outages": [outage]}))
    assert str(caught.value).startswith(stated)
