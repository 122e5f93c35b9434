"""Times, durations and amounts as texts for people, and the colours of states."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

_MINUTE: Final = 60
_HOUR: Final = 3600
_DAY: Final = 86400
_LEAST_SHOWN: Final = 0.005
_STYLES: Final = {
    **dict.fromkeys(("leased", "ready", "ok"), "green"),
    **dict.fromkeys(("pending", "launching", "booting", "binding"), "yellow"),
    **dict.fromkeys(("revoking", "draining", "degraded"), "magenta"),
    "stopped": "blue",
    **dict.fromkeys(("failed", "expired", "error", "down"), "red"),
    **dict.fromkeys(("released", "cancelled", "empty", "terminating"), "dim"),
}


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


def format_amount(amount: float) -> str:
    """Return an amount of a resource with two decimals at most: `4`, `0.5`, `1,234.57`. `amount` of console.js returns
    the same.
    """
    if 0 < abs(amount) < _LEAST_SHOWN:
        return "<0.01" if amount > 0 else ">-0.01"
    return f"{amount:,.2f}".rstrip("0").removesuffix(".")


def show_cost(cost: Iterable[float]) -> str:
    """Return the cost of a lease by paid level in words, like `0.74 of level 2`."""
    return " and ".join(f"{format_amount(amount)} of level {level}" for level, amount in enumerate(cost) if amount) or (
        "nothing"
    )


def show_levels(amounts: Iterable[float]) -> str:
    """Return the amounts of a quota account as a text like `2 1 0 0 0`: a number for each level, the best
    level first.
    """
    return " ".join(f"{amount:.6g}" for amount in amounts)


def find_style(state: str) -> str:
    """Return the colour for a cell with this phase or state; "" for another text."""
    return _STYLES.get(state.partition(" ")[0], "")
