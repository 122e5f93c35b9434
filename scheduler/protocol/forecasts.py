"""How a forecast of the start of a waiting reservation is worded, for every face of the product.

A forecast is a table, as in answers and in Redis. `low`, `median`, `high` and `late`: the times (cluster time, seconds
since the epoch) before which the reservation starts with a probability of 10, 50, 90 and 95 %. `as_of`: the time of the
state from which they were computed. `unknown`: why there is no forecast, a key of REASONS; then the times are missing.
"""

from collections.abc import Mapping
from typing import Any, Final

REASONS: Final = {
    "few_outcomes": "too few reservations of its kind have started since the queue, the pools or the accounts changed",
    "beyond": "it starts after the time over which the forecast looks ahead, if nothing changes",
    "not_placed": "it cannot be placed as it is",
    "not_played": "accounts, a budget, elastic instances or dearer machines decide about it, by rules that forecasts do"
    " not follow",
    "not_yet": "the next forecast will contain it",
}
"""Why the start of a reservation is not known."""
_OLD_SECONDS: Final = 120.0
"""The age from which on a forecast is worded with it."""
_UNITS: Final = ((90.0, 1.0, "s"), (5400.0, 60.0, "min"), (129600.0, 3600.0, "h"))
"""(up to how many seconds, seconds, unit)."""


def describe_eta(eta: Mapping[str, Any], now: float) -> str:
    """Return a forecast as words, like "likely to start in 3 to 7 min (80 %); 1 in 20 later than 12 min"."""
    if eta.get("unknown"):
        return f"start unknown: {REASONS.get(eta['unknown'], eta['unknown'])}"
    age = now - eta["as_of"]
    old = f"; as of {_name_span(age)} ago" if age >= _OLD_SECONDS else ""
    likely = f"likely to start {_name_range(eta['low'] - now, eta['high'] - now)} (80 %)"
    return f"{likely}; 1 in 20 later than {_name_span(eta['late'] - now)}{old}"


def shorten_eta(eta: Mapping[str, Any] | None, now: float) -> str:
    """Return a forecast for a column of a table, like "3-7 min"; "" if there is none, "unknown" if it is not known."""
    if not eta:
        return ""
    if eta.get("unknown"):
        return "unknown"
    seconds, unit = _find_unit(eta["high"] - now)
    low, high = _round(eta["low"] - now, seconds), _round(eta["high"] - now, seconds)
    return f"{low}-{high} {unit}" if low != high else f"{high} {unit}"


def _name_range(low: float, high: float) -> str:
    seconds, unit = _find_unit(high)
    least, most = _round(low, seconds), _round(high, seconds)
    if most == 0:
        return "now"
    if least == 0:
        return f"within {most} {unit}"
    return f"in {least} to {most} {unit}" if least != most else f"in about {most} {unit}"


def _name_span(span: float) -> str:
    seconds, unit = _find_unit(span)
    return f"{_round(span, seconds)} {unit}"


def _find_unit(span: float) -> tuple[float, str]:
    return next(((seconds, unit) for most, seconds, unit in _UNITS if span < most), (86400.0, "d"))


def _round(span: float, seconds: float) -> int:
    return max(0, round(span / seconds))
