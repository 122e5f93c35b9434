"""`leasehold simulate`: play a scenario, or a workload trace on the fleet of a leasehold.toml, on a virtual clock."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from leasehold.cli.failures import BAD_INPUT, FAILED, INTERRUPTED, CommandError, one_line
from leasehold.cli.output import AsJson, print_json, print_thing
from leasehold.cli.root import app, example

if TYPE_CHECKING:
    from leasehold.simulate.run import Run
    from scheduler.simulation.cloud_documents import CloudDocument
    from scheduler.simulation.workload import Workload

TRACE_NAMES: Final = (".swf", ".swf.gz")
SCENARIO_NAMES: Final = (".json", ".toml")
MOST_SKIPPED: Final = 5
"""Skipped lines of a trace that are printed; of further ones only the number."""


@app.command(
    epilog=example(
        "leasehold simulate scenario.json --json",
        "leasehold simulate trace.swf.gz --config leasehold.toml --slots 128",
        "leasehold simulate trace.swf.gz --config leasehold.toml --compare queue=fifo,size --plot queues.png",
        "leasehold simulate trace.swf.gz --config leasehold.toml --compare queue=fifo,size profile=pack,spread",
    )
)
def simulate(  # noqa: PLR0913, PLR0917 - an option each
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A scenario (JSON or TOML), or a workload trace (.swf, .swf.gz).")
    ],
    more: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE,VALUE", help="Further keys to compare.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="The fleet of a trace; default: LEASEHOLD_CONFIG, else ./leasehold.toml.")
    ] = None,
    slots: Annotated[int | None, typer.Option(min=1, help="Slots of the pool, instead of its max_slots.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Play only the first jobs of the trace.")] = None,
    system: Annotated[str | None, typer.Option(help="The system of the jobs, if the fleet has several.")] = None,
    elastic_share: Annotated[
        float, typer.Option(min=0, max=1, help="Share of each job's processors that becomes an elastic component.")
    ] = 0.0,
    compare: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE,VALUE...", help="Play all combinations of these settings side by side."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw queue, slots and waits.")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip and count broken lines of a trace.")] = False,
    as_json: AsJson = False,
) -> None:
    """Play a scenario or a workload trace on a virtual clock.

    The rules are those of production. A scenario prints each decision in its order. A trace in the Standard Workload
    Format is played on the fleet of a leasehold.toml, whose [cloud] section sets the delays of machines. Each job
    becomes a reservation with one cpu for each of its processors. The result is a summary: waits, slowdown,
    utilisation, cost.
    """
    options = Options(
        file, config, slots, limit, system, elastic_share, [*(compare or ()), *(more or ())], plot, skip_bad
    )
    if more and not compare:
        raise CommandError(f"unexpected argument {more[0]} (only after --compare)", BAD_INPUT)
    if is_trace(file, config):
        _simulate_trace(options, as_json=as_json)
        return
    if options.only_for_traces:
        names = " or ".join(TRACE_NAMES)
        raise CommandError(f"{options.only_for_traces}: expected a trace ({names}), got {file}", BAD_INPUT)
    from scheduler.simulation.show import simulate_file

    status = simulate_file(file, json_lines=as_json, out=sys.stdout)
    raise typer.Exit(FAILED if status else 0)


def is_trace(file: Path, config: Path | None) -> bool:
    """Return whether the file is a workload trace: by its name, or since a fleet is given and its name is unknown."""
    name = file.name.lower()
    return name.endswith(TRACE_NAMES) or (config is not None and not name.endswith(SCENARIO_NAMES))


@dataclass(frozen=True)
class Options:
    """The options of the command that concern traces."""

    file: Path
    config: Path | None
    slots: int | None
    limit: int | None
    system: str | None
    elastic_share: float
    choices: list[str]
    plot: Path | None
    skip_bad: bool

    @property
    def only_for_traces(self) -> str:
        """The first given option that only traces have; "" for none."""
        given = {
            "--config": self.config,
            "--slots": self.slots,
            "--limit": self.limit,
            "--system": self.system,
            "--elastic-share": self.elastic_share,
            "--compare": self.choices,
            "--plot": self.plot,
            "--skip-bad": self.skip_bad,
        }
        return next((name for name, value in given.items() if value), "")


def _simulate_trace(options: Options, *, as_json: bool) -> None:
    from leasehold.simulate.choices import combine, read_choices
    from leasehold.simulate.plot import check_plotting, draw
    from leasehold.simulate.run import CutOffError, describe, play_all, prepare, read_jobs_for
    from scheduler.simulation.swf import TraceError

    if options.plot is not None:
        check_plotting(options.plot)
    document, cloud = _read_fleet(options.config)
    combinations = combine(document, read_choices(options.choices))
    fleets = prepare(combinations, cloud, slots=options.slots, system=options.system)
    try:
        workload = read_jobs_for(fleets, options.file, limit=options.limit, skip_bad=options.skip_bad)
        runs = play_all(workload, combinations, fleets, options.elastic_share)
    except TraceError as error:
        raise CommandError(one_line(str(error)), BAD_INPUT) from None
    except CutOffError as error:
        raise CommandError(str(error), INTERRUPTED) from None
    if as_json:
        print_json(describe(runs, workload, compared=bool(options.choices)))
    else:
        _print_runs(runs, workload)
    if options.plot is not None:
        draw(runs, f"{workload.path.name}: {len(workload.jobs):,} jobs", options.plot)


def _read_fleet(config: Path | None) -> "tuple[dict[str, Any], CloudDocument]":
    from workers.configuration import find_configuration, read_configuration

    if find_configuration(config) is None:
        raise CommandError("a trace is played on a fleet: name a leasehold.toml with --config", BAD_INPUT)
    found = read_configuration(config)
    return found.rules_document, found.cloud


def _print_runs(runs: "list[Run]", workload: "Workload") -> None:
    from leasehold.simulate.table import make_table

    for line in workload.skipped[:MOST_SKIPPED]:
        print_thing(f"skipped: {line}")
    if len(workload.skipped) > MOST_SKIPPED:
        print_thing(f"skipped: {len(workload.skipped) - MOST_SKIPPED:,} more")
    print_thing(make_table(runs))
