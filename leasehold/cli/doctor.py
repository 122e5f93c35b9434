"""`leasehold doctor`: check everything that an installation depends on, and name a remedy for each failure. With
`--launch-one POOL`: launch one machine for real, and print its phases and its cost.
"""

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Final

import typer

from leasehold.cli.completing import complete_pools
from leasehold.cli.connecting import adopt_stack, find_rules, load_settings, open_store
from leasehold.cli.interrupts import handling, list_ending
from leasehold.cli.output import (
    FAILED,
    INTERRUPTED,
    AsJson,
    CommandError,
    choose,
    find_width,
    one_line,
    print_error,
    print_json,
    show_progress,
    wrap,
)
from leasehold.cli.root import app, example
from leasehold.texts.values import show_seconds
from scheduler.protocol.visible import make_visible

if TYPE_CHECKING:
    from leasehold.doctor.rules import Finding
    from leasehold.doctor.trial_launch import Phase, PhaseName, Trial, TrialLaunch
    from scheduler.operations.rules.offers import Offer

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
    mark = (finding.outcome.upper() if finding.outcome == "failure" else finding.outcome).ljust(_MARK_WIDTH)
    # typer.echo drops the colours unless standard output is a terminal.
    check, text = finding.check.ljust(_NAME_WIDTH), make_visible(finding.text)
    indent, width = " " * (_MARK_WIDTH + _NAME_WIDTH + 4), find_width()
    shown = wrap(f"{mark}  {check}  {text}", width, indent)
    typer.echo(f"{typer.style(mark, fg=_COLOURS[finding.outcome])}{shown[len(mark) :]}")
    if finding.remedy:
        typer.echo(wrap(f"{indent}→ {finding.remedy}", width, f"{indent}  "))
    sys.stdout.flush()


_PHASE_WIDTH: Final = 8


def try_launch(pool: str, *, as_json: bool) -> None:
    """Launch one machine of `pool`, wait until it is ready, end it, and print what happened. Raises CommandError if the
    machine did not get ready or may still run.
    """
    trials, refused = _prepare(pool, as_json=as_json), list[str]()
    for left, (launch, offer) in enumerate(trials, 1 - len(trials)):
        if not as_json:
            price = f"${offer.price:.4f} an hour ({offer.source})" if offer.price else "the price is not known"
            what = offer.key or "the type of its template or image"
            paused = "".join(f"; {each}" for each in offer.reasons)
            typer.echo(make_visible(f"launching one machine of {offer.pool}: {what}, {offer.market}, {price}{paused}"))
        try:
            _run(launch)
        finally:
            show_progress("")
        if launch.lacks is None or not left or launch.is_interrupted:
            break
        refused.append(f"{offer.key}: {launch.lacks}")
        print_error(one_line(f"warning: EC2 launches no {refused[-1]}; the next offering is tried"))
    trial = launch.describe(offer, refused)
    if as_json:
        print_json(trial)
    elif trial.phases:
        typer.echo(_sum_up(trial))
    lines = [" → ".join(filter(None, (trial.problem, trial.remedy)))] if trial.problem else []
    if launch.is_interrupted:
        state = f"{trial.instance_id} is ended" if trial.instance_id else "no machine was launched"
        lines.append(f"interrupted by Ctrl-C{f': {state}' if trial.is_ended else ''}")
    if not trial.is_ended:
        name = trial.instance_id or f"a machine with the tag leasehold:launch={trial.launch_id}"
        lines.append(f"{name} may still run: end it in EC2, or let a running stack terminate it, as it has no slot")
    if lines:
        raise CommandError("\n".join(map(one_line, lines)), INTERRUPTED if launch.is_interrupted else 1)


def _run(launch: "TrialLaunch") -> None:
    # A second signal leaves the launch by KeyboardInterrupt.
    with suppress(KeyboardInterrupt), handling(list_ending(), lambda _number, _frame: launch.interrupt()):
        launch.run()


def _prepare(pool: str, *, as_json: bool) -> "list[tuple[TrialLaunch, Offer]]":
    """Return the trial launches of a machine of `pool`, not begun yet, each with the offer that it buys. The next one
    is needed if EC2 lacks capacity or quota for the earlier ones. Raises CommandError with one line about what is
    missing, for example rules in force.
    """
    settings = load_settings()
    from leasehold.doctor.trial_launch import TrialLaunch, list_offers_to_try, make_order
    from scheduler.operations.market import load_resolved
    from scheduler.operations.rules.offers import Ages
    from scheduler.ports import CloudError
    from workers.ec2.fleet import make_fleet
    from workers.probes import Probes
    from workers.services import read_access

    with open_store() as store:
        stored = find_rules(store).rules
        choose("--launch-one", pool, list(stored.pools))
        rules = load_resolved(store, stored)
        if not rules.pools[pool].is_elastic:
            raise CommandError(f"{pool} is a pool of static hosts: expected a pool that launches machines")
        ages = Ages(spot=settings.market.stale_after, on_demand=settings.market.stale_list_after)
        offers = list_offers_to_try(store, rules, pool, ages)
        if not offers:
            raise CommandError(
                f"no offering of {pool} can be bought now: `leasehold offers --pool {pool}` lists the reasons"
            )
        cluster = store.read_cluster()
    try:
        fleet = make_fleet(settings.aws.cluster, read_access(settings))
    except CloudError as error:
        raise CommandError(one_line(str(error))) from None
    report, probe = (lambda _phase: None) if as_json else _print_phase, Probes()
    return [
        (TrialLaunch(fleet, probe, rules, make_order(each, cluster), show=_show_present, report=report), each)
        for each in offers
    ]


def _show_present(phase: "PhaseName", seconds: float) -> None:
    from leasehold.doctor.trial_launch import MEANINGS

    show_progress(f"{phase.ljust(_PHASE_WIDTH)}  {show_seconds(seconds)}  {MEANINGS[phase]}")


def _print_phase(phase: "Phase") -> None:
    show_progress("")
    typer.echo(f"{phase.name.ljust(_PHASE_WIDTH)}  {phase.seconds:7.1f} s  {make_visible(phase.text)}")


def _sum_up(trial: "Trial") -> str:
    ready = "" if trial.ready_after is None else f"ready after {trial.ready_after:.1f} s; "
    ran = f"it ran for {trial.seconds:.1f} s"
    if trial.cost is None:
        return f"{ready}{ran}; what it cost is unknown, because no price is known"
    return f"{ready}{ran} and cost ${trial.cost:.4f} (${trial.price:.4f} an hour; EC2 bills at least 60 s)"
