"""Margins on single outcomes, as computed by hand."""

from math import exp, log

import pytest

from scheduler.foresight.margins import KEPT, LEAST, MOST_MOVED, NEAR, STEP, Margins, Outcome, Waits

PREDICTED = Waits(40.0, 100.0, 160.0, 200.0)


def move(seconds: float, by: float, middle: float = 100.0) -> float:
    """An end lies halfway to the median, and moves by a logarithm."""
    return exp((log(seconds + 60) + log(middle + 60)) / 2 + by) - 60


def score(seconds: float, end: float) -> float:
    return log(seconds + 60) - log(move(end, 0.0) + 60)


def test_each_end_has_the_margin_that_its_share_of_the_outcomes_needed() -> None:
    margins, waits = Margins(), [float(each) for each in range(50, 149)]
    for seconds in waits:
        margins.note(Outcome(PREDICTED, seconds), None)
    given = margins.widen(PREDICTED)
    # Of 99 outcomes the 10th from below, the 10th and the 5th from above.
    assert given.low == pytest.approx(move(40.0, score(59.0, 40.0)), abs=0.002)
    assert given.high == pytest.approx(move(160.0, score(139.0, 160.0)), abs=0.002)
    assert given.late == pytest.approx(move(200.0, score(144.0, 200.0)), abs=0.002)
    assert given.median == 100.0


def test_the_median_stays_within_the_interval_and_the_late_end_behind_it() -> None:
    for seconds, place in ((1000.0, "low"), (1.0, "high")):
        margins = Margins()
        for _ in range(LEAST):
            margins.note(Outcome(PREDICTED, seconds), None)
        given = margins.widen(PREDICTED)
        assert given.median == getattr(given, place)
        assert given.low <= given.median <= given.high <= given.late
        assert given.high == pytest.approx(seconds, abs=0.01)
    assert Margins().widen(Waits(0.0, 0.0, 0.0, 0.0)).low == 0.0


def test_a_miss_moves_the_share_of_its_end_and_a_hit_moves_it_back() -> None:
    margins = Margins()
    given = Waits(10.0, 20.0, 30.0, 40.0)
    margins.note(Outcome(PREDICTED, 35.0), given)  # late, but not later than the last end
    assert margins.dump().shares == pytest.approx((0.9 - 0.1 * STEP, 0.9 + 0.9 * STEP, 0.95 - 0.05 * STEP))
    margins = Margins()
    margins.note(Outcome(PREDICTED, 5.0), given)
    assert margins.dump().shares == pytest.approx((0.9 + 0.9 * STEP, 0.9 - 0.1 * STEP, 0.95 - 0.05 * STEP))
    # At an end is a hit.
    margins = Margins()
    for seconds in (10.0, 30.0, 40.0):
        margins.note(Outcome(PREDICTED, seconds), given)
    assert margins.dump().shares == pytest.approx((0.9 - 0.3 * STEP, 0.9 + 0.7 * STEP, 0.95 - 0.15 * STEP))


def test_shares_move_within_bounds_and_are_not_moved_without_a_forecast() -> None:
    margins, given = Margins(), Waits(10.0, 20.0, 30.0, 40.0)
    for _ in range(1000):
        margins.note(Outcome(PREDICTED, 5.0), None)
    assert margins.dump().shares == (0.9, 0.9, 0.95)
    for _ in range(4000):
        margins.note(Outcome(PREDICTED, 5.0), given)
    assert margins.dump().shares == pytest.approx((0.9 + MOST_MOVED, 0.9 - MOST_MOVED, 0.95 - MOST_MOVED))
    # A share above 1 asks for the worst outcome.
    assert margins.widen(PREDICTED).low == pytest.approx(5.0, abs=0.01)


def test_the_most_similar_outcomes_decide_and_of_these_the_last_ones() -> None:
    margins = Margins()
    for seconds in (900.0, 100.0):
        for _ in range(NEAR):
            margins.note(Outcome(Waits(*[100.0] * 4), seconds), None)
    for _ in range(NEAR):
        margins.note(Outcome(Waits(*[300.0] * 4), 5000.0), None)
    assert margins.widen(Waits(*[100.0] * 4)).high == pytest.approx(100.0, abs=0.01)
    assert margins.widen(Waits(*[290.0] * 4)).high > 4000
    # Half of the nearest ones.
    for _ in range(NEAR // 2):
        margins.note(Outcome(Waits(*[100.0] * 4), 70.0), None)
    assert margins.widen(Waits(*[100.0] * 4)).low == pytest.approx(70.0, abs=0.01)


def test_margins_are_known_from_the_first_outcomes_on_and_survive_a_dump() -> None:
    margins = Margins()
    for number in range(LEAST):
        assert not margins.are_known
        margins.note(Outcome(PREDICTED, 70.0 + number), Waits(75.0, 80.0, 100.0, 110.0))
    assert margins.are_known
    other = Margins()
    other.load(margins.dump())
    assert other.widen(PREDICTED) == margins.widen(PREDICTED)
    assert other.dump() == margins.dump()
    for _ in range(2 * KEPT):
        margins.note(Outcome(PREDICTED, 70.0), None)
    assert len(margins) == len(margins.dump().scores) == KEPT


def test_waits_without_an_end_have_one() -> None:
    margins = Margins()
    for _ in range(LEAST):
        margins.note(Outcome(Waits(0.0, 0.0, 0.0, 0.0), 1e9), None)
    assert margins.widen(Waits(*[1e30] * 4)).high == pytest.approx(exp(50), rel=0.01)
