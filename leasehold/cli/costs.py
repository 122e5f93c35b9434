"""The commands about money: `costs` (the cost ledger), `prices …` (fill the table of prices) and `offers` (what
launches would buy, in the order of choice, and why not).
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from leasehold.cli.completing import complete_pools
from leasehold.cli.connecting import find_rules, load_settings, open_store
from leasehold.cli.output import (
    CPUS_HELP,
    MEMORY_HELP,
    AsJson,
    Column,
    Output,
    choose,
    choose_format,
    clock,
    parse_resources,
    parse_seconds,
    parse_time,
    print_csv,
    print_document,
    print_json,
    print_result,
    print_rows,
    print_table,
    print_thing,
    print_wide,
    show_age,
    show_amounts,
    starting,
)
from leasehold.cli.root import add_group, app, example
from leasehold.texts.values import show_seconds, show_time

if TYPE_CHECKING:
    from scheduler.model.slots import CostKind
    from scheduler.operations.costs import BudgetStatus, CostSum
    from scheduler.operations.rules.offers import Offer
    from scheduler.ports import Store

_WAYS: Final = ("pool", "account", "offering", "kind")
_KINDS: Final[tuple["CostKind", ...]] = ("used", "booting", "idle", "draining", "interrupted")
_RARE: Final[tuple["CostKind", ...]] = ("stopped", "unbound", "adjusted")
"""Kinds of use that a table shows only if a machine was used in this way. JSON, YAML and CSV always have them; in CSV
they come after the other kinds.
"""
_BUDGETS: Final = (
    Column("budget"),
    Column("action", rank=4),
    Column("running"),
    Column("today", rank=2),
    Column("this month", rank=3),
    Column("exceeded", "wrap", 1),
)


@app.command(
    epilog=example(
        "leasehold costs --by account --since 7d",
        "leasehold costs --by offering --since 2026-11-01T00:00:00Z -o csv",
        "leasehold costs --budgets --json",
    )
)
def costs(
    by: Annotated[
        str,
        typer.Option(
            metavar="WHAT",
            help="Sum up the costs by pool, account, offering or kind.",
            autocompletion=lambda incomplete: starting(_WAYS, incomplete),
        ),
    ] = "pool",
    since: Annotated[
        str,
        typer.Option(
            metavar="WHEN",
            help="Begin of the period, rounded down to a full hour: a duration before now, like 6h or 7d, or a time.",
        ),
    ] = "24h",
    budgets: Annotated[
        bool, typer.Option("--budgets", help="Show how much of each budget was spent, in place of the costs.")
    ] = False,
    output: Output = None,
    as_json: AsJson = False,
) -> None:
    """Show what machines cost, and what was spent of budgets.

    The costs are those of the ledger in the database. Machines that run count until now.
    """
    chosen, way = choose_format(output, as_json=as_json), choose("--by", by, _WAYS)
    with open_store() as store:
        if budgets:
            from scheduler.operations.costs import add_spending, describe_budgets

            rules = add_spending(store, store.load_rules().rules, store.now(), is_report=True)
            found = describe_budgets(rules, store.find_slots())
            import msgspec

            status = list(found)
            document = [{**msgspec.to_builtins(each), "exceeded": each.exceeded} for each in status]
            header = ["budget", "action", "running", "day", "month", "per_hour", "per_day", "per_month"]
            records = [[getattr(each, name) for name in header] for each in status]
            print_rows(
                chosen,
                document,
                header,
                records,
                _BUDGETS,
                map(_budget_row, status),
                "no budgets: `leasehold rules set budgets.all.per_day=40` makes one",
            )
        else:
            _show_costs(store, way, _find_begin(store, since), chosen)


_NO_TIME: Final = 253402300800.0
"""The begin of the year 10000 in seconds since the epoch. A number like the present time in milliseconds is greater."""


def _find_begin(store: "Store", since: str) -> float:
    """Return the time that `--since` names, in seconds since the epoch. `since`: a duration before now like `6h`, or a
    time.
    """
    if since[-1:] in {"s", "m", "h", "d"} and not since.endswith("Z"):
        return max(0.0, store.now() - parse_seconds("--since", since))
    at = parse_time("--since", since) or 0.0
    if not 0 <= at < _NO_TIME:
        raise typer.BadParameter(f"expected a time in seconds since the epoch, got {since!r}", param_hint="--since")
    return at


def _show_costs(store: "Store", way: str, since: float, chosen: str) -> None:
    import msgspec

    from scheduler.model.costs import begin_of_hour
    from scheduler.operations.costs import add_up, sum_by

    found = store.read_costs(since)
    sums, total = sum_by(found, way), add_up(found)  # type: ignore[arg-type]  # checked by `choose`
    if chosen in {"json", "yaml"}:
        document = {"since": begin_of_hour(since), "by": way, "costs": sums, "total": total}
        print_document(msgspec.to_builtins(document), chosen)
    elif chosen == "csv":
        header = [way, "dollars", "seconds", "unpriced_seconds", *(f"{kind}_seconds" for kind in _KINDS)]
        header += [f"{kind}_dollars" for kind in _KINDS]
        header += [f"{kind}_{unit}" for kind in _RARE for unit in ("seconds", "dollars")]
        print_csv(header, map(_list_fields, sums))
    else:
        show = print_wide if chosen == "wide" else print_table
        shown = [kind for kind in (*_KINDS, *_RARE) if total.seconds_by_kind[kind]]
        kinds = (*_KINDS, *(kind for kind in _RARE if kind in shown)) if chosen == "wide" else tuple(shown)
        columns = [
            Column(way),
            Column("dollars"),
            *(Column(kind, rank=2) for kind in kinds),
            Column("no price", rank=1),
        ]
        rows = [_row(each, way, kinds) for each in sums]
        show(
            columns,
            [*rows, *([_row(total, way, kinds, "total")] if len(rows) > 1 else [])],
            f"no machine has run since {show_time(begin_of_hour(since))}",
        )
        if rows:
            print_thing(f"dollars since {show_time(begin_of_hour(since))}; times of machines by what they did")


def _list_fields(each: "CostSum") -> Sequence[Any]:
    seconds, dollars = each.seconds_by_kind, each.dollars_by_kind
    amounts = [each.dollars, each.seconds, each.unpriced_seconds, *(seconds[kind] for kind in _KINDS)]
    rare = (amount for kind in _RARE for amount in (seconds[kind], dollars[kind]))
    return [each.name, *amounts, *(dollars[kind] for kind in _KINDS), *rare]


def _row(each: "CostSum", way: str, kinds: Sequence["CostKind"], name: str | None = None) -> tuple[str, ...]:
    shown = each.name or f"(no {way})"
    times = (show_seconds(each.seconds_by_kind[kind]) if each.seconds_by_kind[kind] else "" for kind in kinds)
    unpriced = show_seconds(each.unpriced_seconds) if each.unpriced_seconds else ""
    return (name or shown, f"{each.dollars:.2f}", *times, unpriced)


def _budget_row(each: "BudgetStatus") -> tuple[str, ...]:
    pairs = ((each.running, each.per_hour), (each.day, each.per_day), (each.month, each.per_month))
    shown = (f"{amount:.2f}" + (f" of {most:.2f}" if most is not None else "") for amount, most in pairs)
    return (each.budget, each.action, *shown, ", ".join(each.exceeded))


prices_group = add_group("prices", "Update the table of prices.", "leasehold prices import prices.csv")


@prices_group.command(
    "import", epilog=example("leasehold prices import prices.csv", "leasehold prices import ec2.json --json")
)
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="AWS's price list of EC2, or a simple list of prices.")],
    region: Annotated[
        str | None,
        typer.Option(help="Region whose prices are added; default: the stack's region, else the only region in FILE."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Add the prices of a file to the table of prices.

    The file is AWS's price list of EC2 in JSON or CSV, or a list with the columns type, zone or region, market and
    price (dollars per hour). If a row has a fault, nothing is added.
    """
    from scheduler.operations.market import save_market
    from workers.price_files import read_prices

    settings = load_settings()
    region = (
        region
        or settings.aws.region
        or next(filter(None, map(os.environ.get, ("AWS_REGION", "AWS_DEFAULT_REGION"))), None)
    )
    with open_store() as store:
        prices = read_prices(file, region=region, seen_at=store.now(), product=settings.market.product)
        changed = save_market(store, prices=prices)
    text = f"{len(prices)} prices" + ("" if changed else ", unchanged")
    print_result({"prices": len(prices), "changed": changed}, text, as_json=as_json)


