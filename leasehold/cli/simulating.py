"""The command `leasehold simulate`, which plays a scenario or a log of real jobs on a virtual clock."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand

from leasehold.cli.output import BAD_INPUT, INTERRUPTED, AsJson, CommandError, choose, one_line, print_json, print_thing
from leasehold.cli.root import app, example

if TYPE_CHECKING:
    from leasehold.simulate.run import Run
    from scheduler.simulation.workload import Workload

TRACE_NAMES: Final = (".swf", ".swf.gz")
REQUESTED_TIMES: Final = "--requested-times"
WAYS: Final = ("expected", "limit")
"""What the requested time of a job becomes: the values of `--requested-times`."""
MOST_SKIPPED: Final = 5
"""Most skipped lines of a workload trace that are printed. Of further skipped lines only the number is printed."""


class TraceCommand(TyperCommand):
    """A command with the option `--requested-times[=WAY]`. Without a way it is the first one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Add the first way to each `--requested-times` that has none, then parse `args`."""
        completed = []
        for arg, following in zip(args, [*args, ""][1:], strict=True):
            is_alone = arg == REQUESTED_TIMES and following not in WAYS
            completed.append(f"{arg}={WAYS[0]}" if is_alone else arg)
        return super().parse_args(ctx, completed)


@app.command(
    cls=TraceCommand,
    epilog=example(
        "leasehold simulate scenario.json --json",
        "leasehold simulate scenario.json --html report.html",
        "leasehold simulate log.swf.gz --config leasehold.toml --slots 128",
        "leasehold simulate log.swf.gz --compare queue=fifo,size --plot queues.png",
        "leasehold simulate log.swf.gz --compare queue=fifo,size profile=pack,spread",
        "leasehold simulate log.swf.gz --compare queue=fifo,size --html report.html",
        "leasehold simulate log.swf.gz --requested-times=limit",
    ),
)
def simulate(  # noqa: PLR0913, PLR0917 - an option each
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A scenario (JSON or TOML), or a workload trace (.swf, .swf.gz).")
    ],
    more: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE,VALUE", help="Further settings KEY=VALUE,VALUE to compare, as in --compare."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="Configuration file with the fleet on which a trace is played; default: the environment variable"
            " LEASEHOLD_CONFIG, else ./leasehold.toml."
        ),
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(min=1, help="Number of slots of the pool that serves the trace; default: its max_slots."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Number of jobs to play, from the first one; default: all.")
    ] = None,
    system: Annotated[
        str | None, typer.Option(help="System that the jobs request; required if the fleet has several systems.")
    ] = None,
    elastic_share: Annotated[
        float, typer.Option(min=0, max=1, help="Share of each job's processors that becomes an elastic component.")
    ] = 0.0,
    requested_times: Annotated[
        str | None,
        typer.Option(
            metavar="[expected|limit]",
            help="Make the requested time of each job its expected_runtime; =limit: its max_runtime, at which it ends.",
        ),
    ] = None,
    compare: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE,VALUE...",
            help="Play all combinations of these values of keys of [scheduler], or of paths like pools.NAME.KEY.",
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw queue, slots and waits into this file.")
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.html", help="Write a page with drawings and tables of the simulation into this file."
        ),
    ] = None,
    skip_bad: Annotated[
        bool,
        typer.Option(
            "--skip-bad", help="Skip broken lines of a trace and show their number; without it they are an error."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Play a scenario or a workload trace on a virtual clock.

    The rules are those of production. A scenario prints each decision in its order. A trace in the Standard Workload
    Format is played on the fleet of a leasehold.toml, whose [cloud] section sets the delays of machines. Each job
    becomes a reservation with one cpu for each of its processors. The result is a summary: waits, slowdown,
    utilisation, cost. --html also writes a page that works without a network.
    """
    if more and not compare:
        raise CommandError(f"expected further arguments only after --compare, got {more[0]}", BAD_INPUT)
    if html is not None:
        from leasehold.simulate.report import check_report

        check_report(html)
    name, choices = file.name.lower(), [*(compare or ()), *(more or ())]
    if name.endswith(TRACE_NAMES) or (config is not None and not name.endswith((".json", ".toml"))):
        runs, workload = _play_trace(
            file, config, choices, plot, slots=slots, limit=limit, system=system, share=elastic_share,
            requested_times=requested_times, skip_bad=skip_bad, records=html is not None or plot is not None,
        )  # fmt: skip
        _report(runs, workload, compared=bool(choices), as_json=as_json)
        if html is None and plot is None:
            return
        from leasehold.simulate.plot import draw
        from leasehold.simulate.report import describe_trace, write_report

        document = describe_trace(runs, workload, compared=bool(choices))
        if html is not None:
            write_report(html, document)
        if plot is not None:
            draw(document, plot)
        return
    only_for_traces = {
        "--config": config,
        "--slots": slots,
        "--limit": limit,
        "--system": system,
        "--elastic-share": elastic_share,
        REQUESTED_TIMES: requested_times,
        "--compare": choices,
        "--plot": plot,
        "--skip-bad": skip_bad,
    }
    for option, value in only_for_traces.items():
        if value:
            raise CommandError(f"{option}: expected a trace ({' or '.join(TRACE_NAMES)}), got {file}", BAD_INPUT)
    from scheduler.simulation.runner import run_file

    runner = run_file(file, json_lines=as_json, out=sys.stdout, records=html is not None)
    if html is not None:
        from leasehold.simulate.report import describe_scenario, write_report

        write_report(html, describe_scenario(file.name, runner))


