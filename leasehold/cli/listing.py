"""The commands `leasehold list` and `leasehold slots`, which select, sort and print reservations and slots."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from leasehold.cli.completing import (
    PHASES,
    SLOT_STATES,
    complete_accounts,
    complete_phases,
    complete_pools,
    complete_states,
    complete_systems,
    starting,
)
from leasehold.cli.connecting import connect
from leasehold.cli.failures import explaining_refusals
from leasehold.cli.formats import Output, choose_format, print_csv, print_document
from leasehold.cli.output import (
    AsJson,
    Watched,
    choose,
    parse_pairs,
    parse_seconds,
    print_table,
    print_thing,
    print_wide,
    repeat,
)
from leasehold.cli.root import app, example
from leasehold.cli.showing import RESERVATIONS, SLOTS, Field, SeenReservation, SeenSlot, choose_fields

if TYPE_CHECKING:
    from leasehold.client.client import Client
    from leasehold.client.models import Conditions, Reservation

WORKER_SECONDS = 5.0
"""Seconds to wait for a worker that reports the conditions of slots and pools. The view in Redis does not have them."""
_MOST_SLOTS: Final = 200
_LIVE: Final = ("pending", "leased", "revoking")
Seen = TypeVar("Seen", SeenReservation, SeenSlot)
Pairs = list[str] | None
Account = Annotated[
    str | None,
    typer.Option(
        help="Select reservations of this account, or the slots that they hold.",
        autocompletion=complete_accounts,
        show_default=False,
    ),
]
Tags = Annotated[
    Pairs,
    typer.Option(
        "--tag",
        metavar="NAME=VALUE",
        help="Select reservations with this tag, or the slots that they hold. May be repeated.",
    ),
]
Labels = Annotated[
    Pairs,
    typer.Option(
        "--label",
        metavar="NAME=VALUE",
        help="Select reservations that require this label, or slots that have it. May be repeated.",
    ),
]
Older = Annotated[str | None, typer.Option(metavar="AGE", help="Select rows of at least this age, like 90, 10m or 2h.")]
Newer = Annotated[str | None, typer.Option(metavar="AGE", help="Select rows of at most this age.")]
RESERVATION_KEYS: Final[Mapping[str, Callable[[SeenReservation], Any]]] = {
    "id": lambda seen: seen.row.id,
    "phase": lambda seen: PHASES.index(seen.row.phase),
    "account": lambda seen: seen.row.request.account,
    "priority": lambda seen: seen.row.priority,
    "age": lambda seen: -seen.row.created_at,
    "expires": lambda seen: seen.row.expires_at,
    "position": lambda seen: seen.position,
}
SLOT_KEYS: Final[Mapping[str, Callable[[SeenSlot], Any]]] = {
    "id": lambda seen: (len(seen.slot.id), seen.slot.id),
    "pool": lambda seen: seen.slot.pool,
    "state": lambda seen: seen.slot.state,
    "age": lambda seen: -seen.slot.since,
    "leases": lambda seen: len(seen.holders),
    "zone": lambda seen: seen.slot.zone,
}


@app.command(
    "list",
    epilog=example(
        "leasehold list",
        "leasehold list --phase pending --account ci --sort -priority",
        "leasehold list --tag build=7 --older-than 10m -o wide",
        "leasehold list --all -o csv",
    ),
)
def list_(  # noqa: PLR0913, PLR0917 - an option each
    phase: Annotated[
        list[str] | None,
        typer.Option(
            help="Select by phase: pending, leased, revoking, …; `ended` is any final phase. May be repeated.",
            autocompletion=complete_phases,
        ),
    ] = None,
    account: Account = None,
    pool: Annotated[
        str | None, typer.Option(help="Select reservations that request this pool.", autocompletion=complete_pools)
    ] = None,
    system: Annotated[
        str | None,
        typer.Option(help="Select reservations that request this system.", autocompletion=complete_systems),
    ] = None,
    tag: Tags = None,
    label: Labels = None,
    older_than: Older = None,
    newer_than: Newer = None,
    sort: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD",
            help=f"Sort by {', '.join(RESERVATION_KEYS)}; -FIELD reverses. Default: order of submission.",
            autocompletion=lambda incomplete: starting(RESERVATION_KEYS, incomplete),
        ),
    ] = None,
    ended: Annotated[bool, typer.Option("--all", help="Show ended reservations in the table too.")] = False,
    limit: Annotated[
        int, typer.Option(help="Number of rows: the newest ones, or with --sort the first ones.", min=1)
    ] = 200,
    output: Output = None,
    as_json: AsJson = False,
    watch: Watched = None,
) -> None:
    """List reservations.

    The table shows ended reservations only with --all or if --phase names them; JSON, YAML and CSV always include them.
    An ended reservation stays listed for ten minutes.
    """
    chosen = choose_format(output, as_json=as_json)
    for each in phase or ():
        choose("--phase", each, (*PHASES, "ended"))
    (least, most), key = _read_ages(older_than, newer_than), _read_key(sort, RESERVATION_KEYS)
    tags, labels = parse_pairs("--tag", tag or ()), parse_pairs("--label", label or ())
    with connect() as client:

        def show() -> None:
            now = client.now()
            found = client.list(phase or None, account=account, pool=pool, system=system, tags=tags)
            if not found:
                client.check_names(account=account)
            rows = [row for row in found if least <= now - row.created_at <= most and _requires(row, labels)]
            hides_ended = chosen in {"table", "wide"} and not (phase or ended)
            shown = [row for row in rows if row.phase in _LIVE] if hides_ended else rows
            ordered = _sort(_see(client, shown), key)
            seen = ordered[-limit:] if key is None else ordered[:limit]
            if chosen in {"json", "yaml"}:
                print_document([each.row for each in seen], chosen)
                return
            _print(RESERVATIONS, seen, chosen, "no reservations")
            more, hidden = len(shown) - len(seen), len(rows) - len(shown)
            if more and chosen != "csv":
                print_thing(f"not shown: {more} more (--limit {limit})")
            if hidden and chosen != "csv":
                print_thing(f"not shown: {hidden} ended (--all)")

        with explaining_refusals():
            repeat(show, watch)


def _requires(row: "Reservation", labels: Mapping[str, str]) -> bool:
    """Return whether a reservation requires slots with `labels`, in its request or in one of its components."""
    wanted = labels.items()
    own = row.request.labels
    return wanted <= own.items() or any(wanted <= (own | each.labels).items() for each in row.request.components)


def _see(client: "Client", rows: Iterable["Reservation"]) -> list[SeenReservation]:
    waiting: dict[str, Any] = client.report().get("waiting", {})
    positions = {name: position for position, name in enumerate(waiting, 1)}
    return [
        SeenReservation(row, waiting.get(row.id), positions.get(row.id))
        if row.phase == "pending"
        else SeenReservation(row)
        for row in rows
    ]


@app.command(
    epilog=example(
        "leasehold slots",
        "leasehold slots --pool linux --watch 2",
        "leasehold slots --account ci --sort -leases",
        "leasehold slots --state ready --label ssd=yes -o yaml",
    )
)
def slots(  # noqa: PLR0913, PLR0917 - an option each
    pool: Annotated[str | None, typer.Option(help="Select slots of this pool.", autocompletion=complete_pools)] = None,
    state: Annotated[
        str | None,
        typer.Option(help=f"Select slots in this state: {', '.join(SLOT_STATES)}.", autocompletion=complete_states),
    ] = None,
    account: Account = None,
    tag: Tags = None,
    label: Labels = None,
    older_than: Older = None,
    newer_than: Newer = None,
    sort: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD",
            help=f"Sort by {', '.join(SLOT_KEYS)}; -FIELD reverses. Default: pool, then id.",
            autocompletion=lambda incomplete: starting(SLOT_KEYS, incomplete),
        ),
    ] = None,
    empty: Annotated[bool, typer.Option("--all", help="Show empty slots too.")] = False,
    limit: Annotated[
        int | None, typer.Option(help=f"Number of rows; default: {_MOST_SLOTS} in tables, else all.", min=1)
    ] = None,
    output: Output = None,
    as_json: AsJson = False,
    watch: Watched = None,
) -> None:
    """List slots with their machines, holders and use.

    --account and --tag select slots by the reservations on them, --label by the labels of the slot. The age is that of
    the machine; --older-than, --newer-than and --sort age compare the time in the present state.
    """
    chosen = choose_format(output, as_json=as_json)
    if limit is None and chosen in {"table", "wide"}:
        limit = _MOST_SLOTS
    if state is not None:
        choose("--state", state, SLOT_STATES)
    (least, most), key = _read_ages(older_than, newer_than), _read_key(sort, SLOT_KEYS)
    tags, labels = parse_pairs("--tag", tag or ()), parse_pairs("--label", label or ())
    with connect() as client:

        def show() -> None:
            now = client.now()
            holders = _find_holders(client)
            conditions = _read_conditions(client, pool)
            slots_ = client.slots(pool=pool, state=state)
            found = [SeenSlot(each, holders.get(each.id, ()), conditions) for each in slots_]
            seen = [
                each
                for each in found
                if (empty or state or each.slot.state != "empty")
                and least <= now - each.slot.since <= most
                and labels.items() <= each.slot.labels.items()
                and (
                    not (account or tags)
                    or any(
                        account in {None, row.request.account} and tags.items() <= row.request.tags.items()
                        for row, _ in each.holders
                    )
                )
            ]
            if not seen:
                client.check_names(account=account)
            hides_empty = not (empty or state or seen) and any(each.slot.state == "empty" for each in found)
            nothing = "no slots in use (--all shows empty ones)" if hides_empty else "no slots"
            _print_slots(_sort(seen, key), conditions, chosen, limit, nothing)

        with explaining_refusals():
            repeat(show, watch)


def _print_slots(
    found: "Sequence[SeenSlot]", conditions: "Conditions", chosen: str, limit: int | None, nothing: str
) -> None:
    import msgspec

    seen = found[:limit]
    if chosen in {"json", "yaml"}:
        print_document(
            [msgspec.to_builtins(each.slot) | {"conditions": conditions.slots.get(each.slot.id, ())} for each in seen],
            chosen,
        )
        return
    _print(SLOTS, seen, chosen, nothing)
    if chosen != "csv":
        if len(found) > len(seen):
            print_thing(f"not shown: {len(found) - len(seen)} more (--limit {limit})")
        for name, texts in conditions.pools.items():
            print_thing(*(f"pool {name}: {text}" for text in texts))


def _find_holders(client: "Client") -> "dict[str, list[tuple[Reservation, Any]]]":
    """Return the leases on each slot by the id of the slot, each with its reservation. Claims (leases that wait until
    earlier leases end) are included.
    """
    held: dict[str, list[tuple[Reservation, Any]]] = {}
    for row in client.list(_LIVE):
        for lease in row.leases:
            held.setdefault(lease.slot, []).append((row, lease))
    return held


def _read_conditions(client: "Client", pool: str | None) -> "Conditions":
    from leasehold.cli.failures import print_error
    from leasehold.client.models import Conditions
    from leasehold.errors import NotAnswered

    try:
        return client.conditions(pool, timeout=WORKER_SECONDS)
    except NotAnswered:
        print_error("no worker answered: conditions are not shown")
        return Conditions()


def _print(fields: Sequence[Field[Seen]], seen: Sequence[Seen], chosen: str, empty: str) -> None:
    if chosen == "csv":
        named = [field for field in fields if field.csv]
        print_csv([field.csv for field in named], [[field.read_raw(each) for field in named] for each in seen])
        return
    shown = choose_fields(fields, seen, is_wide=chosen == "wide")
    rows = [[field.read(each) for field in shown] for each in seen]
    (print_wide if chosen == "wide" else print_table)([field.column for field in shown], rows, empty)


def _read_ages(older_than: str | None, newer_than: str | None) -> tuple[float, float]:
    """Return the least and the greatest age in seconds that --older-than and --newer-than select. An option that is
    None allows any age: its value is then minus infinity or infinity.
    """
    least = parse_seconds("--older-than", older_than) if older_than is not None else float("-inf")
    return least, parse_seconds("--newer-than", newer_than) if newer_than is not None else float("inf")


def _read_key(
    sort: str | None, keys: Mapping[str, Callable[[Seen], Any]]
) -> "tuple[Callable[[Seen], Any], bool] | None":
    """Return for --sort the function that reads the value to sort by from a row, and whether the order is reversed.
    Return None without --sort.
    """
    if sort is None:
        return None
    return keys[choose("--sort", sort.removeprefix("-"), tuple(keys))], sort.startswith("-")


def _sort(seen: Sequence[Seen], key: "tuple[Callable[[Seen], Any], bool] | None") -> list[Seen]:
    """Return the rows `seen`, sorted by `key` (None: as they are). Rows without a value to sort by come last, also in
    reversed order.
    """
    if key is None:
        return list(seen)
    read, is_reversed = key
    having = [each for each in seen if read(each) is not None]
    return sorted(having, key=read, reverse=is_reversed) + [each for each in seen if read(each) is None]
