"""Draw the results of simulations as a picture: the queue, the machines, the leased share of the machines, and the
waits of the jobs.
"""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict

from leasehold.errors import LeaseholdError

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


def draw(document: Mapping[str, Any], path: Path) -> None:
    """Draw all runs of a page's document (`describe_trace`) into one picture and write it to `path`; the suffix of the
    name, like .png, selects the format. Raises PlotError if the file cannot be written.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra, and slow to import

    figure = Figure(figsize=(12, 8.5), layout="constrained")
    panels = list(figure.subplots(2, 2).flat)
    runs = document["runs"]
    longest = max((run["end"] for run in runs), default=0.0)
    unit, name = (DAY, "days") if longest > LONG_DAYS * DAY else (HOUR, "hours")
    for number, run in enumerate(runs):
        dashes = DASHES[number // len(COLOURS) % len(DASHES)]
        style = Style(color=COLOURS[number % len(COLOURS)], linestyle=dashes, linewidth=1.2, alpha=0.8)
        *over_time, waits = panels
        curves = run["curves"]["waiting"], run["curves"]["machines"], run["utilisation"]
        for panel, curve, values in zip(over_time, curves, ("peaks", "means", "means"), strict=True):
            numbers = [nan if each is None else each for each in curve[values]]
            middles = [(number + 0.5) * curve["width"] / unit for number in range(len(numbers))]
            panel.plot(*(middles, numbers), label=run["label"], **style)
        points = run["waits"]["points"]
        waits.step([max(1.0, wait) for wait, _ in points], [share for _, share in points], where="post", **style)
    _label(panels, name)
    if len(runs) > 1:
        handles, labels = panels[0].get_legend_handles_labels()
        columns = max(1, min(len(runs), LEGEND_WIDTH // (max(map(len, labels)) + 10)))
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    figure.suptitle(f"{document['title']}\n{document['about']}", fontsize=14)
    try:
        figure.savefig(path, dpi=130)
    except (OSError, ValueError) as error:
        raise PlotError(f"--plot: the picture cannot be written to {path}: {error}") from None


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