@prices_group.command(epilog=example("leasehold prices refresh", "leasehold prices refresh --json"))
def refresh(as_json: AsJson = False) -> None:
    """Update prices and instance types from EC2.

    The command reads the spot prices of the offerings of all pools, and the catalogue of instance types if an offering
    has requirements. The AWS credentials need the IAM policy `look` (docs/how-to/aws.md). If
    `market.on_demand_interval` is set, the command also reads on-demand prices, which needs the IAM policy `prices`.
    """
    settings = load_settings()
    from leasehold.cli.market import read_market

    with open_store() as store:
        found = read_market(store, settings, find_rules(store).rules, all_pools=True)
    text = f"{found.prices} prices, {found.types} instance types" + ("" if found.changed else ", unchanged")
    print_result(found, text, as_json=as_json)


_OFFERS: Final[tuple[Column, ...]] = (
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
    for name, amount in wanted.items():
        if isinstance(amount, str) or not 0 <= amount < float("inf"):
            option = "--cpus" if name == "cpus" else "--memory"
            raise typer.BadParameter(f"expected a number >= 0, got {amount!r}", param_hint=option)
    settings = load_settings().market
    with open_store() as store:
        from scheduler.operations.rules.offers import Ages, list_offers

        find_rules(store)
        clock.now = store.now
        ages = Ages(spot=settings.stale_after, on_demand=settings.stale_list_after)
        found = list_offers(store, ages, pools=[] if pool is None else [pool], wanted=wanted)
        if as_json:
            print_json(found)
            return
        columns, rows = _OFFERS, [_offer_row(each) for each in found]
        if any(each.stopped_for for each in found):
            columns = (*_OFFERS, _STOPPED_FOR)
            rows = [
                (*row, "; ".join(f"{', '.join(stop.accounts)} ({stop.reason})" for stop in each.stopped_for))
                for row, each in zip(rows, found, strict=True)
            ]
        print_table(columns, rows, "no pool launches machines")


def _offer_row(offer: "Offer") -> tuple[str, ...]:
    name = offer.key or "(template)"
    return (
        offer.pool,
        name if name.endswith(offer.market) else f"{name} {offer.market}",
        offer.zone or "",
        "none" if offer.price is None else f"{offer.price:.4f}",
        offer.source or "",
        show_age(offer.seen_at) + (" (stale)" if offer.is_stale else ""),
        show_amounts(offer.resources),
        "; ".join(["next", *([offer.turn] if offer.turn else [])] if offer.is_next else offer.reasons),
    )
