"""Run the simulations of `leasehold simulate` one after the other, with progress bars on a terminal."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn

from leasehold.simulate.choices import Combination
from scheduler.model.validation import InvalidInputError
from scheduler.simulation.cloud_documents import CloudDocument, read_simulated_cloud
from scheduler.simulation.fleet import Fleet, make_fleet
from scheduler.simulation.metrics import Picture, Summary
from scheduler.simulation.timeline import Timeline
from scheduler.simulation.trace import TracePlay
from scheduler.simulation.workload import Workload

DAY = 86400.0


class Run(msgspec.Struct, frozen=True):
    """One finished simulation: its compared settings (`label` has them as text), its figures (`summary`) and its curves
    (`picture`). `timeline` is None unless it was recorded.
    """

    label: str
    settings: dict[str, str]
    summary: Summary
    picture: Picture
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
) -> list[Run]:
    """Simulate the workload on each fleet, and return a Run for each. `elastic_share`: share of each job's processors
    that becomes an elastic component. `records`: whether each run has its timeline.

    Raises CutOffError on Ctrl-C, InvalidInputError for a simulation that would never end.
    """
    runs: list[Run] = []
    with _open_bars(len(workload.jobs), len(fleets)) as begin:
        for combination, fleet in zip(combinations, fleets, strict=True):
            play = TracePlay(workload, fleet, elastic_share, records=records)
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
            runs.append(Run(combination.label, settings, play.sum_up(), play.draw(), timeline))
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
