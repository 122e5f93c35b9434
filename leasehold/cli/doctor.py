"""`leasehold doctor`: check everything that an installation depends on, and name a remedy for each failure."""

import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from leasehold.cli.completing import complete_pools
from leasehold.cli.connecting import adopt_stack
from leasehold.cli.failures import FAILED
from leasehold.cli.output import AsJson, print_json
from leasehold.cli.root import app, example
from leasehold.cli.tables import find_width, wrap
from scheduler.protocol.visible import make_visible

if TYPE_CHECKING:
    from leasehold.doctor.findings import Finding

_COLOURS: Final = {
    "ok": typer.colors.GREEN,
    "warning": typer.colors.YELLOW,
    "failure": typer.colors.RED,
    "skipped": typer.colors.BRIGHT_BLACK,
}
_NAME_WIDTH: Final = 20
_MARK_WIDTH: Final = 7


@app.command(
    epilog=example(
        "leasehold doctor",
        "leasehold doctor --no-aws --json",
        "leasehold doctor --may launch --may terminate",
        "leasehold doctor --launch-one linux",
    )
)
def doctor(
    aws: Annotated[bool, typer.Option("--aws/--no-aws", help="Whether to check the permissions in AWS.")] = True,
    may: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ABILITY",
            help="Permission that these credentials need: launch, look, terminate. May be repeated; default: all.",
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Seconds that each check may take.", min=0.1)] = 5.0,
    launch_one: Annotated[
        str | None,
        typer.Option(
            metavar="POOL",
            help="In place of the checks, launch one machine of this pool for real, until it is ready, and end it.",
            autocompletion=complete_pools,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check everything that Leasehold depends on.

    Checks Redis, the queues and their workers, the database and its schema, ticks, clocks, Celery's settings, and
    whether AWS permits the calls of the workers (by DryRun: nothing is launched).

    The exit status is 1 if a check fails; each failure comes with a remedy.

    With --launch-one the command sends the launch request of a pool for real. It prints how long each phase of the
    machine takes, and what the machine cost. Ctrl-C ends the machine. The exit status is 1 if the machine did not get
    ready, or if its end is not certain. The command needs the database and the policies launch, look and terminate; no
    worker has to run.
    """
    if launch_one is not None:
        if may or not aws:
            raise typer.BadParameter("expected neither --may nor --no-aws beside it", param_hint="--launch-one")
        from leasehold.cli.trial import try_launch

        try_launch(launch_one, as_json=as_json)
        return
    adopt_stack()
    from leasehold.doctor.cloud import ABILITIES
    from leasehold.doctor.examination import examine
    from leasehold.doctor.rules import list_outcomes
    from workers.configuration import read_configuration

    unknown = [each for each in may or [] if aws and each not in ABILITIES]
    if unknown:
        raise typer.BadParameter(f"expected one of {', '.join(ABILITIES)}, got {unknown[0]!r}", param_hint="--may")
    abilities = [each for each in ABILITIES if aws and (not may or each in may)]
    findings = []
    for finding in examine(read_configuration(), timeout, abilities):
        findings.append(finding)
        if not as_json:
            # Print each finding at once: the next check may take seconds.
            print_finding(finding)
    counts = list_outcomes(findings)
    if as_json:
        print_json({"state": "failing" if counts["failure"] else "ok", "findings": findings})
    else:
        typer.echo(", ".join(f"{count} {name}" for name, count in counts.items() if count))
    raise typer.Exit(FAILED if counts["failure"] else 0)


def print_finding(finding: "Finding") -> None:
    """Print one finding, wrapped at the width of the terminal."""
    mark = (finding.outcome.upper() if finding.outcome == "failure" else finding.outcome).ljust(_MARK_WIDTH)
    # typer.echo drops the colours unless standard output is a terminal.
    check, text = finding.check.ljust(_NAME_WIDTH), make_visible(finding.text)
    indent, width = " " * (_MARK_WIDTH + _NAME_WIDTH + 4), find_width()
    shown = wrap(f"{mark}  {check}  {text}", width, indent)
    typer.echo(f"{typer.style(mark, fg=_COLOURS[finding.outcome])}{shown[len(mark) :]}")
    if finding.remedy:
        typer.echo(wrap(f"{indent}→ {finding.remedy}", width, f"{indent}  "))
    sys.stdout.flush()
