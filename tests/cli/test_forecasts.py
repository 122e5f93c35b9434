"""Forecasts on the command line."""

import json
import time

import pytest

from scheduler.model.forecasts import Forecast
from scheduler.model.waits import Waits
from tests.cli.conftest import Run
from tests.client.intake import FakeIntake, a_row


@pytest.fixture
def stack(intake: FakeIntake, run: Run, monkeypatch: pytest.MonkeyPatch) -> FakeIntake:
    monkeypatch.setenv("LEASEHOLD_BROKER__URL", intake.url)
    return intake


def test_the_quality_of_forecasts_is_a_table_or_json(stack: FakeIntake, run: Run) -> None:
    assert "no forecasts" in run("forecasts").out
    stack.foresee()
    lines = run("forecasts").out.splitlines()
    assert "from 32 plays in 2" in lines[0]
    assert lines[-1].split() == ["all", "60", "80%", "2", "min", "7.0", "s"]
    assert json.loads(run("forecasts", "--json").out)["qualities"][0]["calibration"] == [[0.1, 0.2], [0.9, 0.8]]


def test_a_wide_list_has_the_forecasts(stack: FakeIntake, run: Run) -> None:
    now = time.time()
    stack.publish(a_row("r1"), a_row("r2"))
    stack.view_cache.write_report({"at": now}, Waits(["r1", "r2"], [("no_capacity", "full")] * 2))
    stack.foresee(r1=Forecast(as_of=now, low=now + 3600, median=now + 7200, high=now + 4 * 3600, late=now + 9 * 3600))
    assert "1-4 h" not in run("list").out
    head, _, *rows = run("list", "-o", "wide").out.splitlines()
    assert "eta" in head.split()
    assert "1-4 h" in next(row for row in rows if row.startswith("r1"))
    assert "1-4 h" not in next(row for row in rows if row.startswith("r2"))
