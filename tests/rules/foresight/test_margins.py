"""Margins on single outcomes, as computed by hand."""

from math import exp

import msgspec
import pytest

from scheduler.foresight.margins import (
    GRAIN,
    KEPT,
    LEAST,
    MEMORY,
    MOST_MOVED,
    RATE,
    STEP,
    WAYS,
    Ends,
    Given,
    Margins,
    Outcome,
    Waits,
)

PREDICTED = Waits(40.0, 100.0, 160.0, 200.0)
CERTAIN = Waits(*[100.0] * 4)
"""All plays agree, so all ways put the ends at the same outcomes."""
FEW = WAYS[0][0]
"""So few outcomes decide in the way that asks for the fewest. Of no more than these each way asks all."""


NO_ENDS: Ends = ((0.0,) * len(WAYS),) * 3


def given(low: float, high: float, late: float, ends: Ends = NO_ENDS) -> Given:
    return Given(Waits(low, low, high, late), ends)


def test_each_end_has_the_margin_that_its_share_of_the_outcomes_needed() -> None:
    margins, waits = Margins(), [float(each) for each in range(50, 109)]
    for seconds in waits:
        margins.note(Outcome(CERTAIN, seconds), None)
    assert len(waits) == FEW - 1
    found = margins.widen(CERTAIN).waits
    # Of 59 outcomes the 6th from below, the 6th and the 3rd from above.
    assert found == pytest.approx((55.0, 100.0, 103.0, 106.0), abs=0.002)


def test_each_way_counts_its_part_of_the_predicted_distance() -> None:
    margins = Margins()
    for _ in range(LEAST):
        margins.note(Outcome(PREDICTED, 150.0), None)
    # The median is 160 with the added seconds, and the ends are 100, 220 and 260; the outcome was 210.
    other = Waits(40.0, 100.0, 340.0, 1540.0)  # the ends are 400 and 1600
    found = margins.widen(other)
    for (_, part), high, late in zip(WAYS, found.ends[1], found.ends[2], strict=True):
        assert exp(high) == pytest.approx(210.0 * (400 / 220) ** part, rel=1e-6)
        assert exp(late) == pytest.approx(210.0 * (1600 / 260) ** part, rel=1e-6)
    assert {round(exp(each), 6) for each in found.ends[0]} == {210.0}
    # The end is the mean of the ways, of which each has the same weight.
    assert found.waits.high == pytest.approx(210.0 * (400 / 220) ** 0.5 - 60, abs=0.01)
    assert found.waits.late == pytest.approx(210.0 * (1600 / 260) ** 0.5 - 60, abs=0.01)


def test_a_way_with_less_loss_weighs_more() -> None:
    margins, right = Margins(), next(number for number, (_, part) in enumerate(WAYS) if part == 1.0)
    places = [4.0] * len(WAYS)
    places[right] = 5.0
    outcome = Outcome(CERTAIN, exp(5.0) - 60)
    margins.note(outcome, given(0.0, 1e9, 1e9, (tuple(places),) * 3))
    low, high, late = margins.dump().weights
    # The low end of all other ways was passed by 1: that costs 0.1 there, 0.9 at the high end and 0.95 at the late one.
    for weights, loss in ((low, 0.1), (high, 0.9), (late, 0.95)):
        assert [round(each, 9) for each in weights] == pytest.approx(
            [0.0 if way == right else -RATE * loss for way in range(len(WAYS))]
        )
    places[right] = 7.0
    margins.note(outcome, given(0.0, 1e9, 1e9, (tuple(places),) * 3))
    low, high, late = margins.dump().weights
    # It is 2 above the outcome: that costs the rest of the share.
    assert low[right] == pytest.approx(-RATE * 2 * 0.9)
    assert high[right] == pytest.approx(-RATE * 2 * 0.1)
    assert low[right - 1] == pytest.approx(-RATE * (0.1 + 0.1 * MEMORY))


def test_ends_follow_the_way_that_is_right() -> None:
    margins = Margins()
    for number in range(200):
        predicted = Waits(100.0, 100.0, 300.0 + 40 * (number * 7 % 20), 2000.0)
        found = margins.widen(predicted)
        margins.note(Outcome(predicted, predicted.high), found)
    for high in (350.0, 900.0):
        assert margins.widen(Waits(100.0, 100.0, high, 2000.0)).waits.high == pytest.approx(high, rel=0.15)


def test_predictions_that_are_almost_equal_have_the_same_margins() -> None:
    margins = Margins()
    for number in range(LEAST):
        margins.note(Outcome(Waits(*[100.0 + number] * 4), 150.0), None)
    one = margins.widen(CERTAIN).ends[1][0]
    margins.note(Outcome(CERTAIN, 900.0), None)  # what was computed before counts no more
    assert margins.widen(CERTAIN).ends[1][0] != one
    for factor in (1.0, exp(0.3 * GRAIN)):
        predicted = Waits(*[exp(5.0) * factor - 60] * 4)
        assert margins.widen(predicted).ends[1][0] - 5.0 == pytest.approx(
            margins.widen(Waits(*[exp(5.0) - 60] * 4)).ends[1][0] - 5.0 + (0.3 * GRAIN if factor > 1 else 0)
        )


