"""Balances over time, drawn with characters: a line a level, drawn in the level's own digit."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

_HEIGHT: Final = 20
_WIDTH: Final = 110
_TICKS: Final = 6
_DAY: Final = 86400
_MINUTES: Final = 600


def draw_balances(samples: Sequence[dict[str, Any]], seconds: float, *, is_terminal: bool) -> str:
    """The samples (`at`, `balance`; oldest first) as a drawing; levels at which there never was anything are left out.

    `seconds`: how far back was looked. Times are those of this machine's zone.
    """
    levels = [level for level in range(5) if any(each["balance"][level] for each in samples)]
    if not levels:
        return "the balance was 0 at every level"
    import plotext

    plotext.clear_figure()
    plotext.theme("clear")
    plotext.limit_size(False, False)
    plotext.plotsize(_find_width(is_terminal=is_terminal), _HEIGHT)
    times = [each["at"] for each in samples]
    for level in levels:
        line = [each["balance"][level] for each in samples]
        if is_terminal:
            plotext.plot(times, line, marker=str(level), color=_COLOURS[level])
        else:
            plotext.plot(times, line, marker=str(level))
    marks = _choose_marks(times)
    plotext.xticks(marks, [_show_clock(at, marks[-1] - marks[0], seconds) for at in marks])
    plotext.title(f"time in {datetime.fromtimestamp(marks[-1]).astimezone():%Z}")
    drawn = plotext.build().rstrip("\n")
    legend = "balance by level: " + ", ".join(f"line of {level}s = level {level}" for level in levels)
    return f"{drawn if is_terminal else plotext.uncolorize(drawn)}\n{legend}".rstrip()


_COLOURS: Final = ("green", "cyan", "blue", "magenta", "orange")


def _find_width(*, is_terminal: bool) -> int:
    import shutil

    return min(_WIDTH, shutil.get_terminal_size().columns) if is_terminal else _WIDTH


def _choose_marks(times: Sequence[float]) -> list[float]:
    first, last = times[0], times[-1]
    if first == last:
        return [first]
    return [first + (last - first) * number / (_TICKS - 1) for number in range(_TICKS)]


def _show_clock(at: float, drawn: float, seconds: float) -> str:
    """With seconds where all is of a few minutes, with the day where it may be another one."""
    told = "%H:%M:%S" if drawn < _MINUTES else "%H:%M"
    return datetime.fromtimestamp(at).astimezone().strftime(f"%m-%d {told}" if seconds > _DAY else told)
