"""The figures of simulations as a table: a row for each figure, a column for each simulation."""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.table import Table

from leasehold.simulate.run import Run
from leasehold.texts.values import show_seconds
from scheduler.simulation.metrics import Summary

Show = Callable[[Summary], str]


def _spread(name: str, show: Callable[[float], str]) -> list[tuple[str, Show]]:
    def cell(part: str) -> Show:
        return lambda summary: show(attrgetter(f"{name}.{part}")(summary))

    return [(f"{name} {part}", cell(part)) for part in ("mean", "p50", "p95", "p99")]


ROWS: Final[tuple[tuple[str, Show], ...]] = (
    ("jobs", lambda each: f"{each.jobs:,}"),
    ("finished", lambda each: f"{each.finished:,}"),
    ("skipped", lambda each: f"{each.skipped:,}"),
    ("makespan", lambda each: show_seconds(each.makespan)),
    *_spread("wait", show_seconds),
    *_spread("turnaround", show_seconds),
    *_spread("slowdown", lambda value: f"{value:.2f}"),
    ("utilisation", lambda each: f"{each.utilisation:.1%}"),
    ("instance hours", lambda each: f"{each.instance_hours:,.1f}"),
    ("cost", lambda each: f"{each.cost:,.2f}"),
    ("launches", lambda each: f"{each.launches:,}"),
    ("interruptions", lambda each: f"{each.interruptions:,}"),
    ("preemptions", lambda each: f"{each.preemptions:,}"),
    ("grants", lambda each: f"{each.grants:,}"),
    ("revocations", lambda each: f"{each.revocations:,}"),
    ("ticks", lambda each: f"{each.ticks:,}"),
    ("wall clock", lambda each: show_seconds(each.wall_seconds)),
)


def make_table(runs: Sequence[Run]) -> Table:
    """Return the figures of finished simulations as a table: a row for each figure, a column for each of `runs`."""
    is_compared = len(runs) > 1
    box = SIMPLE_HEAD if is_compared else None
    table = Table(box=box, header_style="bold", show_header=is_compared, pad_edge=False)
    table.add_column("")
    for run in runs:
        table.add_column(run.label.replace(" ", "\n"), justify="right", overflow="fold")
    for name, show in ROWS:
        table.add_row(name, *(show(run.summary) for run in runs))
    for key in sorted({(line.pool, line.offering, line.market) for run in runs for line in run.summary.bill}):
        table.add_row(_name(*key), *(_show_bill(run.summary, key) for run in runs))
    return table


def _name(pool: str, offering: str, market: str) -> str:
    """Return the name of a row of the bill, like `linux: m5.large (spot)`."""
    return f"{pool}: {offering or 'template'}" + ("" if offering.endswith(f"/{market}") else f" ({market})")


def _show_bill(summary: Summary, key: tuple[str, str, str]) -> str:
    found = [line for line in summary.bill if (line.pool, line.offering, line.market) == key]
    return f"{found[0].hours:,.1f} h, {found[0].dollars:,.2f}" if found else ""