def test_the_median_stays_within_the_interval_and_the_late_end_behind_it() -> None:
    for seconds, place in ((1000.0, "low"), (1.0, "high")):
        margins = Margins()
        for _ in range(LEAST):
            margins.note(Outcome(CERTAIN, seconds), None)
        found = margins.widen(CERTAIN).waits
        assert found.median == getattr(found, place)
        assert found.low <= found.median <= found.high <= found.late
        assert found.high == pytest.approx(seconds, abs=0.01)
    assert Margins().widen(Waits(0.0, 0.0, 0.0, 0.0)).waits.low == 0.0


def test_a_miss_moves_the_share_of_its_end_and_a_hit_moves_it_back() -> None:
    margins = Margins()
    stated = given(10.0, 30.0, 40.0)
    margins.note(Outcome(PREDICTED, 35.0), stated)  # late, but not later than the last end
    assert margins.dump().shares == pytest.approx((0.9 - 0.1 * STEP, 0.9 + 0.9 * STEP, 0.95 - 0.05 * STEP))
    margins = Margins()
    margins.note(Outcome(PREDICTED, 5.0), stated)
    assert margins.dump().shares == pytest.approx((0.9 + 0.9 * STEP, 0.9 - 0.1 * STEP, 0.95 - 0.05 * STEP))
    # At an end is a hit.
    margins = Margins()
    for seconds in (10.0, 30.0, 40.0):
        margins.note(Outcome(PREDICTED, seconds), stated)
    assert margins.dump().shares == pytest.approx((0.9 - 0.3 * STEP, 0.9 + 0.7 * STEP, 0.95 - 0.15 * STEP))


def test_shares_move_within_bounds_and_are_not_moved_without_a_forecast() -> None:
    margins, stated = Margins(), given(10.0, 30.0, 40.0)
    for _ in range(1000):
        margins.note(Outcome(PREDICTED, 5.0), None)
    assert margins.dump().shares == (0.9, 0.9, 0.95)
    for _ in range(4000):
        margins.note(Outcome(PREDICTED, 5.0), stated)
    assert margins.dump().shares == pytest.approx((0.9 + MOST_MOVED, 0.9 - MOST_MOVED, 0.95 - MOST_MOVED))
    # A share above 1 asks for the worst outcome.
    assert margins.widen(PREDICTED).waits.low == pytest.approx(5.0, abs=0.01)


def test_the_most_similar_outcomes_decide_and_of_these_the_last_ones() -> None:
    margins, most = Margins(), max(count for count, _ in WAYS)
    for seconds in (900.0, 100.0):
        for _ in range(most):
            margins.note(Outcome(CERTAIN, seconds), None)
    for _ in range(KEPT - 2 * most):
        margins.note(Outcome(Waits(*[300.0] * 4), 5000.0), None)
    assert margins.widen(CERTAIN).waits.high == pytest.approx(100.0, abs=0.01)
    assert margins.widen(Waits(*[290.0] * 4)).ends[1][0] == pytest.approx(margins.widen(Waits(*[290.0] * 4)).ends[2][0])
    assert margins.widen(Waits(*[290.0] * 4)).waits.high > 700
    # The last ones are all that the way with the fewest asks, and a part of the others.
    for _ in range(FEW):
        margins.note(Outcome(CERTAIN, 70.0), None)
    high = dict(zip(WAYS, margins.widen(CERTAIN).ends[1], strict=True))
    assert exp(high[FEW, 1.0]) - 60 == pytest.approx(70.0, abs=0.01)
    assert exp(high[most, 1.0]) - 60 == pytest.approx(100.0, abs=0.01)


def test_margins_are_known_from_the_first_outcomes_on_and_survive_a_dump() -> None:
    margins = Margins()
    for number in range(LEAST):
        assert not margins.are_known
        margins.note(Outcome(PREDICTED, 70.0 + number), given(75.0, 100.0, 110.0))
    assert margins.are_known
    other = Margins()
    other.load(margins.dump())
    assert other.widen(PREDICTED) == margins.widen(PREDICTED)
    assert other.dump() == margins.dump()
    record = margins.dump()
    other.load(msgspec.structs.replace(record, weights=((1.0,), (1.0,), (1.0,))))
    assert other.dump().weights == record.weights
    for _ in range(2 * KEPT):
        margins.note(Outcome(PREDICTED, 70.0), None)
    assert len(margins) == len(margins.dump().rows) == KEPT


def test_waits_without_an_end_have_one() -> None:
    margins = Margins()
    for _ in range(LEAST):
        margins.note(Outcome(Waits(0.0, 0.0, 0.0, 0.0), 1e9), None)
    assert margins.widen(Waits(*[1e30] * 4)).waits.high == pytest.approx(exp(50), rel=0.01)
