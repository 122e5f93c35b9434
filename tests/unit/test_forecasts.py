"""Forecasts as words."""

from typing import Any

import pytest

from scheduler.model.forecasts import Forecast
from scheduler.protocol.forecasts import REASONS, describe_eta, shorten_eta

NOW = 1000.0


def eta(low: float, high: float, late: float, as_of: float = NOW) -> dict[str, Any]:
    found = Forecast(as_of=as_of, low=NOW + low, median=NOW + high, high=NOW + high, late=NOW + late)
    return found.list_fields()


@pytest.mark.parametrize(
    ("table", "words", "short"),
    [
        (eta(180, 420, 720), "likely to start in 3 to 7 min (80 %); 1 in 20 later than 12 min", "3-7 min"),
        (eta(5, 20, 100), "likely to start in 5 to 20 s (80 %); 1 in 20 later than 2 min", "5-20 s"),
        (eta(-5, 20, 30), "likely to start within 20 s (80 %); 1 in 20 later than 30 s", "0-20 s"),
        (eta(-9, -3, 0), "likely to start now (80 %); 1 in 20 later than 0 s", "0 s"),
        (eta(7200, 7500, 90000), "likely to start in about 2 h (80 %); 1 in 20 later than 25 h", "2 h"),
        (eta(86400, 3 * 86400, 4 * 86400), "likely to start in 1 to 3 d (80 %); 1 in 20 later than 4 d", "1-3 d"),
    ],
)
def test_a_forecast_is_a_range_and_a_late_time(table: dict[str, Any], words: str, short: str) -> None:
    assert describe_eta(table, NOW) == words
    assert shorten_eta(table, NOW) == short


def test_an_old_forecast_shows_its_age() -> None:
    assert describe_eta(eta(60, 120, 240, as_of=NOW - 600), NOW).endswith("; as of 10 min ago")


def test_an_unknown_start_has_a_reason() -> None:
    table = Forecast(as_of=NOW, unknown="beyond").list_fields()
    assert table == {"as_of": NOW, "unknown": "beyond"}
    assert describe_eta(table, NOW) == f"start unknown: {REASONS['beyond']}"
    assert shorten_eta(table, NOW) == "unknown"
    assert shorten_eta(None, NOW) == ""
