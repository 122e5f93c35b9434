"""`leasehold doctor`: is everything there that an installation stands on, and what is to be done about the rest."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Final

import typer

from leasehold.cli.connecting import adopt_stack
from leasehold.cli.failures import FAILED
from leasehold.cli.output import AsJson, print_json
from leasehold.common.visible import make_visible

if TYPE_CHECKING:
    from leasehold.doctor.cloud import Ability
    from leasehold.doctor.findings import Finding

_MARKS: Final = {"ok": "ok", "warning": "warning", "failure": "FAILURE", "skipped": "skipped"}
_COLOURS: Final = {
    "ok": typer.colors.GREEN,
    "warning": typer.colors.YELLOW,
    "failure": typer.colors.RED,
    "skipped": typer.colors.BRIGHT_BLACK,
}
_NAME_WIDTH: Final = 20
_MARK_WIDTH: Final = 7


def doctor(
    aws: Annotated[bool, typer.Option("--aws/--no-aws", help="Whether to ask AWS anything.")] = True,
    may: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ABILITY",
            help="What these credentials are to be allowed: launch, look, terminate. May be repeated; left out: all.",
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long each thing has to answer.", min=0.1)
    ] = 5.0,
    as_json: AsJson = False,
) -> None:
    """Check everything that Leasehold depends on.

    That is Redis, the queues and their workers, the database and its schema, ticks, clocks, Celery's settings, and
    whether AWS permits what the workers do (by DryRun: nothing is launched).

    Status 1 when anything fails; each failure says what to do.

    Examples:
      leasehold doctor

      leasehold doctor --no-aws --json

      leasehold doctor --may launch --may terminate
    """
    adopt_stack()
    from leasehold.doctor.examination import examine
    from workers.configuration import read_configuration

    abilities = _read_abilities(may) if aws else []
    findings = _show_each(examine(read_configuration(), timeout, abilities), as_json=as_json)
    failed = sum(finding.outcome == "failure" for finding in findings)
    if as_json:
        print_json({"state": "failing" if failed else "ok", "findings": findings})
    else:
        _say_sum(findings)
    raise typer.Exit(FAILED if failed else 0)


def _read_abilities(given: list[str] | None) -> "list[Ability]":
    from leasehold.doctor.cloud import ABILITIES

    unknown = [each for each in given or [] if each not in ABILITIES]
    if unknown:
        raise typer.BadParameter(f"expected one of {', '.join(ABILITIES)}, got {unknown[0]!r}", param_hint="--may")
    return [ability for ability in ABILITIES if not given or ability in given]


def _show_each(findings: "Iterator[Finding]", *, as_json: bool) -> "list[Finding]":
    """Each finding when it comes: on a terminal the next one may take seconds."""
    seen = []
    for finding in findings:
        seen.append(finding)
        if not as_json:
            _say(finding)
    return seen


def _say(finding: "Finding") -> None:
    mark = _MARKS[finding.outcome].ljust(_MARK_WIDTH)
    # typer.echo leaves the colours out where no terminal is.
    check, text = finding.check.ljust(_NAME_WIDTH), make_visible(finding.text)
    typer.echo(f"{typer.style(mark, fg=_COLOURS[finding.outcome])}  {check}  {text}")
    if finding.remedy:
        typer.echo(f"{'':{_MARK_WIDTH}}  {'':{_NAME_WIDTH}}  → {finding.remedy}")
    sys.stdout.flush()


def _say_sum(findings: "list[Finding]") -> None:
    from leasehold.doctor.rules import list_outcomes

    counts = list_outcomes(findings)
    typer.echo(", ".join(f"{count} {name}" for name, count in counts.items() if count))
