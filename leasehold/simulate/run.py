"""Run the simulations of `leasehold simulate`, one for each combination of settings, with progress bars on a terminal,
and make the table of their figures.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from operator import attrgetter
from typing import Any, Final

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from leasehold.texts.values import show_seconds
from scheduler.model.input_texts import parse_toml
from scheduler.model.rules import SchedulerKeys, merge_rules, read_rules
from scheduler.model.validation import InvalidInputError, fault, suggest
from scheduler.simulation.cloud_documents import CloudDocument, read_simulated_cloud
from scheduler.simulation.fleet import Fleet, make_fleet
from scheduler.simulation.metrics import Processors, Summary
from scheduler.simulation.timeline import Timeline
from scheduler.simulation.trace import TracePlay
from scheduler.simulation.workload import RequestedTimes, Workload

MOST_COMBINATIONS: Final = 100


@dataclass(frozen=True)
class Combination:
    """One combination of settings to simulate: a value for each compared key (`settings`), and the rules with these
    values (`document`).
    """

    settings: Mapping[str, str]
    document: dict[str, Any]

    @property
    def label(self) -> str:
        """The settings as a text, like "queue=size profile=pack"; "" if nothing is compared. A key that is a path, like
        `pools.linux.max_slots`, is shown as its last part if no other key ends in this part.
        """
        last = [name.rpartition(".")[2] for name in self.settings]
        shown = last if len(set(last)) == len(last) else list(self.settings)
        return " ".join(f"{name}={value}" for name, value in zip(shown, self.settings.values(), strict=True))


def read_choices(words: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the values of each key from texts like `queue=fifo,size`. Raises InvalidInputError for a text of another
    form, an unknown key, a key without effect in traces, and a key that is given twice.
    """
    found: dict[str, tuple[str, ...]] = {}
    for word in words:
        name, equals, rest = word.partition("=")
        values = tuple(dict.fromkeys(value for value in rest.split(",") if value))
        if not equals or not values:
            raise fault("--compare", "KEY=VALUE,VALUE", word)
        if "." not in name and name not in SchedulerKeys.model_fields:
            near = suggest(name, SchedulerKeys.model_fields)
            raise fault("--compare", f"a key of [scheduler]{near}, or a path like pools.NAME.KEY", name)
        if name.rpartition(".")[2] == "share_cores":
            raise fault("--compare", "no share_cores, which is off in traces", word)
        if name in found:
            raise fault("--compare", "each key once", name)
        found[name] = values
    return found


def combine(document: Mapping[str, Any], choices: Mapping[str, Sequence[str]]) -> list[Combination]:
    """Return every combination of the choices; the last key changes fastest. Raises InvalidInputError for more than
    MOST_COMBINATIONS combinations and for a value that the rules refuse.
    """
    combinations = [dict(zip(choices, values, strict=True)) for values in product(*choices.values())]
    if len(combinations) > MOST_COMBINATIONS:
        raise fault("--compare", f"at most {MOST_COMBINATIONS} combinations", len(combinations))
    return [Combination(each, _apply(document, each)) for each in combinations]


def _apply(document: Mapping[str, Any], settings: Mapping[str, str]) -> dict[str, Any]:
    made = dict(document)
    for name, text in settings.items():
        made = merge_rules(made, _lay_over(made, name, _parse(text)))
        try:
            read_rules(made, "")
        except InvalidInputError as error:
            raise fault(f"--compare {name}", error.faults[0].expected, text) from None
    return made


