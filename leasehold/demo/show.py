"""The texts and pictures that the demo shows while it runs: jobs, slots and queues."""

from collections import Counter
from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from leasehold.client.models import Slot
from leasehold.demo.holders import Progress
from leasehold.demo.stretch import Stretch
from leasehold.demo.summary import Summary
from scheduler.operations.costs import CostSum

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
    return Group(jobs, _draw_slots(slots, progress), Text(f"queues: {lengths}", style="bright_black"))


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


def _draw_slots(slots: tuple[Slot, ...], progress: Progress) -> RenderableType:
    held = Counter(progress.slots[name] for name in progress.leased if name not in progress.released)
    table = Table("slot", "state", "type", "instance", "leases", box=None, header_style="bold")
    for slot in slots:
        colour = COLOURS.get(slot.state, "white")
        cells = (slot.instance_type or slot.offering or "", slot.instance_id or "", "■" * min(held[slot.id], 24))
        table.add_row(slot.id, Text(slot.state, style=colour), *cells)
    return table


def tabulate(summary: Summary) -> Table:
    """Return the summary of the demo as a table of names and values."""
    table = Table(show_header=False, box=None, padding=(0, 2))
    calls = ", ".join(f"{count} {action}" for action, count in summary.ec2_calls.items())
    types = ", ".join(f"{count} {name}" for name, count in summary.machines_by_type.items())
    rows = {
        "jobs served": f"{summary.served} of {summary.jobs}",
        "played in": f"{summary.seconds:.1f} s, {summary.speed:.0f} times as fast as the log",
        "wait for a lease": (
            f"p50 {summary.wait_p50:.2f} s, p95 {summary.wait_p95:.2f} s, longest {summary.wait_max:.2f} s"
        ),
        "machines launched": f"{summary.launches} ({types})" if types else f"{summary.launches}",
        "machines let go": f"{summary.let_go}, {summary.left} left",
        "costs": _describe_costs(summary.costs),
        "EC2 calls": calls,
        "holders, SQL and EC2": "agree" if not summary.differences else "; ".join(summary.differences),
    }
    if summary.errors:
        rows["errors of holders"] = "; ".join(summary.errors)
    for name, value in rows.items():
        table.add_row(name, escape(value))
    return table


def _describe_costs(costs: CostSum) -> str:
    """Return as text what the machines have cost in the real time of the demo, and the share of the time of machines
    for each kind of use.
    """
    uses = {kind: seconds for kind, seconds in costs.seconds_by_kind.items() if seconds}
    shares = ", ".join(f"{kind} {seconds / costs.seconds:.0%}" for kind, seconds in uses.items())
    return f"${costs.dollars:.4f} for {costs.seconds:.0f} s of machines" + (f" ({shares})" if shares else "")
