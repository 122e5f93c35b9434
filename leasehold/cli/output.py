"""What commands print: tables for people, JSON for programs; colours only on a terminal."""

import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

if TYPE_CHECKING:
    from rich.table import Table

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Watched = Annotated[
    float | None, typer.Option("--watch", metavar="SECONDS", help="Show it again every so many seconds.", min=0.1)
]
_MINUTE: Final = 60
_HOUR: Final = 3600
_DAY: Final = 86400
_UNITS: Final = {"s": 1, "m": _MINUTE, "h": _HOUR, "d": _DAY}


def example(*lines: str) -> str:
    """The epilogue of a command's help: at least one line to copy."""
    return "Examples:\n\n" + "\n\n".join(f"  {line}" for line in lines)


def print_json(value: object) -> None:
    """One document on one line."""
    import msgspec

    sys.stdout.write(json.dumps(msgspec.to_builtins(value), ensure_ascii=False) + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], empty: str) -> None:
    """A table, or a sentence when there is nothing in it."""
    print_thing(make_table(columns, rows, empty))


def make_table(columns: Sequence[str], rows: Iterable[Sequence[str]], empty: str) -> "Table | str":
    """The same as a thing to be printed."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table if table.row_count else empty


def print_thing(*things: object) -> None:
    """Print for people; without colours and at full width where no terminal is."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, emoji=False, width=200, color_system=None)
    for thing in things:
        console.print(thing)


def repeat(show: Callable[[], None], seconds: float | None) -> None:
    """Show something once, or again and again until Ctrl-C."""
    show()
    while seconds is not None:
        sys.stdout.flush()
        # The interval that the user asked for.
        time.sleep(seconds)
        if sys.stdout.isatty():
            sys.stdout.write("\x1b[2J\x1b[H")
        show()


def show_age(at: float | None, now: float | None = None) -> str:
    """How long ago, in the largest unit that says enough."""
    if at is None:
        return ""
    seconds = (time.time() if now is None else now) - at
    if seconds < 0:
        return f"in {show_seconds(-seconds)}"
    return f"{show_seconds(seconds)} ago"


def show_seconds(seconds: float) -> str:
    """A duration for people."""
    if seconds < _MINUTE:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"  # noqa: PLR2004 - a digit more when it matters
    if seconds < _HOUR:
        return f"{seconds / _MINUTE:.0f} min"
    return f"{seconds / _HOUR:.1f} h" if seconds < _DAY else f"{seconds / _DAY:.1f} d"


def show_time(at: float) -> str:
    """An instant, in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")


def show_amounts(amounts: dict[str, float] | None) -> str:
    """Resources in a few characters."""
    return " ".join(f"{name}={amount:g}" for name, amount in (amounts or {}).items())


def show_levels(amounts: Iterable[float]) -> str:
    """A number for each level, best first, in a few characters."""
    return " ".join(f"{amount:.6g}" for amount in amounts)


def parse_numbers(text: str | None) -> list[Any] | None:
    """`2,1` as numbers; what is none is refused by who knows what it should be."""
    return None if text is None else [_number(each.strip()) for each in text.split(",")]


def parse_seconds(option: str, text: str) -> float:
    """`90`, `30m`, `6h` or `2d` in seconds; raises typer.BadParameter."""
    number, unit = (text[:-1], text[-1:]) if text[-1:] in _UNITS else (text, "s")
    value = _number(number)
    if isinstance(value, str) or not 0 < value * _UNITS[unit] < float("inf"):
        raise typer.BadParameter(f"expected a duration like 90, 30m or 6h, got {text!r}", param_hint=option)
    return value * _UNITS[unit]


def parse_time(option: str, text: str | None) -> float | None:
    """Seconds since the epoch, or a time like 2026-11-21T14:00:00Z; raises typer.BadParameter."""
    if text is None:
        return None
    value = _number(text)
    if not isinstance(value, str):
        return value
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        wanted = f"expected seconds since the epoch or a time like 2026-11-21T14:00:00Z, got {text!r}"
        raise typer.BadParameter(wanted, param_hint=option) from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def parse_pairs(option: str, pairs: Iterable[str]) -> dict[str, str]:
    """`name=value` options as a table; raises typer.BadParameter."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"expected name=value, got {pair!r}", param_hint=option)
        found[name] = value
    return found


def parse_amounts(option: str, pairs: Iterable[str]) -> dict[str, Any]:
    """The same with numbers where they are some; what is none is refused by who knows what it should be."""
    return {name: _number(value) for name, value in parse_pairs(option, pairs).items()}


def _number(text: str) -> float | str:
    try:
        value = float(text)
    except ValueError:
        return text
    return int(value) if value.is_integer() else value
