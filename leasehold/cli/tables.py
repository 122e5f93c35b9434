"""Tables that fit a terminal: ids are never folded nor cut, less important columns give way.

Without a terminal there is no width: every column is shown in full.
"""

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from leasehold.common.visible import make_visible

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table

Cell = str | tuple[str, ...]
"""A text, or several ids, which stand below each other where one line has no room for them."""
_GAP: Final = 2
_SHORTEST: Final = 12
"""The width down to which a text is cut before its column is hidden."""
_WIDTH: Final = 80
"""Of a terminal that does not know its width."""
_STYLES: Final = {
    **dict.fromkeys(("leased", "ready", "ok"), "green"),
    **dict.fromkeys(("pending", "launching", "booting", "binding"), "yellow"),
    **dict.fromkeys(("revoking", "draining", "degraded"), "magenta"),
    **dict.fromkeys(("failed", "expired", "error", "down"), "red"),
    **dict.fromkeys(("released", "cancelled", "empty", "terminating"), "dim"),
}


@dataclass(frozen=True)
class Column:
    """A column. `fit`: its text stays `whole`, may be `cut` with an ellipsis, or may be wrapped between words.

    Where there is no room the column with the greatest `rank` is hidden first; one of rank 0 never is.
    """

    name: str
    fit: Literal["whole", "cut", "wrap"] = "whole"
    rank: int = 0
    least: int = _SHORTEST
    """Of a text that may be cut: others are hidden before it is shorter."""
    is_state: bool = False
    """Whether it is coloured by what it says."""


@dataclass(frozen=True)
class Grid:
    """A table that rich can print; `width` None: as wide as it is in full."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    width: int | None = None

    def __rich_console__(self, _console: "Console", options: "ConsoleOptions") -> "RenderResult":
        """Draw it in lines that may be longer than the terminal, where ids are."""
        widths, is_stacked = fit(self.columns, self.rows, self.width)
        width = sum(widths.values()) + _GAP * max(len(widths) - 1, 0)
        table = self._draw(widths, _stack if is_stacked else _join)
        yield from table.__rich_console__(_console, options.update(width=width, max_width=width))

    def _draw(self, widths: dict[int, int], show: Callable[[Cell], str]) -> "Table":
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        has_header = any(column.name for column in self.columns)
        table = Table(
            box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold",
            show_header=has_header,
        )  # fmt: skip
        for place, width in widths.items():
            column = self.columns[place]
            table.add_column(
                column.name,
                width=width,
                no_wrap=column.fit != "wrap",
                overflow="ellipsis" if column.fit == "cut" else "fold",
            )
        for row in self.rows:
            texts = [(self.columns[place], show(row[place])) for place in widths]
            table.add_row(*(Text(text, style=find_style(text) if column.is_state else "") for column, text in texts))
        return table


def fit(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int | None) -> tuple[dict[int, int], bool]:
    """The widths of the columns that are shown, by their place, and whether several ids stand below each other.

    First texts are cut or wrapped, then ids are stacked, then columns are hidden, by rank. A text is cut further before
    its column is hidden. What remains may still be wider than the terminal: ids stay whole.
    """
    shown = list(range(len(columns)))
    least = {place: column.least for place, column in enumerate(columns)}
    cells = [[row[place] for row in rows] for place in shown]
    if width is None:
        return {place: _measure(columns[place], cells[place], _join, 0)[0] for place in shown}, False
    while True:
        room = width - _GAP * (len(shown) - 1)
        for show in (_join, _stack):
            sizes = {place: _measure(columns[place], cells[place], show, least[place]) for place in shown}
            if sum(smallest for _, smallest in sizes.values()) <= room:
                return _shrink(sizes, room), show is _stack
        last = max(shown, key=lambda place: (columns[place].rank, place))
        if not columns[last].rank:
            return {place: _measure(columns[place], cells[place], _stack, least[place])[1] for place in shown}, True
        if columns[last].fit == "cut" and least[last] > _SHORTEST:
            least[last] = _SHORTEST
        else:
            shown.remove(last)


def _measure(column: Column, cells: Iterable[Cell], show: Callable[[Cell], str], least: int) -> tuple[int, int]:
    """The width in full, and the smallest one."""
    texts = [column.name, *map(show, cells)]
    full = max(_width(line) for text in texts for line in text.split("\n"))
    if column.fit == "cut":
        return full, min(full, max(least, _width(column.name)))
    if column.fit == "wrap":
        return full, max(_width(word) for text in texts for word in (text.split() or [""]))
    return full, full


def _shrink(sizes: dict[int, tuple[int, int]], room: int) -> dict[int, int]:
    """Take from the widest columns, and from none more than its least width allows."""
    widths = {place: full for place, (full, _) in sizes.items()}
    while sum(widths.values()) > room:
        widest = max((place for place in widths if widths[place] > sizes[place][1]), key=lambda place: widths[place])
        widths[widest] -= 1
    return widths


def _join(cell: Cell) -> str:
    return make_visible(cell if isinstance(cell, str) else " ".join(cell))


def _stack(cell: Cell) -> str:
    return make_visible(cell) if isinstance(cell, str) else "\n".join(map(make_visible, cell))


def _width(text: str) -> int:
    """In columns of a terminal, which some characters take two of."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def find_style(state: str) -> str:
    """The colour of a phase or a state; "" for others."""
    return _STYLES.get(state.partition(" ")[0], "")


def find_width() -> int | None:
    """How many columns the terminal on standard output has; None without one."""
    if not sys.stdout.isatty():
        return None
    named = os.environ.get("COLUMNS", "")
    if named.isdigit() and int(named):
        return int(named)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or _WIDTH
    except (OSError, ValueError):
        return _WIDTH
