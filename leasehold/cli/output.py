"""Print the results of commands: tables for people; JSON, YAML and CSV for programs. Parse the values of options."""

import json
import math
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from leasehold.cli.failures import BAD_INPUT, CommandError
from leasehold.cli.tables import Cell, Column, Grid, find_width, wrap
from leasehold.texts.values import show_seconds, show_time
from scheduler.protocol.visible import escape_json, make_visible

if TYPE_CHECKING:
    from leasehold.client.models import Answer

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Timeout = Annotated[float, typer.Option(metavar="SECONDS", help="Seconds to wait for the answer.", min=0.1)]
Watched = Annotated[
    float | None,
    typer.Option("--watch", metavar="SECONDS", help="Repeat the output each SECONDS until Ctrl-C.", min=0.1),
]
_NO_WIDTH: Final = 100_000
"""Width in characters for output that is no terminal. It is so large that no line is wrapped or cut."""
_MOST_CHOICES: Final = 60
_MINUTE: Final = 60
_HOUR: Final = 3600
_DAY: Final = 86400
_AMOUNT_UNITS: Final[Mapping[str, Mapping[str, float]]] = {
    "cpus": {"m": 0.001},
    "memory_mib": {
        f"{letter}{rest}": 1024.0**power
        for power, letters in ((-1, "kK"), (0, "mM"), (1, "gG"), (2, "tT"))
        for letter in letters
        for rest in ("iB", "i", "B", "")
    },
}
"""Name of a resource -> the endings of amounts in options, with their factors."""
MEMORY_HELP: Final = "in MiB, or like 512M or 4G (4G = 4Gi = 4096 MiB)"
CPUS_HELP: Final = "like 2, 0.5 or 500m"
_UNITS: Final = {"s": 1, "m": _MINUTE, "h": _HOUR, "d": _DAY}


def starting(words: Iterable[str], incomplete: str) -> list[str]:
    """Return those of `words` that begin with `incomplete`, the text before the cursor."""
    return [word for word in words if word.startswith(incomplete)]


def print_json(value: object) -> None:
    import msgspec

    sys.stdout.write(escape_json(json.dumps(msgspec.to_builtins(value), ensure_ascii=False)) + "\n")


def print_result(value: object, text: str, *, as_json: bool) -> None:
    """Print the result of a command: with `as_json` the document `value` for programs, else `text` for people. The
    output is flushed, so that the reader of a pipe gets it at once: the command may wait afterwards.
    """
    if as_json:
        print_json(value)
    else:
        print_thing(text)
    sys.stdout.flush()


def print_slot(answer: "Answer", as_json: bool) -> None:
    """Print the id and the state of the slot in a worker's answer, as text or with `as_json` as JSON."""
    text = f"{answer.slot} {answer.state}" + (" cordoned" if answer.cordoned else "")
    print_result(answer, text, as_json=as_json)


def print_table(columns: Sequence[str | Column], rows: Iterable[Sequence[Cell]], empty: str) -> None:
    """Print a table, or the sentence `empty` if it has no rows."""
    print_thing(make_table(columns, rows, empty))


def make_table(columns: Sequence[str | Column], rows: Iterable[Sequence[Cell]], empty: str) -> "Grid | str":
    """Return a table that `print_thing` prints, or the sentence `empty` if there are no rows. A column that is given as
    a text, its name, is wrapped between words. A column with a name and without any value is left out.
    """
    found = list(rows)
    described = [Column(each, "wrap") if isinstance(each, str) else each for each in columns]
    shown = [index for index, each in enumerate(described) if not each.name or any(row[index] for row in found)]
    fitted = [[row[index] for index in shown] for row in found]
    return Grid([described[index] for index in shown], fitted, find_width()) if found else empty


def print_wide(columns: Sequence[Column], rows: Iterable[Sequence[Cell]], empty: str) -> None:
    """Print a table with all columns in full, or the sentence `empty` if there are no rows. Lines may be longer than
    the terminal.
    """
    found = list(rows)
    print_thing(Grid(columns, found) if found else empty)


def print_thing(*things: object) -> None:
    """Print texts and tables on standard output. On a terminal texts are wrapped; elsewhere no line is wrapped and
    nothing has a colour.
    """
    width = find_width()
    for thing in things:
        if isinstance(thing, str):
            sys.stdout.write(wrap(make_visible(thing, multiline=True), width) + "\n")
        else:
            from rich.console import Console

            console = Console(
                file=sys.stdout,
                highlight=False,
                markup=False,
                emoji=False,
                width=_NO_WIDTH if width is None else width,
                force_terminal=width is not None,
                color_system=None if width is None else "auto",
            )
            console.print(thing, crop=False)


def repeat(show: Callable[[], None], seconds: float | None) -> None:
    """Call `show` once. If `seconds` is given, call `show` again in this interval until Ctrl-C."""
    show()
    while seconds is not None:
        sys.stdout.flush()
        # This pause is the interval of --watch.
        time.sleep(seconds)
        if sys.stdout.isatty():
            sys.stdout.write("\x1b[2J\x1b[H")
        show()


