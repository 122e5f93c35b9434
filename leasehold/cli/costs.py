"""The command `leasehold costs`, which shows what machines cost, from the cost ledger in the database."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from leasehold.cli.completing import starting
from leasehold.cli.connecting import open_store
from leasehold.cli.formats import Output, choose_format, print_csv, print_document
from leasehold.cli.output import (
    AsJson,
    choose,
    parse_seconds,
    parse_time,
    print_table,
    print_thing,
    print_wide,
)
from leasehold.cli.root import app, example
from leasehold.cli.tables import Column
from leasehold.texts.values import show_seconds, show_time

if TYPE_CHECKING:
    from scheduler.model.slots import CostKind
    from scheduler.operations.costs import CostSum
    from scheduler.operations.spending import BudgetStatus
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
            _show_budgets(_read_budgets(store), chosen)
        else:
            _show_costs(store, way, _find_begin(store, since), chosen)


def _find_begin(store: "Store", since: str) -> float:
    """Return the time that `--since` names, in seconds since the epoch. `since`: a duration before now like `6h`, or a
    time.
    """
    if since[-1:] in {"s", "m", "h", "d"} and not since.endswith("Z"):
        return store.now() - parse_seconds("--since", since)
    return parse_time("--since", since) or 0.0


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
        empty = f"no machine has run since {show_time(begin_of_hour(since))}"
        show(columns, [*rows, *([_row(total, way, kinds, "total")] if len(rows) > 1 else [])], empty)
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


def _read_budgets(store: "Store") -> "list[BudgetStatus]":
    from scheduler.operations.spending import add_spending, describe_budgets

    rules = add_spending(store, store.load_rules().rules, store.now(), is_report=True)
    return describe_budgets(rules, store.find_slots())


def _show_budgets(found: "Iterable[BudgetStatus]", chosen: str) -> None:
    import msgspec

    status = list(found)
    if chosen in {"json", "yaml"}:
        print_document([{**msgspec.to_builtins(each), "exceeded": each.exceeded} for each in status], chosen)
    elif chosen == "csv":
        header = ["budget", "action", "running", "day", "month", "per_hour", "per_day", "per_month"]
        print_csv(header, [[getattr(each, name) for name in header] for each in status])
    else:
        show = print_wide if chosen == "wide" else print_table
        show(_BUDGETS, map(_budget_row, status), "no budgets: `leasehold rules set budgets.all.per_day=40` makes one")


def _budget_row(each: "BudgetStatus") -> tuple[str, ...]:
    pairs = ((each.running, each.per_hour), (each.day, each.per_day), (each.month, each.per_month))
    shown = (f"{amount:.2f}" + (f" of {most:.2f}" if most is not None else "") for amount, most in pairs)
    return (each.budget, each.action, *shown, ", ".join(each.exceeded))
