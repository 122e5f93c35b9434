"""The worked example of Zoe's paper: four applications under each setting of `elastic`."""

from typing import Any

import pytest

from tests.rules.playing import Document, Played, play_out, tick
from tests.rules.zoe import MODES, a_lab, an_application, holdings, submitted

FIGURE_1 = {
    "rigid": ([10, 20, 30, 40], [0, 10, 20, 30], 25),
    "malleable": ([10, 15, 22.5, 32.5], [0, 0, 10, 22.5], 20),
    "flexible": ([10, 15, 23.5714, 28.4286], [0, 0, 10, 15], 19.25),
    "yielding": ([17.5, 19.375, 22.5, 29.5], [0, 0, 0, 17.5], 22.21875),
}
"""When A, B, C and D end and start, and their mean turnaround."""


def figure_1(elastic: str, **scheduler: Any) -> Document:
    """Ten units, four applications of three essential and 4, 3, 5, 2 elastic instances; 10 s for all of each."""
    four = [an_application(name, 3, more, runtime=10) for name, more in zip("ABCD", (4, 3, 5, 2), strict=True)]
    return a_lab(submitted(0, *four), tick(100), elastic=elastic, scheduler={"backfill": False, **scheduler})


def times(played: Played, field: str) -> list[float]:
    return [round(row[field], 4) for row in played.state["reservations"]]


@pytest.mark.parametrize("grace", [0, 5])
@pytest.mark.parametrize("elastic", MODES)
def test_the_four_applications_of_figure_1_end_at_the_stated_times(elastic: str, grace: float) -> None:
    """With a grace period too: a simulated holder surrenders at once."""
    finished, started, mean = FIGURE_1[elastic]
    played = play_out(figure_1(elastic, preemption_grace=grace))
    assert (times(played, "finished_at"), times(played, "leased_at")) == (finished, started)
    turnarounds = [row["finished_at"] - row["created_at"] for row in played.state["reservations"]]
    assert sum(turnarounds) / 4 == pytest.approx(mean, abs=1e-9)


HELD: dict[tuple[str, float], dict[str, int]] = {
    ("malleable", 5): {"A": 7, "B": 3},
    ("malleable", 12): {"B": 6, "C": 4},
    ("malleable", 20): {"C": 8},
    ("malleable", 25): {"D": 5},
    ("flexible", 5): {"A": 7, "B": 3},
    ("flexible", 12): {"B": 6, "C": 4},
    ("flexible", 20): {"C": 7, "D": 3},
    ("flexible", 25): {"D": 5},
    ("yielding", 5): {"A": 4, "B": 3, "C": 3},
}


@pytest.mark.parametrize(("elastic", "at"), HELD)
def test_the_stated_number_of_instances_of_figure_1_is_held_at_that_time(elastic: str, at: float) -> None:
    scenario = figure_1(elastic)
    scenario["timeline"][-1] = tick(at)
    assert {name: len(each) for name, each in holdings(play_out(scenario)).items()} == HELD[elastic, at]
