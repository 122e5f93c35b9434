"""How the client's results are displayed: as one line in a shell, as a table in a notebook."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, ClassVar, Final, TypeVar

import msgspec

from scheduler.protocol.visible import make_visible

MOST_SHOWN: Final = 160
"""The most characters of a displayed line or table cell."""
_TIMES: Final = ("_at", "_by", "_until", "since", "deadline", "last_seen", "as_of")
T_co = TypeVar("T_co", covariant=True)


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """The base class of the client's results. A shell shows a result as one line, `<ClassName fields>`; a notebook
    shows it as a table.
    """

    _cells_shown: ClassVar[str] = ""
    """Names of the fields and properties that the table shows, separated by spaces; "" = all fields."""

    def __repr__(self) -> str:
        return show_line(self, self._line())

    def _repr_html_(self) -> str:
        return draw_table([self.cells()])

    def _line(self) -> str:
        """Return the important fields of this result as one line of text."""
        return join_words(f"{name}={value}" for name, value in self.cells().items() if value not in _NOTHING)

    def cells(self) -> dict[str, object]:
        """Return the values that the table shows, by column name."""
        return {name: getattr(self, name) for name in self._cells_shown.split() or self.__struct_fields__}


_NOTHING: Final[tuple[Any, ...]] = (None, (), {}, "")


class Table(tuple[T_co, ...]):
    """A tuple of results. A notebook shows it as a table with one row for each result."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return draw_table([each.cells() for each in self if isinstance(each, Shown)])


def show_line(of: object, text: str) -> str:
    """Return `<ClassName text>`, where ClassName is the name of the class of the object `of`. Line breaks and control
    characters in the text are escaped.
    """
    return f"<{type(of).__name__} {shorten(text)}>"


def join_words(words: Iterable[object]) -> str:
    """Return these values as texts, joined by spaces. None and empty values are omitted."""
    return " ".join(str(word) for word in words if word not in _NOTHING)


def shorten(text: str) -> str:
    """Return the text on one line, cut after MOST_SHOWN characters."""
    line = " ".join(make_visible(" ".join(text.split())).split())
    return line if len(line) <= MOST_SHOWN else f"{line[: MOST_SHOWN - 1]}…"


def draw_table(rows: Sequence[Mapping[str, object]]) -> str:
    """Return the rows as an HTML table. All texts are escaped, and columns without any value are omitted."""
    names = [name for name in (rows[0] if rows else ()) if any(row[name] not in _NOTHING for row in rows)]
    if not names:
        return "<p>none</p>"
    lines = [_draw_row("th", names)]
    lines += [_draw_row("td", [_show(name, row[name]) for name in names]) for row in rows]
    return "<table>" + "".join(lines) + "</table>"


def _draw_row(tag: str, cells: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(shorten(cell))}</{tag}>" for cell in cells) + "</tr>"


def _show(name: str, value: object) -> str:
    match value:
        case None:
            return ""
        case bool() | str():
            return str(value)
        case float() | int() if name.endswith(_TIMES):
            return _show_time(value)
        case float() | int():
            return f"{value:g}" if isinstance(value, float) else str(value)
        case Mapping():
            return ", ".join(f"{key}={_show('', each)}" for key, each in value.items())
        case list() | tuple():
            return ", ".join(_show("", each) for each in value)
    return str(value)


def _show_time(seconds: float) -> str:
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%SZ}"
    except (OverflowError, ValueError, OSError):
        return f"{seconds:g}"
