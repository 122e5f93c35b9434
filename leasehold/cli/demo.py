"""`leasehold demo`: play a part of a real workload log on a whole stack, in under a minute."""

from pathlib import Path
from typing import Annotated

import typer

from leasehold.cli.failures import BAD_INPUT, INTERRUPTED, CommandError, one_line
from leasehold.cli.root import app, example


@app.command(
    epilog=example(
        "leasehold demo",
        "leasehold demo --trace NASA-iPSC-1993-3.1-cln.swf.gz --jobs 300",
        "leasehold demo --speed 500 --json",
    )
)
def demo(
    trace: Annotated[
        Path | None, typer.Option(help="A log in the Standard Workload Format, plain or gzipped.", metavar="FILE")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, max=5000, help="Number of jobs of the log to play.")] = 150,
    speed: Annotated[
        float | None,
        typer.Option(
            min=0.001, help="Factor by which the log is played faster; default: so that the jobs fit into 20 s."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object.")] = False,
    stay: Annotated[bool, typer.Option("--stay", help="Keep the stack with its console until Ctrl-C.")] = False,
) -> None:
    """Serve a workload log with a whole stack, then stop it.

    Each job of the log becomes a reservation with one lease. The reservation is submitted, held and released at the
    times of the job, which the speed compresses. Machines are launched on the EC2 emulator. The console shows it live:
    the command prints the address.
    """
    from leasehold.demo.run import DemoError, make_console, report, run_demo
    from leasehold.demo.stretch import choose_stretch, find_shipped_log
    from scheduler.simulation.swf import TraceError

    try:
        path = trace or find_shipped_log()
        stretch = choose_stretch(path, jobs, speed)
    except TraceError as error:
        raise CommandError(one_line(str(error)), BAD_INPUT) from None
    console = make_console(quiet=as_json)
    console.print(
        f"{len(stretch.jobs)} jobs of {path.name}, {stretch.seconds / 3600:.1f} hours of it, "
        f"{stretch.speed:.0f} times as fast",
        highlight=False,
    )
    try:
        summary = run_demo(
            stretch, console, stay=stay, on_summary=lambda found: report(found, console, as_json=as_json)
        )
    except DemoError as error:
        raise CommandError(str(error)) from None
    except KeyboardInterrupt:
        raise CommandError("interrupted; everything is stopped", INTERRUPTED) from None
    raise typer.Exit(0 if summary.is_good else 1)
