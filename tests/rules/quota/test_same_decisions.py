"""The engine and a plain scheduler, written from qscheduler's rules alone, agree on whole plays."""

import json
from collections import Counter
from functools import cache

import pytest

from tests.generated import draw_some
from tests.reference_model.quota.generator import make_scenario
from tests.reference_model.quota.playing import Document, compare, find_kinds, play_plain

ALWAYS = range(110, 135)
RUNS = [*ALWAYS, *draw_some(range(110), 25)]
PARTS = 5
scenario = cache(make_scenario)
MOVES = {"preempt", "promotion", "demotion"}


@cache
def play(number: int) -> list[Document]:
    """The decisions of the plain scheduler, played once for all tests."""
    return list(play_plain(scenario(number)))


@pytest.mark.parametrize("part", range(PARTS))
def test_the_engine_decides_charges_and_levels_as_the_plain_scheduler_does(part: int) -> None:
    for number in RUNS[part::PARTS]:
        document = scenario(number)
        difference = compare(document, plain_play=play(number))
        assert difference is None, f"{json.dumps(document)}\nscenario {number}, {difference}"


def test_elastic_leases_are_preempted_as_the_plain_scheduler_does() -> None:
    kinds = set[str]()
    # The first of them has both kinds.
    for number in [6, *draw_some(range(7, 30), 9)]:
        document = make_scenario(number, has_helpers=True)
        plain_play = list(play_plain(document))
        difference = compare(document, plain_play=plain_play)
        assert difference is None, f"{json.dumps(document)}\nscenario {number}, {difference}"
        kinds |= find_kinds(plain_play)
    assert kinds >= {"preempt", "revoke"}


def test_a_fifth_of_the_runs_has_preemptions_promotions_and_demotions() -> None:
    """Of those that every run of the tests compares."""
    kinds = [find_kinds(play(number)) for number in ALWAYS]
    assert sum(each >= MOVES for each in kinds) >= len(ALWAYS) / 5
    assert set(Counter(kind for each in kinds for kind in each)) == {*MOVES, "assign", "requeue"}


def test_the_same_number_makes_the_same_scenario() -> None:
    assert [make_scenario(number) for number in (3, 4)] == [make_scenario(number) for number in (3, 4)]
    assert make_scenario(3) != make_scenario(4)
