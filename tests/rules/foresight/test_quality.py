"""How well forecasts were kept: shares, widths, losses and the number of classes, as computed by hand."""

import pytest

from scheduler.foresight.margins import ALL, KEPT_OUTCOMES, MOST_CLASSES, QualityRecord, Waits, find_loss
from scheduler.model.forecasts import Quality

GIVEN = Waits(10.0, 20.0, 30.0, 40.0)


@pytest.mark.parametrize(
    ("share", "stated", "seconds", "loss"),
    [
        (0.1, 10.0, 30.0, 2.0),
        (0.1, 10.0, 5.0, 4.5),
        (0.9, 30.0, 50.0, 18.0),
        (0.9, 30.0, 20.0, 1.0),
        (0.9, 5.0, 5.0, 0),
    ],
)
def test_a_quantile_loses_by_its_share_above_and_by_the_rest_below(
    share: float, stated: float, seconds: float, loss: float
) -> None:
    assert find_loss(share, stated, seconds) == pytest.approx(loss)


def test_the_quality_is_that_of_the_forecasts_that_were_made() -> None:
    record = QualityRecord()
    for seconds in (10.0, 30.0, 35.0, 50.0):  # the ends belong to the interval
        record.note("a", GIVEN, seconds)
    record.note("a", Waits(0.0, 1.0, 100.0, 100.0), 0.0)
    record.note("b", None, 7.0)
    everything, first, second = record.list()
    losses = [0 + 0.1 * 20, 0.1 * 20 + 0, 0.1 * 25 + 0.9 * 5, 0.1 * 40 + 0.9 * 20, 0 + 0.1 * 100]
    assert first.loss == pytest.approx(sum(losses) / 5)
    assert (first.name, first.count, first.coverage, first.width) == ("a", 5, 0.6, 20.0)
    assert first.calibration == ((0.1, 0.4), (0.5, 0.4), (0.9, 0.6), (0.95, 0.8))
    assert second == Quality(name="b", count=1)
    assert (everything.name, everything.count, everything.coverage) == (ALL, 6, 0.6)


def test_the_last_outcomes_of_the_first_classes_are_kept() -> None:
    record = QualityRecord()
    for _ in range(KEPT_OUTCOMES):
        record.note("a", GIVEN, 1000.0)
    for _ in range(KEPT_OUTCOMES):
        record.note("a", GIVEN, 20.0)
    for number in range(2 * MOST_CLASSES):
        record.note(f"c{number}", GIVEN, 20.0)
    found = {each.name: each for each in record.list()}
    assert len(found) == MOST_CLASSES + 1
    assert (found["a"].count, found["a"].coverage) == (2 * KEPT_OUTCOMES, 1.0)
    assert found[ALL].count == 2 * KEPT_OUTCOMES + 2 * MOST_CLASSES
    assert record.list()[0].name == ALL