@dataclass
class Clock:
    """The clock by which a command computes ages. It shows cluster time (the time of the database) after the command
    has connected to a stack, and the wall clock before.
    """

    now: Callable[[], float] = time.time


clock: Final = Clock()
"""The clock by which this process computes the ages that it prints."""


def show_age(at: float | None, now: float | None = None) -> str:
    """Return how long ago `at` (in seconds since the epoch) was, like "3 min ago", or "in 3 min" for a time in the
    future; "" for None.
    """
    if at is None:
        return ""
    seconds = (clock.now() if now is None else now) - at
    return f"in {show_seconds(-seconds)}" if seconds < 0 else f"{show_seconds(seconds)} ago"


def show_instant(at: float | None) -> str:
    """Return a time in seconds since the epoch as text in UTC, with its age in brackets; "" for None."""
    return "" if at is None else f"{show_time(at)} ({show_age(at)})"


def show_amounts(amounts: dict[str, float] | None) -> str:
    """Return amounts of resources as a text like `cpus=2 memory_mib=512`."""
    return " ".join(f"{name}={amount:g}" for name, amount in (amounts or {}).items())


def show_texts(texts: Mapping[str, str]) -> str:
    """Return labels or tags as a text like `image=web disk=ssd`."""
    return " ".join(f"{name}={value}" for name, value in texts.items())


def shorten(ids: Sequence[str], most: int, *, between: str = " ", before_more: str = " …") -> str:
    """Return the first `most` of `ids` as a text, with `between` between two ids. If there are more ids, the text ends
    with `before_more` and the number of the ids that are left out.
    """
    more = f"{before_more} and {len(ids) - most} more" if len(ids) > most else ""
    return between.join(ids[:most]) + more


def parse_numbers(text: str | None) -> list[Any] | None:
    """Return the numbers in a text like `2,1` as a list; None for None. A part that is no number stays a text, which
    the later check of the request refuses.
    """
    return None if text is None else [parse_number(each.strip()) for each in text.split(",")]


def parse_seconds(option: str, text: str) -> float:
    """Return the seconds of a duration like `90`, `30m`, `6h` or `2d`. Raises typer.BadParameter for another text."""
    number, unit = (text[:-1], text[-1:]) if text[-1:] in _UNITS else (text, "s")
    value = parse_number(number)
    if isinstance(value, str) or not 0 < value * _UNITS[unit] < float("inf"):
        raise typer.BadParameter(f"expected a duration like 90, 30m or 6h, got {text!r}", param_hint=option)
    return value * _UNITS[unit]


def parse_time(option: str, text: str | None) -> float | None:
    """Return a time in seconds since the epoch, from a text that is such a number or a time like 2026-11-21T14:00:00Z;
    None for None. Raises typer.BadParameter for another text.
    """
    if text is None:
        return None
    value = parse_number(text)
    if not isinstance(value, str):
        return value
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"expected seconds since the epoch or a time like 2026-11-21T14:00:00Z, got {text!r}", param_hint=option
        ) from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def choose(option: str, value: str, known: Sequence[str]) -> str:
    """Return `value` if it is one of the values `known` for `option`. Else raise typer.BadParameter, whose message
    suggests the most similar known value.
    """
    if value in known:
        return value
    choice = f"one of {shorten(known, _MOST_CHOICES, between=', ')}" if known else "no name, because there is none yet"
    raise typer.BadParameter(f"expected {choice}, got {value!r}{suggest(value, known)}", param_hint=option)


def suggest(value: str, known: Iterable[str]) -> str:
    """Return " (did you mean NAME?)" with the name in `known` that is most similar to `value`; "" if none
    is similar.
    """
    import difflib

    meant = difflib.get_close_matches(value, list(known), 1)
    return f" (did you mean {meant[0]}?)" if meant else ""


def parse_pairs(option: str, pairs: Iterable[str]) -> dict[str, str]:
    """Return the values `name=value` of a repeated option as a dict. Raises typer.BadParameter for a value without a
    name or without `=`.
    """
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"expected name=value, got {pair!r}", param_hint=option)
        found[name] = value
    return found


def parse_amounts(option: str, pairs: Iterable[str]) -> dict[str, Any]:
    """Return the values `name=number` of a repeated option as a dict. If the part after `=` is no number, it stays a
    text, which the later check of the request refuses.

    Raises typer.BadParameter for a value without a name or without `=`.
    """
    return {name: parse_number(value) for name, value in parse_pairs(option, pairs).items()}


def parse_resources(resource: Iterable[str] | None, cpus: str | None, memory: str | None) -> dict[str, Any]:
    """Return the amounts of the options --resource, --cpus and --memory by the name of their resource. The two last
    options have precedence.

    `500m` cpus are 0.5; `4G` or `4Gi` of memory are 4,096 MiB, a number alone is in MiB. A value that is no amount
    stays a text, which the later check of the request refuses.
    """
    found: dict[str, Any] = parse_pairs("--resource", resource or ())
    found |= {} if cpus is None else {"cpus": cpus}
    found |= {} if memory is None else {"memory_mib": memory}
    return {name: _parse_amount(name, text) for name, text in found.items()}


