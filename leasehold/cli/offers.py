"""The command `leasehold offers`: what launches would buy, in the order of choice, at what price, and why not."""

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from leasehold.cli.completing import complete_pools
from leasehold.cli.connecting import load_settings, open_store
from leasehold.cli.failures import NO_RULES, CommandError
from leasehold.cli.output import (
    CPUS_HELP,
    MEMORY_HELP,
    AsJson,
    clock,
    parse_resources,
    print_json,
    print_table,
    show_age,
    show_amounts,
)
from leasehold.cli.root import app, example
from leasehold.cli.tables import Column

if TYPE_CHECKING:
    from scheduler.operations.market.offers import Offer

_COLUMNS: Final[tuple[Column, ...]] = (
    Column("pool", rank=3),
    Column("offering"),
    Column("zone", rank=4),
    Column("$/hour"),
    Column("source", rank=5),
    Column("seen", rank=2),
    Column("resources", rank=6),
    Column("next, or why not", "wrap", rank=1),
)
_STOPPED_FOR: Final = Column("not for", "wrap", rank=1)
"""The column of budgets that count some accounts only. It is shown if such a budget stops an offering."""


@app.command(epilog=example("leasehold offers", "leasehold offers --pool linux --cpus 8 --memory 16384 --json"))
def offers(
    pool: Annotated[
        str | None,
        typer.Option(help="Show only the offers of this pool.", autocompletion=complete_pools, metavar="POOL"),
    ] = None,
    cpus: Annotated[str | None, typer.Option(help=f"Number of cpus that a machine must have, {CPUS_HELP}.")] = None,
    memory: Annotated[str | None, typer.Option(help=f"Memory that a machine must have, {MEMORY_HELP}.")] = None,
    as_json: AsJson = False,
) -> None:
    """List what launches would buy, in the order of choice.

    Each line has the lowest price of the offering's zones, where the price comes from and when it was seen. The column
    `next, or why not` marks the offering that would be launched next, and names what prevents the launch of others:
    launch back-offs, a price that is too high, no price, or that it is the turn of the other market. A budget of some
    accounts stops launches for these only: the column `not for` names them.
    """
    wanted = parse_resources(None, cpus, memory)
    _check(wanted)
    settings = load_settings().market
    with open_store() as store:
        from scheduler.operations.market.offers import Ages, list_offers

        stored = store.load_rules()
        if not stored.version:
            raise CommandError(NO_RULES)
        clock.now = store.now
        ages = Ages(spot=settings.stale_after, on_demand=settings.stale_list_after)
        found = list_offers(store, ages, pools=[] if pool is None else [pool], wanted=wanted)
        if as_json:
            print_json(found)
            return
        columns, rows = _COLUMNS, [_row(each) for each in found]
        if any(each.stopped_for for each in found):
            columns = (*_COLUMNS, _STOPPED_FOR)
            rows = [(*row, _show_stops(each)) for row, each in zip(rows, found, strict=True)]
        print_table(columns, rows, "no pool launches machines")


def _check(wanted: dict[str, Any]) -> None:
    """Raise typer.BadParameter if an amount in `wanted` (the values of --cpus and --memory) is not a finite number of
    at least 0.
    """
    for name, amount in wanted.items():
        if isinstance(amount, str) or not 0 <= amount < float("inf"):
            option = "--cpus" if name == "cpus" else "--memory"
            raise typer.BadParameter(f"expected a number >= 0, got {amount!r}", param_hint=option)


def _row(offer: "Offer") -> tuple[str, ...]:
    price = "none" if offer.price is None else f"{offer.price:.4f}"
    seen = show_age(offer.seen_at) + (" (stale)" if offer.is_stale else "")
    name = offer.key or "(template)"
    return (
        offer.pool,
        name if name.endswith(offer.market) else f"{name} {offer.market}",
        offer.zone or "",
        price,
        offer.source or "",
        seen,
        show_amounts(offer.resources),
        "; ".join(["next", *([offer.turn] if offer.turn else [])] if offer.is_next else offer.reasons),
    )


def _show_stops(offer: "Offer") -> str:
    return "; ".join(f"{', '.join(each.accounts)} ({each.reason})" for each in offer.stopped_for)