def _play_trace(  # noqa: PLR0913 - an option each
    file: Path,
    config: Path | None,
    choices: list[str],
    plot: Path | None,
    *,
    slots: int | None,
    limit: int | None,
    system: str | None,
    share: float,
    requested_times: Any,
    skip_bad: bool,
    records: bool,
) -> "tuple[list[Run], Workload]":
    """Simulate a workload trace once for each combination of the values in `choices`. Return the runs and the workload.
    All arguments are checked before the first run. `records`: whether each run records its timeline. The other
    arguments are the command's options.
    """
    from leasehold.simulate.plot import check_plotting
    from leasehold.simulate.run import CutOffError, combine, play_all, prepare, read_choices
    from scheduler.simulation.workload import TraceError, read_workload
    from workers.configuration import find_configuration, read_configuration

    if requested_times is not None:
        choose(REQUESTED_TIMES, requested_times, WAYS)
    if plot is not None:
        check_plotting(plot)
    if find_configuration(config) is None:
        raise CommandError("a trace is played on a fleet: name a leasehold.toml with --config", BAD_INPUT)
    found = read_configuration(config)
    compared = read_choices(choices)
    replaced = [key for key in compared if key.startswith("pools.") and key.endswith(".max_slots")]
    if slots is not None and replaced:
        raise CommandError(f"--slots: expected no comparison of {replaced[0]}, which it replaces", BAD_INPUT)
    combinations = combine(found.rules_document, compared)
    fleets = prepare(combinations, found.cloud, slots=slots, system=system)
    try:
        # Only jobs that every fleet can serve are played, so that the results can be compared.
        most = min(fleet.most_processors for fleet in fleets)
        workload = read_workload(file, most, limit=limit, skip_bad=skip_bad)
        runs = play_all(workload, combinations, fleets, share, records=records, requested_times=requested_times)
        return runs, workload
    except TraceError as error:
        raise CommandError(one_line(str(error)), BAD_INPUT) from None
    except CutOffError as error:
        raise CommandError(str(error), INTERRUPTED) from None


def _report(runs: "list[Run]", workload: "Workload", *, compared: bool, as_json: bool) -> None:
    from leasehold.simulate.run import describe, make_table

    if as_json:
        print_json(describe(runs, workload, compared=compared))
        return
    more = len(workload.skipped) - MOST_SKIPPED
    lines = [*workload.skipped[:MOST_SKIPPED], *([f"{more:,} more"] if more > 0 else ())]
    print_thing(*(f"skipped: {line}" for line in lines), make_table(runs))