def _parse_amount(name: str, text: str) -> float | str:
    for ending, factor in _AMOUNT_UNITS.get(name, {}).items():
        if text.endswith(ending) and not isinstance(value := parse_number(text.removesuffix(ending)), str):
            # Rounded, since 700 times 0.001 is no 0.7.
            return _shorten_whole(round(value * factor, 9))
    return parse_number(text)


def parse_number(text: str) -> float | str:
    """Return `text` as a number. If it is none, return it unchanged; the later check of the request refuses it."""
    try:
        value = float(text)
    except ValueError:
        return text
    return _shorten_whole(value)


def _shorten_whole(value: float) -> float:
    return int(value) if value.is_integer() else value


FORMATS: Final = ("table", "wide", "json", "yaml", "csv")
DOCUMENTS: Final = ("table", "json", "yaml")
"""The formats of `--output` of a command that shows a single object, like one reservation."""
Output = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FORMAT",
        help="Form of the output: table, wide (all columns in full), json, yaml or csv.",
        autocompletion=lambda incomplete: starting(FORMATS, incomplete),
    ),
]
OneOutput = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FORMAT",
        help="Form of the output: table, json or yaml.",
        autocompletion=lambda incomplete: starting(FORMATS, incomplete),
    ),
]
_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_./@+-]*")
_NOT_TEXT: Final = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})
"""Words that readers of YAML 1.1 take for a truth value or null. A text that is such a word is printed in quotes."""


def choose_format(output: str | None, *, as_json: bool, known: Sequence[str] = FORMATS) -> str:
    """Return the format that `--output` or `--json` names; "table" without either. Raises BadParameter for an unknown
    format, and CommandError if the options name different formats.
    """
    if output is None:
        return "json" if as_json else "table"
    chosen = choose("--output", output, known)
    if as_json and chosen != "json":
        raise CommandError(f"--json: expected no other --output, got {chosen}", BAD_INPUT)
    return chosen


def print_document(value: Any, chosen: str) -> None:
    """Print `value` as one line of JSON if `chosen` is "json", else as YAML."""
    if chosen == "json":
        print_json(value)
        return
    import msgspec

    sys.stdout.write("\n".join(_list_lines(msgspec.to_builtins(value))) + "\n")


def print_rows(
    chosen: str,
    document: object,
    header: Sequence[str],
    records: Iterable[Sequence[Any]],
    columns: Sequence[Column],
    rows: Iterable[Sequence[Cell]],
    empty: str,
) -> None:
    """Print a list in the format `chosen`: `document` as JSON or YAML, `records` below `header` as CSV, else `rows`
    below `columns` as a table, or the sentence `empty` if there are none.
    """
    if chosen in {"json", "yaml"}:
        print_document(document, chosen)
    elif chosen == "csv":
        print_csv(header, records)
    else:
        (print_wide if chosen == "wide" else print_table)(columns, rows, empty)


def print_csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print comma-separated values with a header (RFC 4180). None becomes an empty value. Control characters in texts
    become escapes.
    """
    from csv import writer as make_writer

    writer = make_writer(sys.stdout, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([[make_visible(each) if isinstance(each, str) else each for each in row] for row in rows])


def _list_lines(value: Any, indent: str = "") -> Iterator[str]:
    """Yield the lines of YAML in block style for `value`: a list, a mapping or a single value. `indent` begins each
    line.
    """
    if isinstance(value, dict) and value:
        for key, each in value.items():
            if each and isinstance(each, (dict, list, tuple)):
                yield f"{indent}{_show_scalar(key)}:"
                yield from _list_lines(each, f"{indent}  ")
            else:
                yield f"{indent}{_show_scalar(key)}: {_show_scalar(each)}"
    elif isinstance(value, (list, tuple)) and value:
        for each in value:
            first, *rest = _list_lines(each, f"{indent}  ")
            yield f"{indent}- {first.lstrip(' ')}"
            yield from rest
    else:
        yield indent + _show_scalar(value)


def _show_scalar(value: Any) -> str:
    if isinstance(value, float):
        if not math.isfinite(value):
            return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
        # Readers of YAML 1.1 take a text for a number if it has a decimal point, also before an exponent.
        digits, exponent, power = repr(value).partition("e")
        return (digits if "." in digits else f"{digits}.0") + exponent + power
    if isinstance(value, str):
        is_plain = _PLAIN.fullmatch(value) and value.lower() not in _NOT_TEXT
        quoted = json.dumps(value, ensure_ascii=False)
        return value if is_plain else escape_json(quoted)
    # What remains is an empty list or mapping, an integer, a truth value or null.
    return json.dumps(value)


def show_progress(line: str) -> None:
    """Show `line` on the terminal in place of the line before, cut at the width of the terminal. If standard error is
    no terminal, do nothing.
    """
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{make_visible(line)[: shutil.get_terminal_size().columns - 1]}")
        sys.stderr.flush()
