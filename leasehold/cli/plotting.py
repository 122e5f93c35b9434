"""Draw the balances of a quota account over time with characters. The line of a level consists of the level's digit."""

import shutil
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

_HEIGHT: Final = 20
_WIDTH: Final = 110
_TICKS: Final = 6
_DAY: Final = 86400
_MINUTES: Final = 600
_COLOURS: Final = ("green", "cyan", "blue", "magenta", "orange")


def draw_balances(samples: Sequence[dict[str, Any]], seconds: float, *, is_terminal: bool) -> str:
    """Return a drawing of an account's balances as text. `samples` have the keys `at` and `balance`, oldest first. A
    level whose balance was always 0 has no line; if all were, return a sentence.

    `seconds`: how far the samples look back. `is_terminal`: whether the drawing has colours and fits the terminal.
    Times are shown in the time zone of this machine.
    """
    levels = [level for level in range(5) if any(each["balance"][level] for each in samples)]
    if not levels:
        return "the balance was 0 at every level"
    import plotext

    plotext.clear_figure()
    plotext.theme("clear")
    plotext.limit_size(False, False)
    plotext.plotsize(min(_WIDTH, shutil.get_terminal_size().columns) if is_terminal else _WIDTH, _HEIGHT)
    times = [each["at"] for each in samples]
    for level in levels:
        plotext.plot(times, [each["balance"][level] for each in samples], marker=str(level), color=_COLOURS[level])
    first, span = times[0], times[-1] - times[0]
    marks = [first + span * number / (_TICKS - 1) for number in range(_TICKS)] if span else [first]
    # Times have seconds if only minutes are drawn, and the date if more than a day is drawn.
    pattern = ("%m-%d " if seconds > _DAY else "") + ("%H:%M:%S" if span < _MINUTES else "%H:%M")
    plotext.xticks(marks, [datetime.fromtimestamp(at).astimezone().strftime(pattern) for at in marks])
    plotext.title(f"time in {datetime.fromtimestamp(marks[-1]).astimezone():%Z}")
    drawn = plotext.build().rstrip("\n")
    legend = "balance by level: " + ", ".join(f"line of {level}s = level {level}" for level in levels)
    return f"{drawn if is_terminal else plotext.uncolorize(drawn)}\n{legend}".rstrip()
