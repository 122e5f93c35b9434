"""Print the results of commands: tables for people; JSON, YAML and CSV for programs. Turn an error that ends a command
into lines on standard error and an exit status. Parse the values of options.

Tables fit the terminal. Ids are never cut or wrapped; instead less important columns are hidden. Output that is no
terminal has no width: every column is shown in full.
"""

import contextlib
import json
import math
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TextIO

import typer

from leasehold.errors import BadCredentials, LeaseholdError, Refused
from leasehold.texts.values import find_style, show_seconds, show_time
from scheduler.protocol.visible import escape_json, make_visible

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table

    from leasehold.client.models import Answer

Cell = str | tuple[str, ...]
"""The content of one cell of a table: a text, or several ids. Ids that are too wide for one line are stacked."""
_GAP: Final = 2
_NUMBER_END: Final = re.compile(r"[0-9.,]+$")
_NUMBER_BEGIN: Final = re.compile(r"[.,]?[0-9]")
_SHORTEST: Final = 12
"""Smallest width to which texts in a column are cut. If the table is still too wide, the column is hidden."""
_WIDTH: Final = 80
"""Width in characters that is assumed if a terminal does not report its own."""


@dataclass(frozen=True)
class Column:
    """One column of a table. `fit`: how a text that is too wide is shown: in full (`whole`), cut with an ellipsis
    (`cut`), or wrapped between words (`wrap`).

    If the table is too wide, the column with the greatest `rank` is hidden first. A column of rank 0 is never hidden.
    """

    name: str
    fit: Literal["whole", "cut", "wrap"] = "whole"
    rank: int = 0
    least: int = _SHORTEST
    """Smallest width of this column while columns of greater `rank` are shown. After all of those are hidden, texts may
    be cut to _SHORTEST characters. Used only if `fit` is `cut`.
    """
    is_state: bool = False
    """Whether the cells are states or phases, which have a colour that depends on their text."""


@dataclass(frozen=True)
class Grid:
    """A table that the library rich can print, fitted to `width` characters (None: no limit)."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    width: int | None = None

    def __rich_console__(self, _console: "Console", options: "ConsoleOptions") -> "RenderResult":
        """Yield the lines of the table for rich. Lines with ids may be longer than the terminal, because ids are never
        cut.
        """
        widths, is_stacked = fit(self.columns, self.rows, self.width)
        width = sum(widths.values()) + _GAP * max(len(widths) - 1, 0)
        table = self._draw(widths, _stack if is_stacked else _join)
        yield from table.__rich_console__(_console, options.update(width=width, max_width=width))

    def _fit(self, index: int, text: str, width: int) -> str:
        is_cut = self.columns[index].fit == "cut" and text.isascii() and len(text) > width
        return _cut_before_number(text, width) if is_cut else text

    def _draw(self, widths: dict[int, int], show: Callable[[Cell], str]) -> "Table":
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        has_header = any(column.name for column in self.columns)
        table = Table(
            box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold",
            show_header=has_header,
        )  # fmt: skip
        for index, width in widths.items():
            column = self.columns[index]
            table.add_column(
                column.name,
                width=width,
                no_wrap=column.fit != "wrap",
                overflow="ellipsis" if column.fit == "cut" else "fold",
            )
        for row in self.rows:
            texts = [
                (self.columns[index], self._fit(index, show(row[index]), width)) for index, width in widths.items()
            ]
            table.add_row(*(Text(text, style=find_style(text) if column.is_state else "") for column, text in texts))
        return table


def _cut_before_number(text: str, width: int) -> str:
    """Return a text that is wider than `width` without its end, and with an ellipsis. A number is shown in full or not
    at all, since `cpus=64` must not look like `cpus=6`.
    """
    head, rest = text[: width - 1], text[width - 1 :]
    if _NUMBER_BEGIN.match(rest):
        head = _NUMBER_END.sub("", head)
    return f"{head}…"


def fit(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int | None) -> tuple[dict[int, int], bool]:
    """Return (index of each shown column -> its width, whether several ids in a cell are stacked, one on a line).

    If the table is wider than `width`, texts are first cut or wrapped, then ids are stacked, then columns are hidden by
    rank. The texts of a column are cut to the smallest width before the column is hidden. The table may stay wider than
    `width`, because ids are never cut.
    """
    shown = list(range(len(columns)))
    least = {index: column.least for index, column in enumerate(columns)}
    cells = [[row[index] for row in rows] for index in shown]
    if width is None:
        return {index: _measure(columns[index], cells[index], _join, 0)[0] for index in shown}, False
    while True:
        available = width - _GAP * (len(shown) - 1)
        for show in (_join, _stack):
            sizes = {index: _measure(columns[index], cells[index], show, least[index]) for index in shown}
            if sum(smallest for _, smallest in sizes.values()) <= available:
                widths = {index: full for index, (full, _) in sizes.items()}
                while sum(widths.values()) > available:
                    widest = max(
                        (index for index in widths if widths[index] > sizes[index][1]), key=lambda index: widths[index]
                    )
                    widths[widest] -= 1
                return widths, show is _stack
        last = max(shown, key=lambda index: (columns[index].rank, index))
        if not columns[last].rank:
            return {index: _measure(columns[index], cells[index], _stack, least[index])[1] for index in shown}, True
        if columns[last].fit == "cut" and least[last] > _SHORTEST:
            least[last] = _SHORTEST
        else:
            shown.remove(last)


def _measure(column: Column, cells: Iterable[Cell], show: Callable[[Cell], str], least: int) -> tuple[int, int]:
    """Return the width of a column if all its texts are shown in full, and the smallest width to which it may be
    narrowed. `show` returns the text of a cell. `least`: the smallest width of a column with `fit` = `cut`.
    """
    texts = [column.name, *map(show, cells)]
    full = max(_width(line) for text in texts for line in text.split("\n"))
    if column.fit == "cut":
        return full, min(full, max(least, _width(column.name)))
    if column.fit == "wrap":
        return full, max(_width(word) for text in texts for word in (text.split() or [""]))
    return full, full


def _join(cell: Cell) -> str:
    return make_visible(cell if isinstance(cell, str) else " ".join(cell))


def _stack(cell: Cell) -> str:
    return make_visible(cell) if isinstance(cell, str) else "\n".join(map(make_visible, cell))


def _width(text: str) -> int:
    """Return the number of columns of a terminal that `text` takes. Some characters take two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def find_width(stream: TextIO | None = None) -> int | None:
    """Return the number of columns of the terminal on `stream` (default: standard output); None if it is no
    terminal.
    """
    stream = stream or sys.stdout
    if not stream.isatty():
        return None
    named = os.environ.get("COLUMNS", "")
    if named.isdigit() and int(named):
        return int(named)
    try:
        return os.get_terminal_size(stream.fileno()).columns or _WIDTH
    except (OSError, ValueError):
        return _WIDTH


