"""A curve has a limited number of bins and keeps the sum of the values added to it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.simulation.metrics import MOST_BINS, Curve, CurveRecorder


def test_a_curve_is_the_mean_and_the_peak_of_each_bin() -> None:
    recorder = CurveRecorder(width=10)
    recorder.add(2, 0, 5)
    recorder.add(4, 5, 20)
    recorder.add(8, 20, 25)
    assert recorder.finish() == Curve(10, (3, 4, 8), (4, 4, 8))


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0.001, 1e6)), min_size=1, max_size=30))
def test_the_area_under_a_curve_is_the_sum_of_its_values(steps: list[tuple[float, float]]) -> None:
    recorder, at, area = CurveRecorder(), 0.0, 0.0
    for value, seconds in steps:
        recorder.add(value, at, at + seconds)
        at, area = at + seconds, area + value * seconds
    curve = recorder.finish()
    assert len(curve.means) <= MOST_BINS + 1
    last = at - (len(curve.means) - 1) * curve.width
    found = sum(curve.means[:-1]) * curve.width + curve.means[-1] * last
    assert found == pytest.approx(area, rel=1e-6, abs=1e-6)
    assert max(curve.peaks) == max(value for value, _ in steps)
