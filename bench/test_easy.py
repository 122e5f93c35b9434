"""The waits under EASY backfill, as computed by hand."""

import pytest

from bench.easy import Easy
from scheduler.simulation.workload import Job

CASES = {
    "a short job starts before the first one in the queue": (((0, 10, 3), (1, 5, 4), (2, 8, 1)), [0, 0, 9]),
    "a job that would delay the first one waits": (((0, 10, 3), (1, 5, 4), (2, 9, 1)), [0, 9, 13]),
    "a long job may use what the first one leaves free": (((0, 10, 3), (1, 5, 3), (2, 50, 1)), [0, 0, 9]),
    "jobs that end at one time are all free then": (((0, 10, 2), (0, 10, 1), (1, 5, 3), (2, 50, 1)), [0, 0, 0, 9]),
    "of two backfilled jobs the second finds less": (((0, 10, 2), (1, 5, 3), (2, 50, 1), (3, 50, 1)), [0, 0, 9, 12]),
}


@pytest.mark.parametrize("name", CASES)
def test_the_waits_are_as_computed_by_hand(name: str) -> None:
    rows, waits = CASES[name]
    easy = Easy(4, are_known=True)
    easy.play(
        [
            Job(number, at, run, processors, None, -1, -1, -1, -1)
            for number, (at, run, processors) in enumerate(rows, start=1)
        ]
    )
    assert sorted(easy.waits) == waits