def wrap(text: str, width: int | None, indent: str = "") -> str:
    """Return `text` with long lines wrapped between words at `width` characters, so that no id is broken. `indent`
    begins the continued lines. With `width` None the text is unchanged.
    """
    if width is None:
        return text
    import textwrap

    wrapper = textwrap.TextWrapper(
        width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, replace_whitespace=False
    )
    return "\n".join(line if len(line) <= width else wrapper.fill(line) for line in text.split("\n"))


FAILED: Final = 1
BAD_INPUT: Final = 2
INTERRUPTED: Final = 130
NO_RULES: Final = "no rules were applied yet: `leasehold apply FILE`"
ERROR_PREFIX: Final = "leasehold: "
UsageError: Final[type[Exception]] = typer.BadParameter.__mro__[1]
"""The base class of the errors that the parser of options and arguments raises (click.UsageError). typer does not
export it.
"""


class CommandError(Exception):
    """Raised if a command fails for a known reason. The message is printed on standard error line by line, and `status`
    becomes the exit status.
    """

    def __init__(self, message: str, status: int = FAILED) -> None:
        self.status = status
        super().__init__(message)


def explain(error: Exception) -> tuple[list[str], int]:
    """Return the lines that are printed for a known error which ended a command, and the exit status."""
    if isinstance(error, UsageError):
        return [f"{error.format_message()} (see --help)"], BAD_INPUT  # type: ignore[attr-defined]
    if isinstance(error, CommandError):
        return str(error).splitlines(), error.status
    # Some errors of the client are an OSError too (TimeoutError, ConnectionError); they have a message of their own.
    if isinstance(error, OSError) and not isinstance(error, LeaseholdError) and error.filename:
        return [one_line(f"{error.filename} cannot be used: {error.strerror}")], FAILED
    faults = getattr(error, "faults", ())
    lines = [str(each) for each in faults] or [str(error), *getattr(error, "details", ())]
    is_bad_input = any(each.code != "unknown" for each in faults) or isinstance(error, BadCredentials)
    return [one_line(each) for each in lines], BAD_INPUT if is_bad_input else FAILED


_OURS: Final = (
    ("scheduler.model.validation", "InvalidInputError"),
    ("scheduler.ports", "StoreUnavailableError"),
    ("scheduler.ports", "ViewUnavailableError"),
    ("scheduler.ports", "StaleWriteError"),
    ("leasehold.stack.configuration", "StackError"),
)
"""Modules and names of the error classes that a command expects and that only some commands import. A module that was
not imported has raised no error, so it is not imported to recognise its errors.
"""


def list_known() -> tuple[type[Exception], ...]:
    """Return the classes of errors that are printed without a traceback: errors of input, of the environment and of
    other services.
    """
    loaded = [getattr(sys.modules[module], name) for module, name in _OURS if module in sys.modules]
    return (UsageError, CommandError, LeaseholdError, OSError, *loaded)


def one_line(text: str) -> str:
    """Return `text` with every line break or run of blanks replaced by one space."""
    return " ".join(text.split())


def print_error(line: str) -> None:
    """Print `line` on standard error after the name of the program, `leasehold`. On a terminal it is wrapped."""
    with contextlib.suppress(OSError):
        text = f"{ERROR_PREFIX}{make_visible(line, multiline=True)}"
        sys.stderr.write(f"{wrap(text, find_width(sys.stderr), indent='  ')}\n")


@contextlib.contextmanager
def explaining_refusals(about_state: Collection[str] = ()) -> Iterator[None]:
    """Within this context, turn a refused request (Refused) into CommandError, with one line for each fault.

    The exit status is FAILED if all faults are in fields that `about_state` names, else BAD_INPUT. The values of these
    fields were checked before the request was sent, so a fault in them comes from the cluster's present state.
    """
    try:
        yield
    except Refused as refused:
        is_about_state = {fault.path for fault in refused.errors} <= set(about_state)
        status = FAILED if is_about_state else BAD_INPUT
        raise CommandError("\n".join(map(str, refused.errors)) or str(refused), status) from None


def send_each(send: "Callable[[str], Answer]", names: Iterable[str], show: "Callable[[Answer], None]") -> None:
    """Send a request for each of `names` and show each answer. If a request is refused, the next ones are still sent,
    and at the end CommandError with all refusals is raised. Return without an error if no request was refused.
    """
    refused: list[str] = []
    for name in names:
        try:
            show(send(name))
        except Refused as error:
            refused.append(str(error))
    if refused:
        raise CommandError("\n".join(refused), FAILED)


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
