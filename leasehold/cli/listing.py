"""The commands `leasehold list` and `leasehold slots`: their columns, and how rows are selected, sorted and printed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, Literal, TypeVar

import typer

from leasehold.cli.completing import (
    complete_accounts,
    complete_phases,
    complete_pools,
    complete_states,
    complete_systems,
)
from leasehold.cli.connecting import connect
from leasehold.cli.output import (
    AsJson,
    Cell,
    Column,
    Output,
    Watched,
    choose,
    choose_format,
    clock,
    explaining_refusals,
    parse_pairs,
    parse_seconds,
    print_csv,
    print_document,
    print_error,
    print_table,
    print_thing,
    print_wide,
    repeat,
    show_age,
    show_amounts,
    show_texts,
    starting,
)
from leasehold.cli.root import app, example
from leasehold.texts.values import show_time
from scheduler.protocol.forecasts import shorten_eta
from scheduler.protocol.states import PHASES, SLOT_STATES

if TYPE_CHECKING:
    from leasehold.client.client import Client
    from leasehold.client.models import Conditions, Placement, Reservation, Slot


@dataclass(frozen=True)
class SeenReservation:
    """One line of `leasehold list`: a reservation. While the reservation is pending, `waiting` has the code and the
    reason of its wait, and `position` its place in the queue, from 1, and `eta` when it is expected to start.
    """

    row: "Reservation"
    waiting: "Sequence[str] | None" = None
    position: int | None = None
    eta: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class SeenSlot:
    """One line of `leasehold slots`: a slot, the leases on it with their reservations, and the unusual conditions that
    a worker reports.
    """

    slot: "Slot"
    holders: "Sequence[tuple[Reservation, Placement]]" = ()
    conditions: "Conditions | None" = None


SeenRow = TypeVar("SeenRow")


@dataclass(frozen=True)
class Field(Generic[SeenRow]):
    """One column of a list. `read` makes the column's cell from a row.

    `csv`: the name of the column in CSV; "": CSV does not have the column. `raw` makes the value for CSV; None: the
    value is the text of the cell. `where`: whether every table has the column (`always`) or only the table of `--output
    wide` (`wide`).
    """

    column: Column
    read: Callable[[SeenRow], Cell]
    csv: str = ""
    raw: Callable[[SeenRow], Any] | None = None
    where: Literal["always", "wide"] = "always"

    def read_raw(self, seen: SeenRow) -> Any:
        if self.raw is not None:
            return self.raw(seen)
        cell = self.read(seen)
        return cell if isinstance(cell, str) else " ".join(cell)


def choose_fields(fields: Sequence[Field[SeenRow]], seen: Iterable[SeenRow], *, is_wide: bool) -> list[Field[SeenRow]]:
    """Return the columns that a table of the rows `seen` shows. A column for the wide table is shown only if `is_wide`.
    A column that may be hidden is not shown if all its cells would be empty.
    """
    places = {"always", "wide"} if is_wide else {"always"}
    rows = list(seen)
    return [
        each
        for each in fields
        if each.where in places and (not each.column.rank or any(each.read(row) for row in rows))
    ]


def _instant(at: float | None) -> str:
    return "" if at is None else show_time(at)


def _find_reason(seen: SeenReservation) -> str:
    """Return why a reservation waits, is being revoked, or has ended; "" if no reason is known."""
    row = seen.row
    if row.phase == "pending" and seen.waiting:
        return ": ".join(filter(None, seen.waiting))
    return (row.revoke_reason if row.phase == "revoking" else None) or row.reason or ""


def _describe_reason(seen: SeenReservation) -> str:
    due = show_age(seen.row.revoke_by) if seen.row.phase == "revoking" else ""
    return ", ".join(filter(None, (_find_reason(seen), due and f"due {due}")))


def _describe_request(seen: SeenReservation) -> str:
    """Return what a reservation requests. The amounts come first, because a narrow terminal shows the begin only."""
    return " ".join(filter(None, reversed(_divide_request(seen))))


def _divide_request(seen: SeenReservation) -> tuple[str, str]:
    request = seen.row.request
    parts = [
        " ".join(filter(None, (f"{each.count} x" if each.count > 1 else "", show_amounts(each.resources))))
        for each in request.components
    ]
    return request.system or request.pool or "", " + ".join(filter(None, parts))


def _list_slots(seen: SeenReservation) -> tuple[str, ...]:
    """Return the slots of a reservation, each once, in the order of its leases. If the reservation still waits for
    earlier leases on a slot to end, "(claimed)" follows the id.
    """
    slots = (each.slot + (" (claimed)" if each.state == "claimed" else "") for each in seen.row.leases)
    return tuple(dict.fromkeys(slots))


def _list(read: Callable[["Placement"], str | None]) -> Callable[[SeenReservation], tuple[str, ...]]:
    return lambda seen: tuple(value for each in seen.row.leases if (value := read(each)))


_R = Field[SeenReservation]
RESERVATIONS: Final[tuple[_R, ...]] = (
    _R(Column("id"), lambda seen: seen.row.id, "id"),
    _R(Column("phase", is_state=True), lambda seen: seen.row.phase, "phase"),
    _R(Column("why", "cut", 1, least=32), _describe_reason, "why", _find_reason),
    _R(
        Column("asked for", "cut", 3),
        _describe_request,
        "asked_for",
        lambda seen: " ".join(filter(None, _divide_request(seen))),
    ),
    _R(Column("account", rank=5), lambda seen: seen.row.request.account or "", "account"),
    _R(
        Column("level", rank=7),
        lambda seen: " ".join(sorted({str(each.level) for each in seen.row.leases if each.charged_at is not None})),
        "level",
    ),
    _R(Column("priority", rank=6), lambda seen: f"{seen.row.priority:g}", "priority"),
    _R(
        Column("age", rank=4),
        lambda seen: show_age(seen.row.created_at),
        "created_at",
        lambda seen: _instant(seen.row.created_at),
    ),
    _R(Column("slots", rank=2), _list_slots, "slots"),
    _R(
        Column("expires", rank=8),
        lambda seen: show_age(seen.row.expires_at),
        "expires_at",
        lambda seen: _instant(seen.row.expires_at),
        where="wide",
    ),
    _R(
        Column("leased", rank=9),
        lambda seen: show_age(seen.row.leased_at),
        "leased_at",
        lambda seen: _instant(seen.row.leased_at),
        where="wide",
    ),
    _R(
        Column("ended", rank=9),
        lambda seen: show_age(seen.row.finished_at),
        "finished_at",
        lambda seen: _instant(seen.row.finished_at),
        where="wide",
    ),
    _R(Column("eta", rank=9), lambda seen: shorten_eta(seen.eta, clock.now()), "eta", where="wide"),
    _R(Column("token", rank=9), lambda seen: str(seen.row.token or ""), "token", where="wide"),
    _R(Column("machines", rank=9), _list(lambda each: each.instance_id), "machines", where="wide"),
    _R(Column("addresses", rank=9), _list(lambda each: each.address), "addresses", where="wide"),
    _R(Column("labels", rank=9), lambda seen: show_texts(seen.row.request.labels), "labels", where="wide"),
    _R(Column("tags", rank=9), lambda seen: show_texts(seen.row.request.tags), "tags", where="wide"),
)
"""The columns of the table and of the CSV that `leasehold list` prints."""


def describe_use(slot: "Slot", leases: "Iterable[Placement]") -> str:
    """Return the use of a slot as text: the used and the total amount of each resource, or the number of leases if the
    slot has no resources.
    """
    held = [each for each in leases if each.state != "claimed"]
    if slot.resources is None:
        return f"{len(held)} lease{'s' * (len(held) != 1)}" if held else ""
    totals = slot.resources
    names = sorted(totals, key=lambda name: (name != "cpus", name != "memory_mib", name))
    return " ".join(
        _describe_part(name, sum(each.resources.get(name, 0) for each in held), totals[name]) for name in names
    )


def _describe_part(name: str, used: float, total: float) -> str:
    return f"memory {used:g}/{total:g} MiB" if name == "memory_mib" else f"{name} {used:g}/{total:g}"


def _list_holders(seen: SeenSlot) -> tuple[str, ...]:
    """Return the ids of the reservations on a slot, each once. The state of a lease follows in brackets unless the
    state is `held`.
    """
    marks: dict[str, set[str]] = {}
    for row, lease in seen.holders:
        marks.setdefault(row.id, set()).add(lease.state)
    return tuple(name + "".join(f" ({state})" for state in sorted(states - {"held"})) for name, states in marks.items())


def _describe_marks(seen: SeenSlot) -> str:
    slot = seen.slot
    reported = seen.conditions.slots.get(slot.id) if seen.conditions else None
    refusal = f"EC2's answer: {slot.refusal}" if slot.refusal else ""
    marks = reported or ("cordoned" if slot.cordoned else "", slot.drain_reason or "", slot.error or "", refusal)
    return "; ".join(filter(None, marks))


_S = Field[SeenSlot]
SLOTS: Final[tuple[_S, ...]] = (
    _S(Column("slot"), lambda seen: seen.slot.id, "slot"),
    _S(Column("pool", rank=9), lambda seen: seen.slot.pool, "pool", where="wide"),
    _S(Column("state", is_state=True), lambda seen: seen.slot.state, "state"),
    _S(
        Column("for", rank=6),
        lambda seen: show_age(seen.slot.since).removesuffix(" ago"),
        "since",
        lambda seen: _instant(seen.slot.since),
    ),
    _S(Column("used", rank=3), lambda seen: describe_use(seen.slot, (each for _, each in seen.holders)), "used"),
    _S(Column("held by", rank=1), _list_holders, "held_by"),
    _S(Column("machine", rank=4), lambda seen: seen.slot.instance_id or "", "machine"),
    _S(Column("address", rank=5), lambda seen: seen.slot.address or "", "address"),
    _S(
        Column("type", rank=7),
        lambda seen: " ".join(filter(None, (seen.slot.instance_type, seen.slot.market))),
        "type",
    ),
    _S(Column("zone", rank=8), lambda seen: seen.slot.zone or "", "zone"),
    _S(
        Column("age", rank=9),
        lambda seen: show_age(seen.slot.launched_at).removesuffix(" ago"),
        "launched_at",
        lambda seen: _instant(seen.slot.launched_at),
    ),
    _S(Column("labels", rank=9), lambda seen: show_texts(seen.slot.labels), "labels", where="wide"),
    _S(
        Column("idle", rank=9),
        lambda seen: show_age(seen.slot.idle_since),
        "idle_since",
        lambda seen: _instant(seen.slot.idle_since),
        where="wide",
    ),
    _S(Column("notes", "cut", 2), _describe_marks, "notes"),
)
"""The columns of the table and of the CSV that `leasehold slots` prints."""


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
            waiting: dict[str, Any] = client.report().get("waiting", {})
            positions = {name: position for position, name in enumerate(waiting, 1)}
            etas = client.etas(row.id for row in shown if row.phase == "pending") if chosen in {"wide", "csv"} else {}
            ordered = [
                SeenReservation(row, waiting.get(row.id), positions.get(row.id), etas.get(row.id))
                if row.phase == "pending"
                else SeenReservation(row)
                for row in shown
            ]
            ordered = _sort(ordered, key)
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
    wanted = labels.items()
    own = row.request.labels
    return wanted <= own.items() or any(wanted <= (own | each.labels).items() for each in row.request.components)


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
            # With claims: leases that wait until earlier leases end.
            holders: dict[str, list[tuple[Reservation, Any]]] = {}
            for row in client.list(_LIVE):
                for lease in row.leases:
                    holders.setdefault(lease.slot, []).append((row, lease))
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


def _read_conditions(client: "Client", pool: str | None) -> "Conditions":
    from leasehold.client.models import Conditions
    from leasehold.errors import NotAnswered, Unavailable

    try:
        return client.conditions(pool, timeout=WORKER_SECONDS)
    except NotAnswered:
        print_error("no worker answered: conditions are not shown")
    except Unavailable as error:
        print_error(f"no worker was asked ({error}): conditions are not shown")
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
    name = (sort or "").removeprefix("-")
    return None if sort is None else (keys[choose("--sort", name, tuple(keys))], sort.startswith("-"))


def _sort(seen: Sequence[Seen], key: "tuple[Callable[[Seen], Any], bool] | None") -> list[Seen]:
    """Return the rows `seen`, sorted by `key` (None: as they are). Rows without a value to sort by come last, also in
    reversed order.
    """
    if key is None:
        return list(seen)
    read, is_reversed = key
    having = [each for each in seen if read(each) is not None]
    return sorted(having, key=read, reverse=is_reversed) + [each for each in seen if read(each) is None]
