"""Times, durations and amounts as texts for people, the colours of states, and tables as TOML."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from workers.config_template import format_value

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


def format_toml(document: Mapping[str, Any]) -> str:
    """Return `document` as TOML text: plain values first, then the tables."""
    return "\n".join(_format_table(document, ())).strip()


def format_pairs(document: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield `KEY=VALUE` for each value of `document`, with dotted keys: `pools.linux.max_slots=5`."""
    for key, value in document.items():
        own = f"{path}{_quote(key)}"
        if isinstance(value, Mapping) and value:
            yield from format_pairs(value, f"{own}.")
        else:
            yield f"{own}={format_value(value)}"


def _format_table(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    inner = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    plain = {key: value for key, value in table.items() if key not in inner}
    if path and (plain or not inner):
        yield f"\n[{'.'.join(path)}]"
    for key, value in plain.items():
        yield f"{_quote(key)} = {format_value(value)}"
    for key, value in inner.items():
        yield from _format_table(value, (*path, _quote(key)))


def _quote(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else format_value(key)
