"""`leasehold doctor --launch-one POOL`: launch one machine for real, and print its phases and its cost."""

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import typer

from leasehold.cli.connecting import load_settings, open_store
from leasehold.cli.failures import INTERRUPTED, NO_RULES, CommandError, one_line, print_error
from leasehold.cli.interrupts import handling, list_ending
from leasehold.cli.output import choose, print_json
from leasehold.cli.waiting import show_progress
from leasehold.texts.values import show_seconds
from scheduler.protocol.visible import make_visible

if TYPE_CHECKING:
    from leasehold.doctor.trial_launch import Phase, PhaseName, Trial, TrialLaunch
    from scheduler.operations.market.offers import Offer

_WIDTH: Final = 8
_NONE_SOLD: Final = "no offering of {pool} can be bought now: `leasehold offers --pool {pool}` lists the reasons"


def try_launch(pool: str, *, as_json: bool) -> None:
    """Launch one machine of `pool`, wait until it is ready, end it, and print what happened. Raises CommandError if the
    machine did not get ready or may still run.
    """
    trials, refused = _prepare(pool, as_json=as_json), list[str]()
    for left, (launch, offer) in enumerate(trials, 1 - len(trials)):
        if not as_json:
            typer.echo(_announce(offer))
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
    _raise_problem(trial, is_interrupted=launch.is_interrupted)


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
    from scheduler.operations.market.offers import Ages
    from scheduler.operations.market.resolve import load_resolved
    from scheduler.ports import CloudError
    from workers.ec2.fleet import make_fleet
    from workers.probes import Probes
    from workers.services import read_access

    with open_store() as store:
        stored = store.load_rules()
        if not stored.version:
            raise CommandError(NO_RULES)
        choose("--launch-one", pool, list(stored.rules.pools))
        rules = load_resolved(store, stored.rules)
        if not rules.pools[pool].is_elastic:
            raise CommandError(f"{pool} is a pool of static hosts: expected a pool that launches machines")
        ages = Ages(spot=settings.market.stale_after, on_demand=settings.market.stale_list_after)
        offers = list_offers_to_try(store, rules, pool, ages)
        if not offers:
            raise CommandError(_NONE_SOLD.format(pool=pool))
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


def _announce(offer: "Offer") -> str:
    price = f"${offer.price:.4f} an hour ({offer.source})" if offer.price else "the price is not known"
    what = offer.key or "the type of its template or image"
    paused = "".join(f"; {each}" for each in offer.reasons)
    return make_visible(f"launching one machine of {offer.pool}: {what}, {offer.market}, {price}{paused}")


def _show_present(phase: "PhaseName", seconds: float) -> None:
    from leasehold.doctor.trial_launch import MEANINGS

    show_progress(f"{phase.ljust(_WIDTH)}  {show_seconds(seconds)}  {MEANINGS[phase]}")


def _print_phase(phase: "Phase") -> None:
    show_progress("")
    typer.echo(f"{phase.name.ljust(_WIDTH)}  {phase.seconds:7.1f} s  {make_visible(phase.text)}")


def _sum_up(trial: "Trial") -> str:
    ready = "" if trial.ready_after is None else f"ready after {trial.ready_after:.1f} s; "
    ran = f"it ran for {trial.seconds:.1f} s"
    if trial.cost is None:
        return f"{ready}{ran}; what it cost is unknown, because no price is known"
    return f"{ready}{ran} and cost ${trial.cost:.4f} (${trial.price:.4f} an hour; EC2 bills at least 60 s)"


def _raise_problem(trial: "Trial", *, is_interrupted: bool) -> None:
    lines = [" → ".join(filter(None, (trial.problem, trial.remedy)))] if trial.problem else []
    if is_interrupted:
        state = f"{trial.instance_id} is ended" if trial.instance_id else "no machine was launched"
        lines.append(f"interrupted by Ctrl-C{f': {state}' if trial.is_ended else ''}")
    if not trial.is_ended:
        name = trial.instance_id or f"a machine with the tag leasehold:launch={trial.launch_id}"
        lines.append(f"{name} may still run: end it in EC2, or let a running stack terminate it, as it has no slot")
    if lines:
        raise CommandError("\n".join(map(one_line, lines)), INTERRUPTED if is_interrupted else 1)
