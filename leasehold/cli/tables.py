"""Tables that fit a terminal. Ids are never cut or wrapped; instead less important columns are hidden.

Output that is no terminal has no width: every column is shown in full.
"""

import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TextIO

from leasehold.texts.values import find_style
from scheduler.protocol.visible import make_visible

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table

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
