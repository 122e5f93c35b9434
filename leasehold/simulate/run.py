"""Run the plays one after the other, with progress bars on a terminal."""

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
from scheduler.simulation.trace import TracePlay
from scheduler.simulation.workload import Workload

DAY = 86400.0


class Run(msgspec.Struct, frozen=True):
    """A finished simulation: its settings and its results."""

    label: str
    settings: dict[str, str]
    summary: Summary
    picture: Picture


class CutOffError(Exception):
    """Ctrl-C ended a play. The message contains the progress."""


def prepare(
    combinations: Sequence[Combination], cloud: CloudDocument, *, slots: int | None, system: str | None
) -> list[Fleet]:
    """Return the fleet of each combination. Raises InvalidInputError, before anything is played."""
    fleets = [make_fleet(each.document, cloud, slots=slots, system=system) for each in combinations]
    for fleet in fleets:
        read_simulated_cloud(cloud.model_dump(exclude_unset=True), fleet.rules)
    return fleets


def play_all(
    workload: Workload, combinations: Sequence[Combination], fleets: Sequence[Fleet], elastic_share: float
) -> list[Run]:
    """Play the workload on each fleet. Raises CutOffError on Ctrl-C, InvalidInputError for a play that never ends."""
    runs: list[Run] = []
    with _open_bars(len(workload.jobs), len(fleets)) as begin:
        for combination, fleet in zip(combinations, fleets, strict=True):
            play = TracePlay(workload, fleet, elastic_share)
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
            runs.append(Run(combination.label, dict(combination.settings), play.sum_up(), play.draw()))
    return runs


Begin = Callable[[str, TracePlay], Callable[[], None]]


@contextmanager
def _open_bars(jobs: int, plays: int) -> Iterator[Begin]:
    """Yield a function that adds the bar of a play and returns the function that updates the bar.

    Several plays have a bar for all of them too. Output that is no terminal has no bars.
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
                # A bar has some hundred positions: an update at every instant would take longer than the play.
                if (play.finished - shown) * STEPS >= jobs or play.finished >= jobs:
                    bars.advance(whole, play.finished - shown)
                    shown = play.finished
                    bars.update(task, completed=shown, day=f"day {play.now / DAY:.1f}")

            return update

        yield begin


STEPS = 400
"""How often, approximately, the progress bar of a whole play is updated."""


def describe(runs: Sequence[Run], workload: Workload, *, compared: bool) -> Mapping[str, object]:
    """Return the figures of the run for `--json`, or those of all compared runs, each with its settings."""
    if not compared:
        return msgspec.to_builtins(runs[0].summary)  # type: ignore[no-any-return]
    found = [{"settings": run.settings, **msgspec.to_builtins(run.summary)} for run in runs]
    return {"trace": str(workload.path), "runs": found}
