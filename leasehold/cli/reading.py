"""Commands that show what is: from the view; reservations that left it and events from the database."""

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from leasehold.cli.connecting import connect, open_store
from leasehold.cli.failures import CommandError, say_error
from leasehold.cli.output import (
    AsJson,
    Watched,
    example,
    print_json,
    print_table,
    print_thing,
    repeat,
    show_age,
    show_amounts,
    show_levels,
    show_time,
)
from leasehold.cli.telling import describe_event
from leasehold.errors import NotAnswered

if TYPE_CHECKING:
    from leasehold.client import Client
    from leasehold.results import Conditions, Explanation, Placement, Reservation, Slot
    from scheduler.model.events import Event

FOLLOW_SECONDS = 1.0
WORKER_SECONDS = 5.0
"""How long a worker may take to answer what the view alone does not tell."""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(epilog=example("leasehold get build-7", "leasehold get build-7 --json"))(get)
    app.command("list", epilog=example("leasehold list", "leasehold list --phase pending --account ci --json"))(list_)
    app.command(epilog=example("leasehold slots", "leasehold slots --pool linux --watch 2"))(slots)
    app.command(epilog=example("leasehold explain build-7"))(explain)
    app.command(epilog=example("leasehold events --follow", "leasehold events --reservation build-7 --json"))(events)


def get(
    reservation: Annotated[str, typer.Argument(metavar="RESERVATION", help="Its id.")], as_json: AsJson = False
) -> None:
    """Show a reservation with its leases; one that left the view is asked for."""
    with connect() as client:
        row = _find(client, reservation)
    if as_json:
        print_json(row)
    else:
        print_table(("", ""), _describe(row), "")


def _find(client: "Client", name: str) -> "Reservation":
    row = client.get(name) or next(iter(client.recall(name)), None)
    if row is None:
        raise CommandError(f"there is no reservation {name}")
    return row


def _describe(row: "Reservation") -> list[tuple[str, str]]:
    request = row.request
    asked = "; ".join(
        f"{each.count} x {each.name} ({each.kind}) {show_amounts(each.resources)}".strip()
        for each in request.components
    )
    lines = [
        ("id", row.id),
        ("phase", row.phase + (f" ({row.reason})" if row.reason else "")),
        ("asked for", asked),
        ("system or pool", request.system or request.pool or ""),
        ("account", request.account or ""),
        ("priority", f"{row.priority:g}"),
        ("labels", show_amounts_of_text(request.labels)),
        ("tags", show_amounts_of_text(request.tags)),
        ("created", show_age(row.created_at)),
        ("leased", show_age(row.leased_at)),
        ("confirmed", show_age(row.confirmed_at)),
        ("expires", show_age(row.expires_at)),
        ("to be given back", f"{show_age(row.revoke_by)} ({row.revoke_reason})" if row.revoke_by else ""),
        ("ended", show_age(row.finished_at)),
        ("restarts", _describe_restarts(row)),
        ("token", str(row.token) if row.token else ""),
    ]
    lines += [(f"lease {lease.component}", _describe_lease(lease)) for lease in row.leases]
    return [(name, value) for name, value in lines if value]


def _describe_restarts(row: "Reservation") -> str:
    """How often the whole was restarted, and each component: elastic ones are without the others."""
    counts = row.component_restarts or {}
    if not (row.restarts or counts):
        return ""
    parts = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
    return f"{row.restarts}" + (f" (by component: {parts})" if parts else "")


def _describe_lease(lease: "Placement") -> str:
    """Where it is; what it pays, where it pays; and whether it is still to come or to be given back."""
    from leasehold.results import cost_until

    where = " ".join(filter(None, (lease.slot, lease.instance_id, lease.address, lease.type, lease.zone)))
    told = [where, "" if lease.state == "held" else lease.state]
    if lease.charged_at is not None or any(lease.cost):
        told += [_name_level(lease), f"used {show_levels(cost_until(lease, time.time()))}"]
    return ", ".join(filter(None, told))


def _name_level(lease: "Placement") -> str:
    from leasehold.results import FREE

    return "free level" if lease.level == FREE else f"level {lease.level}"


def show_amounts_of_text(texts: dict[str, str]) -> str:
    """Labels or tags in a few characters."""
    return " ".join(f"{name}={value}" for name, value in texts.items())


def list_(
    phase: Annotated[
        list[str] | None, typer.Option(help="pending, leased, revoking, …; `ended` is any end. May be repeated.")
    ] = None,
    account: Annotated[str | None, typer.Option(help="Only of this account.")] = None,
    pool: Annotated[str | None, typer.Option(help="Only those that named this pool.")] = None,
    system: Annotated[str | None, typer.Option(help="Only for this system.")] = None,
    limit: Annotated[int, typer.Option(help="Show the newest so many at most.", min=1)] = 200,
    as_json: AsJson = False,
    watch: Watched = None,
) -> None:
    """List reservations in order of submission; ended ones are here for ten minutes."""
    _check_phases(phase)
    columns = ("id", "phase", "asked for", "account", "level", "priority", "age", "slots")
    with connect() as client:

        def show() -> None:
            rows = client.list(phase or None, account=account, pool=pool, system=system)
            if as_json:
                print_json(rows[-limit:])
                return
            print_table(columns, map(_row, rows[-limit:]), "no reservations")
            if len(rows) > limit:
                print_thing(f"the newest {limit} of {len(rows)}")

        repeat(show, watch)


