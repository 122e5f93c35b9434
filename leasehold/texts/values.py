"""Times, durations and amounts as texts for people."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

_MINUTE: Final = 60
_HOUR: Final = 3600
_DAY: Final = 86400


def show_seconds(seconds: float) -> str:
    """Return a duration in seconds as a text for people, like "3 min"."""
    if seconds < _MINUTE:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"  # noqa: PLR2004 - a digit more when it matters
    if seconds < _HOUR:
        return f"{seconds / _MINUTE:.0f} min"
    return f"{seconds / _HOUR:.1f} h" if seconds < _DAY else f"{seconds / _DAY:.1f} d"


def show_time(at: float) -> str:
    """Return a time in seconds since the epoch as text in UTC, like 2026-11-21T14:00:00Z."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def show_levels(amounts: Iterable[float]) -> str:
    """Return the amounts of a quota account as a text like `2 1 0 0 0`: a number for each level, the best
    level first.
    """
    return " ".join(f"{amount:.6g}" for amount in amounts)
