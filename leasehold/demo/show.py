"""The figures of a demo as the holders measured them, compared with the database and with the emulator's log of calls;
and the pictures that the demo shows while it runs.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import quantiles
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from leasehold.client.models import Slot
from leasehold.demo.holders import Progress
from leasehold.demo.stretch import Stretch
from scheduler.operations.costs import CostSum, add_up
from scheduler.ports import EventFilter, Store

LAUNCHING = frozenset({"RunInstances", "CreateFleet"})


@dataclass(frozen=True)
class Summary:
    """The figures of one demo. `differences`: the figures in which holders, database and emulator differ; `errors`: all
    errors of holders, including those of jobs that were served later.
    """

    jobs: int
    served: int
    speed: float
    seconds: float
    wait_p50: float
    wait_p95: float
    wait_max: float
    launches: int
    machines_by_type: dict[str, int]
    ec2_calls: dict[str, int]
    let_go: int
    left: int
    costs: CostSum
    """What the machines have cost, as the ledger has it."""
    differences: tuple[str, ...]
    errors: tuple[str, ...]

    @property
    def is_good(self) -> bool:
        """Whether all jobs were served, no machine is left, and holders, database and emulator agree."""
        return self.served == self.jobs and self.left == 0 and not self.differences


def summarise(
    progress: Progress, stretch: Stretch, store: Store, read_emulator: Callable[[str], dict[str, Any]], seconds: float
) -> Summary:
    """Return the figures of a demo that took `seconds`. `read_emulator` returns a page of the emulator's
    control API.
    """
    calls = read_emulator("calls")["calls"]
    instances = read_emulator("state")["instances"]
    events = Counter(event.name for event in _read_events(store))
    launched = sorted(
        {name for call in calls if call["action"] in LAUNCHING and call["code"] is None for name in call["instances"]}
    )
    alive = [each for each in instances if each.get("state") != "terminated"]
    phases = store.count_phases()
    compared = {
        "jobs served (holders, SQL)": (len(progress.released), phases["released"]),
        "machines launched (SQL, EC2)": (events["slot_booting"], len(launched)),
        "machines let go (SQL, EC2)": (events["slot_terminating"], len(launched) - len(alive)),
    }
    waits = progress.waits
    return Summary(
        jobs=len(stretch.jobs),
        served=len(progress.released),
        speed=stretch.speed,
        seconds=seconds,
        wait_p50=_quantile(waits, 50),
        wait_p95=_quantile(waits, 95),
        wait_max=max(waits, default=0.0),
        launches=len(launched),
        machines_by_type=dict(sorted(Counter(str(each.get("type") or "unknown") for each in instances).items())),
        ec2_calls=dict(sorted(Counter(call["action"] for call in calls).items())),
        let_go=len(launched) - len(alive),
        left=len(alive),
        costs=add_up(store.read_costs()),
        differences=tuple(f"{name}: {one} and {other}" for name, (one, other) in compared.items() if one != other),
        errors=tuple(progress.errors),
    )


def _quantile(values: Sequence[float], percent: int) -> float:
    if len(values) < 2:  # noqa: PLR2004 (two points make a quantile)
        return max(values, default=0.0)
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def _read_events(store: Store) -> Iterable[Any]:
    after = 0
    while events := store.read_events(EventFilter(after=after)):
        yield from events
        after = events[-1].number


COLOURS = {
    "empty": "bright_black",
    "launching": "yellow",
    "booting": "yellow",
    "binding": "bright_yellow",
    "ready": "green",
    "draining": "magenta",
    "terminating": "red",
    "error": "bright_red",
    "stopped": "blue",
}


def draw(
    stretch: Stretch, progress: Progress, slots: tuple[Slot, ...], queues: Mapping[str, int], now: float
) -> RenderableType:
    """Return a picture of the present moment: the progress of the jobs, the slots, and the lengths of the queues.
    `now`: seconds since the first job.
    """
    waiting, running = _count(progress)
    done, total = len(progress.released), len(stretch.jobs)
    jobs = Table.grid(padding=(0, 2))
    jobs.add_row("jobs", ProgressBar(total, done, width=40), f"{done} of {total} done")
    jobs.add_row("", f"[yellow]{waiting} waiting[/]  [green]{running} running[/]", f"{now:.0f} s")
    lengths = "  ".join(f"{name} {length}" for name, length in queues.items())
    held = Counter(progress.slots[name] for name in progress.leased if name not in progress.released)
    table = Table("slot", "state", "type", "instance", "leases", box=None, header_style="bold")
    for slot in slots:
        colour = COLOURS.get(slot.state, "white")
        cells = (slot.instance_type or slot.offering or "", slot.instance_id or "", "■" * min(held[slot.id], 24))
        table.add_row(slot.id, Text(slot.state, style=colour), *cells)
    return Group(jobs, table, Text(f"queues: {lengths}", style="bright_black"))


def describe(progress: Progress, slots: tuple[Slot, ...], now: float) -> str:
    """Return the progress of the demo in one line, for output that is no terminal. `now`: seconds since the
    first job.
    """
    states = Counter(slot.state for slot in slots)
    machines = ", ".join(f"{count} {state}" for state, count in sorted(states.items()) if state != "empty")
    waiting, running = _count(progress)
    done = len(progress.released)
    return f"{now:5.1f} s  {waiting} waiting, {running} running, {done} done; slots: {machines or 'all empty'}"


def _count(progress: Progress) -> tuple[int, int]:
    return len(progress.submitted) - len(progress.leased), len(progress.leased) - len(progress.released)


def tabulate(summary: Summary) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2))
    calls = ", ".join(f"{count} {action}" for action, count in summary.ec2_calls.items())
    types = ", ".join(f"{count} {name}" for name, count in summary.machines_by_type.items())
    uses = {kind: seconds for kind, seconds in summary.costs.seconds_by_kind.items() if seconds}
    shares = ", ".join(f"{kind} {seconds / summary.costs.seconds:.0%}" for kind, seconds in uses.items())
    rows = {
        "jobs served": f"{summary.served} of {summary.jobs}",
        "played in": f"{summary.seconds:.1f} s, {summary.speed:.0f} times as fast as the log",
        "wait for a lease": (
            f"p50 {summary.wait_p50:.2f} s, p95 {summary.wait_p95:.2f} s, longest {summary.wait_max:.2f} s"
        ),
        "machines launched": f"{summary.launches} ({types})" if types else f"{summary.launches}",
        "machines let go": f"{summary.let_go}, {summary.left} left",
        "costs": (
            f"${summary.costs.dollars:.4f} for {summary.costs.seconds:.0f} s of machines"
            + (f" ({shares})" if shares else "")
        ),
        "EC2 calls": calls,
        "holders, SQL and EC2": "agree" if not summary.differences else "; ".join(summary.differences),
    }
    if summary.errors:
        rows["errors of holders"] = "; ".join(summary.errors)
    for name, value in rows.items():
        table.add_row(name, escape(value))
    return table
