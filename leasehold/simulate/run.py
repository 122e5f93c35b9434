"""Run the plays one after the other, with bars on a terminal, and say in a line how far they came when cut off."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn

from leasehold.simulate.choices import Combination
from scheduler.model.validation import InvalidInputError
from scheduler.simulation.cloud_documents import CloudDocument, read_simulated_cloud
from scheduler.simulation.fleet import Fleet, make_fleet
from scheduler.simulation.metrics import Picture, Summary
from scheduler.simulation.trace import TracePlay
from scheduler.simulation.workload import Workload, read_workload

DAY = 86400.0


class Run(msgspec.Struct, frozen=True):
    """One play that came to its end: under which settings, and what it came to."""

    label: str
    settings: dict[str, str]
    summary: Summary
    picture: Picture


class CutOffError(Exception):
    """Ctrl-C; the message contains the progress."""


def prepare(
    combinations: Sequence[Combination], cloud: CloudDocument, *, slots: int | None, system: str | None
) -> list[Fleet]:
    """The fleet of each combination; all of them are checked before anything is played."""
    fleets = [make_fleet(each.document, cloud, slots=slots, system=system) for each in combinations]
    for fleet in fleets:
        read_simulated_cloud(cloud.model_dump(exclude_unset=True), fleet.rules)
    return fleets


def read_jobs_for(fleets: Sequence[Fleet], path: Path, *, limit: int | None, skip_bad: bool) -> Workload:
    """The jobs that every one of these fleets could serve."""
    most = min(fleet.most_processors for fleet in fleets)
    return read_workload(path, most, limit=limit, skip_bad=skip_bad)


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
                raise CutOffError(_say_how_far(workload, combination, play, len(runs), len(fleets))) from None
            except InvalidInputError as error:
                raise _say_which(error, combination) from None
            runs.append(Run(combination.label, dict(combination.settings), play.sum_up(), play.draw()))
    return runs


def _say_which(error: InvalidInputError, combination: Combination) -> InvalidInputError:
    """The same error, with the settings that were played."""
    name = combination.label and f"{combination.label}: "
    return InvalidInputError([msgspec.structs.replace(each, path=f"{name}{each.path}") for each in error.faults])


def _say_how_far(workload: Workload, combination: Combination, play: TracePlay, done: int, total: int) -> str:
    jobs = len(workload.jobs) + len(workload.skipped)
    which = f", run {done + 1} of {total} ({combination.label})" if total > 1 else ""
    return f"interrupted: {play.ended} of {jobs} jobs were over after {play.now / DAY:.1f} days of the trace{which}"


Begin = Callable[[str, TracePlay], Callable[[], None]]


@contextmanager
def _open_bars(jobs: int, plays: int) -> Iterator[Begin]:
    """A bar with the time left for each play, and above them one for all where there are several, on a terminal;
    elsewhere nothing.
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
            told = 0

            def tell() -> None:
                nonlocal told
                # A bar has some hundred positions: an update at every instant would take longer than the play.
                if (play.finished - told) * STEPS >= jobs or play.finished >= jobs:
                    bars.advance(whole, play.finished - told)
                    told = play.finished
                    bars.update(task, completed=told, day=f"day {play.now / DAY:.1f}")

            return tell

        yield begin


STEPS = 400
"""About how often a bar is updated."""


def describe(runs: Sequence[Run], workload: Workload, *, compared: bool) -> Mapping[str, object]:
    """One object for programs: the figures of the run, or of all that were compared, each with its settings."""
    if not compared:
        return msgspec.to_builtins(runs[0].summary)  # type: ignore[no-any-return]
    told = [{"settings": run.settings, **msgspec.to_builtins(run.summary)} for run in runs]
    return {"trace": str(workload.path), "runs": told}