def _lay_over(document: Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    """Return the part of a rules document that sets the key `name` to `value`, to be merged into `document`. `name` is
    a path like `pools.NAME.KEY`, or a key of [scheduler]. A key of [scheduler] is also set for each system in
    `document` that has its own value of the key.
    """
    if "." in name:
        change: Any = value
        for part in reversed(name.split(".")):
            change = {part: change}
        return dict(change)
    own = document.get("scheduler", {}).get("system", {})
    systems = {system: {name: value} for system, keys in own.items() if name in keys}
    return {"scheduler": {name: value, **({"system": systems} if systems else {})}}


def _parse(text: str) -> Any:
    """Return the value of `text` as TOML, like a number or a boolean; if `text` is no TOML value, return it
    unchanged.
    """
    try:
        return parse_toml(f"value = {text}")["value"]
    except ValueError:
        return text


DAY = 86400.0


class Run(msgspec.Struct, frozen=True):
    """One finished simulation: its compared settings (`label` has them as text), its figures (`summary`) and its
    processors. `timeline` is None unless it was recorded.
    """

    label: str
    settings: dict[str, str]
    summary: Summary
    processors: Processors
    timeline: Timeline | None = None


class CutOffError(Exception):
    """Raised if Ctrl-C ended a simulation. The message contains the progress of the simulation."""


def prepare(
    combinations: Sequence[Combination], cloud: CloudDocument, *, slots: int | None, system: str | None
) -> list[Fleet]:
    """Return the simulated fleet of each combination. Raises InvalidInputError if the rules or the simulated cloud are
    wrong; no simulation has begun then.
    """
    fleets = [make_fleet(each.document, cloud, slots=slots, system=system) for each in combinations]
    for fleet in fleets:
        read_simulated_cloud(cloud.model_dump(exclude_unset=True), fleet.rules)
    return fleets


def play_all(
    workload: Workload,
    combinations: Sequence[Combination],
    fleets: Sequence[Fleet],
    elastic_share: float,
    *,
    records: bool = False,
    requested_times: RequestedTimes | None = None,
) -> list[Run]:
    """Simulate the workload on each fleet, and return a Run for each. `elastic_share`: share of each job's processors
    that becomes an elastic component. `records`: whether each run has its timeline. `requested_times`: what the
    requested times of the jobs become (None: nothing).

    Raises CutOffError on Ctrl-C, InvalidInputError for a simulation that would never end.
    """
    runs: list[Run] = []
    with _open_bars(len(workload.jobs), len(fleets)) as begin:
        for combination, fleet in zip(combinations, fleets, strict=True):
            play = TracePlay(workload, fleet, elastic_share, records=records, requested_times=requested_times)
            try:
                play.play(begin(combination.label or workload.path.name, play))
            except KeyboardInterrupt:
                jobs = len(workload.jobs) + len(workload.skipped)
                which = f", run {len(runs) + 1} of {len(fleets)} ({combination.label})" if len(fleets) > 1 else ""
                done = f"{play.ended} of {jobs} jobs were over after {play.now / DAY:.1f} days of the trace"
                raise CutOffError(f"interrupted: {done}{which}") from None
            except InvalidInputError as error:
                name = combination.label and f"{combination.label}: "
                faults = [msgspec.structs.replace(each, path=f"{name}{each.path}") for each in error.faults]
                raise InvalidInputError(faults) from None
            settings, timeline = dict(combination.settings), play.finish_timeline()
            runs.append(Run(combination.label, settings, play.sum_up(), play.count_processors(), timeline))
    return runs


Begin = Callable[[str, TracePlay], Callable[[], None]]


@contextmanager
def _open_bars(jobs: int, plays: int) -> Iterator[Begin]:
    """Yield a function that adds the progress bar of one simulation and returns a second function, which updates this
    bar. `jobs`: number of jobs in each simulation; `plays`: number of simulations.

    If there are several simulations, one more bar shows the progress of all. Without a terminal no bar is shown.
    """
    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[day]}"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, refresh_per_second=5) as bars:
        whole = bars.add_task(f"all {plays}", total=jobs * plays, day="", visible=plays > 1)

        def begin(label: str, play: TracePlay) -> Callable[[], None]:
            task = bars.add_task(label, total=jobs, day="")
            shown = 0

            def update() -> None:
                nonlocal shown
                # A bar has a few hundred positions. Updating it at every instant would take longer than the simulation.
                if (play.finished - shown) * STEPS >= jobs or play.finished >= jobs:
                    bars.advance(whole, play.finished - shown)
                    shown = play.finished
                    bars.update(task, completed=shown, day=f"day {play.now / DAY:.1f}")

            return update

        yield begin


STEPS = 400
"""Approximate number of updates of a progress bar during one simulation."""


def describe(runs: Sequence[Run], workload: Workload, *, compared: bool) -> Mapping[str, object]:
    """Return the document for `--json`: the figures of the only run, or with `compared` those of all runs, each with
    its settings.
    """
    if not compared:
        return msgspec.to_builtins(runs[0].summary)  # type: ignore[no-any-return]
    found = [{"settings": run.settings, **msgspec.to_builtins(run.summary)} for run in runs]
    return {"trace": str(workload.path), "runs": found}


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


def list_widths(summaries: Sequence[Summary]) -> list[tuple[str, Callable[[Summary], float | None]]]:
    """Return (name, function that returns seconds; None: no such job) for the p99 of the waits of each width of jobs.
    The result is empty if all jobs have one width.
    """

    def find(least: int) -> Callable[[Summary], float | None]:
        return lambda each: next((one.p99 for one in each.waits_by_width if one.least == least), None)

    widths = sorted({(one.least, one.most) for each in summaries for one in each.waits_by_width})
    names = {least: f"{least}" if least == most else f"{least}-{most}" for least, most in widths}
    return [(f"wait p99, {name} wide", find(least)) for least, name in names.items()] if len(names) > 1 else []


def make_table(runs: Sequence[Run]) -> Table:
    """Return the figures of finished simulations as a table: a row for each figure, a column for each of `runs`."""
    is_compared = len(runs) > 1
    table = Table(
        box=SIMPLE_HEAD if is_compared else None, header_style="bold", show_header=is_compared, pad_edge=False
    )
    table.add_column("")
    for run in runs:
        table.add_column(run.label.replace(" ", "\n"), justify="right", overflow="fold")
    for name, show in ROWS:
        table.add_row(name, *(show(run.summary) for run in runs))
    for name, find in list_widths([run.summary for run in runs]):
        found = [find(run.summary) for run in runs]
        table.add_row(name, *("" if each is None else show_seconds(each) for each in found))
    if any(run.summary.at_limit for run in runs):
        table.add_row("at limit", *(f"{run.summary.at_limit:,}" for run in runs))
    for key in sorted({(line.pool, line.offering, line.market) for run in runs for line in run.summary.bill}):
        table.add_row(_name(*key), *(_show_bill(run.summary, key) for run in runs))
    return table


def _name(pool: str, offering: str, market: str) -> str:
    """Return the name of a row of the bill, like `linux: m5.large (spot)`."""
    return f"{pool}: {offering or 'template'}" + ("" if offering.endswith(f"/{market}") else f" ({market})")


def _show_bill(summary: Summary, key: tuple[str, str, str]) -> str:
    found = [line for line in summary.bill if (line.pool, line.offering, line.market) == key]
    return f"{found[0].hours:,.1f} h, {found[0].dollars:,.2f}" if found else ""