def _check_phases(phases: list[str] | None) -> None:
    known = ("pending", "leased", "revoking", "released", "cancelled", "expired", "failed", "ended")
    for phase in phases or ():
        if phase not in known:
            raise typer.BadParameter(f"expected one of {', '.join(known)}, got {phase!r}", param_hint="--phase")


def _row(row: "Reservation") -> tuple[str, ...]:
    first = row.request.components[0].resources if row.request.components else {}
    return (
        row.id,
        row.phase + (f" ({row.reason})" if row.reason else ""),
        " ".join(filter(None, (row.request.system or row.request.pool, show_amounts(first)))),
        row.request.account or "",
        " ".join(sorted({str(lease.level) for lease in row.leases if lease.charged_at is not None})),
        f"{row.priority:g}",
        show_age(row.created_at),
        " ".join(lease.slot + (" (claimed)" if lease.state == "claimed" else "") for lease in row.leases),
    )


def slots(
    pool: Annotated[str | None, typer.Option(help="Only of this pool.")] = None,
    state: Annotated[str | None, typer.Option(help="Only in this state.")] = None,
    empty: Annotated[bool, typer.Option("--all", help="Empty ones too.")] = False,
    as_json: AsJson = False,
    watch: Watched = None,
) -> None:
    """List slots with their machines and what they hold."""
    import msgspec

    columns = ("slot", "state", "for", "leases", "machine", "address", "type", "zone", "")
    with connect() as client:

        def show() -> None:
            found = [each for each in client.slots(pool=pool, state=state) if empty or state or each.state != "empty"]
            held = _count_leases(client)
            said = _read_conditions(client, pool)
            if as_json:
                told = (msgspec.to_builtins(each) | {"conditions": said.slots.get(each.id, ())} for each in found)
                print_json(list(told))
                return
            rows = [_slot_row(each, held.get(each.id, 0), said) for each in found]
            print_table(columns, rows, "no slots in use (--all shows empty ones)")
            for name, words in said.pools.items():
                print_thing(*(f"pool {name}: {text}" for text in words))

        repeat(show, watch)


def _count_leases(client: "Client") -> dict[str, int]:
    held: dict[str, int] = {}
    for row in client.list(["leased", "revoking"]):
        for lease in row.leases:
            held[lease.slot] = held.get(lease.slot, 0) + 1
    return held


def _read_conditions(client: "Client", pool: str | None) -> "Conditions":
    from leasehold.results import Conditions

    try:
        return client.conditions(pool, timeout=WORKER_SECONDS)
    except NotAnswered:
        say_error("no worker answered: conditions are not shown")
        return Conditions()


def _slot_row(slot: "Slot", leases: int, said: "Conditions") -> tuple[str, ...]:
    marks = said.slots.get(slot.id) or ("cordoned" if slot.cordoned else "", slot.drain_reason or "", slot.error or "")
    return (
        slot.id,
        slot.state,
        show_age(slot.since).removesuffix(" ago"),
        str(leases) if leases else "",
        slot.instance_id or slot.state if slot.instance_id else "",
        slot.address or "",
        " ".join(filter(None, (slot.instance_type, slot.market))),
        slot.zone or "",
        "; ".join(filter(None, marks)),
    )


def explain(
    reservation: Annotated[str, typer.Argument(metavar="RESERVATION", help="Its id.")],
    as_json: AsJson = False,
    watch: Watched = None,
) -> None:
    """Say why a reservation is where it is, and what it waits for."""
    with connect() as client:

        def show() -> None:
            found = _explain(client, reservation)
            if as_json:
                print_json(found)
            else:
                print_thing(str(found))

        repeat(show, watch)


def _explain(client: "Client", reservation: str) -> "Explanation":
    """What a worker says of one that waits; without a worker, what the last tick said."""
    found = client.explain(reservation)
    if found.phase != "pending":
        return found
    try:
        return client.suggest(reservation, timeout=WORKER_SECONDS)
    except NotAnswered:
        say_error("no worker answered: this is what the last tick said; the smallest change was not looked for")
        return found


def events(
    reservation: Annotated[str | None, typer.Option(help="Only of this reservation.")] = None,
    slot: Annotated[str | None, typer.Option(help="Only of this slot.")] = None,
    name: Annotated[str | None, typer.Option(help="Only of this name, like slot_ready.")] = None,
    limit: Annotated[int, typer.Option(help="The newest so many.", min=1, max=10_000)] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new ones until Ctrl-C.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what happened, from the database; oldest first."""
    from scheduler.ports import EventFilter

    store = open_store()
    last = 0
    wanted = EventFilter(reservation=reservation, slot=slot, name=name, newest=True, limit=limit)
    while True:
        for event in store.read_events(wanted):
            last = event.number
            _print_event(event, as_json)
        if not follow:
            return
        sys.stdout.flush()
        # A database tells nobody of its new rows.
        time.sleep(FOLLOW_SECONDS)
        wanted = EventFilter(after=last, reservation=reservation, slot=slot, name=name, limit=10_000)


def _print_event(event: "Event", as_json: bool) -> None:
    if as_json:
        print_json(event)
        return
    about = " ".join(filter(None, (event.reservation, event.slot)))
    sys.stdout.write(f"{show_time(event.at)}  {event.name:<24} {about}  {describe_event(event)} [{event.cause}]\n")
