"""Draw the results of simulations as a picture: the queue, the machines, the leased share of the machines, and the
waits of the jobs.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypedDict

from leasehold.errors import LeaseholdError
from leasehold.simulate.run import Run
from scheduler.simulation.metrics import Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Colours of the lines, which colour-blind people can distinguish too (Okabe and Ito)."""
DASHES: Final = ("-", "--", ":", "-.")
DAY: Final = 86400.0
HOUR: Final = 3600.0
SPANS: Final = (
    *((1, "≤ 1 s"), (10, "10 s"), (60, "1 min"), (600, "10 min")),
    *((HOUR, "1 h"), (10 * HOUR, "10 h"), (4 * DAY, "4 days"), (40 * DAY, "40 days")),
)
"""Marks of the axis of waiting times: the seconds and the label of each mark."""
POINTS: Final = 300
"""Largest number of points of one line: a panel of the picture can show no more."""
FEW_POINTS: Final = 100
"""Largest number of points of a line of means (slots and leases). Such lines rise and fall often. With more points, the
lines of several simulations would hide each other. The line of the queue has up to POINTS points.
"""
LEGEND_WIDTH: Final = 150
"""Width of the legend in characters."""
LONG_DAYS: Final = 2.0


class Style(TypedDict):
    """How matplotlib draws the lines of one simulation: colour, dashes, width and opacity."""

    color: str
    linestyle: str
    linewidth: float
    alpha: float


class PlotError(LeaseholdError):
    """Raised if the picture cannot be drawn. The message is the reason."""


def check_plotting(path: Path) -> None:
    """Raise PlotError if matplotlib is not installed or the folder of `path` is missing. The check is made before the
    first simulation.
    """
    if find_spec("matplotlib") is None:
        raise PlotError("--plot needs matplotlib: pip install 'leasehold[server,plot]'")
    if not path.parent.is_dir():
        raise PlotError(f"--plot: there is no folder {path.parent}")


def draw(runs: Sequence[Run], title: str, path: Path) -> None:
    """Draw all runs into one picture and write it to `path`; the suffix of the name, like .png, selects the format.
    Raises PlotError if the file cannot be written.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra, and slow to import

    figure = Figure(figsize=(12, 8.5), layout="constrained")
    panels = list(figure.subplots(2, 2).flat)
    longest = max((run.summary.makespan for run in runs), default=0.0)
    unit, name = (DAY, "days") if longest > LONG_DAYS * DAY else (HOUR, "hours")
    for number, run in enumerate(runs):
        dashes = DASHES[number // len(COLOURS) % len(DASHES)]
        style = Style(color=COLOURS[number % len(COLOURS)], linestyle=dashes, linewidth=1.2, alpha=0.8)
        _draw_run(panels, run, unit, style)
    _label(panels, name)
    if len(runs) > 1:
        handles, labels = panels[0].get_legend_handles_labels()
        columns = max(1, min(len(runs), LEGEND_WIDTH // (max(map(len, labels)) + 10)))
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    figure.suptitle(title, fontsize=14)
    try:
        figure.savefig(path, dpi=130)
    except (OSError, ValueError) as error:
        raise PlotError(f"--plot: the picture cannot be written to {path}: {error}") from None


def _draw_run(panels: Sequence["Axes"], run: Run, unit: float, style: Style) -> None:
    queue, slots, share, waits = panels
    picture = run.picture
    middles, parts = _cut(picture.waiting_jobs.peaks, picture.waiting_jobs.width / unit, POINTS)
    queue.plot(*(middles, [max(part) for part in parts]), label=run.label, **style)
    slots.plot(*_list_means(picture.machines, unit), **style)
    times, leased = _list_means(picture.leased, unit)
    _, present = _list_means(picture.present, unit)
    used = [part / whole if whole else nan for part, whole in zip(leased, present, strict=True)]
    share.plot(times, used, **style)
    count = len(picture.waits)
    waits.step(
        [max(1.0, each) for each in picture.waits], [(n + 1) / count for n in range(count)], where="post", **style
    )


def _list_means(curve: Curve, unit: float) -> tuple[list[float], list[float]]:
    """Cut `curve` into at most FEW_POINTS parts of equal duration, and return the middle of each part, in units of
    `unit` seconds, and the mean of each part.
    """
    middles, parts = _cut(curve.means, curve.width / unit, FEW_POINTS)
    return middles, [sum(part) / len(part) for part in parts]


def _cut(values: Sequence[float], width: float, most: int) -> tuple[list[float], list[Sequence[float]]]:
    together = max(1, -(-len(values) // most))
    parts = [values[begin : begin + together] for begin in range(0, len(values), together)]
    return [(number + 0.5) * together * width for number in range(len(parts))], parts


def _label(panels: Sequence["Axes"], unit: str) -> None:
    queue, slots, share, waits = panels
    queue.set(title="Queue", ylabel="waiting jobs (maximum)")
    slots.set(title="Slots", ylabel="machines")
    share.set(title="Utilisation", ylabel="leased share of the processors", ylim=(0, 1.02))
    for panel in (queue, slots, share):
        panel.set(xlabel=unit)
        panel.set_xlim(left=0)
        panel.set_ylim(bottom=0)
    waits.set(title="Waits", ylabel="share of jobs with at most this wait", xscale="log", ylim=(0, 1.02))
    longest = waits.get_xlim()[1]
    shown = [span for span in SPANS if span[0] <= longest] or SPANS[:1]
    waits.set_xticks([seconds for seconds, _ in shown], [name for _, name in shown])
    waits.minorticks_off()
    for panel in panels:
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
