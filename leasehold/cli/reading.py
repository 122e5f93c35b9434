"""The commands `leasehold get` and `leasehold explain`, which show one reservation, and `leasehold events`, which lists
what happened.
"""

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Final

import typer

from leasehold.cli.completing import complete_events, complete_reservations, complete_slots
from leasehold.cli.connecting import connect, open_store
from leasehold.cli.listing import WORKER_SECONDS
from leasehold.cli.output import (
    DOCUMENTS,
    AsJson,
    CommandError,
    OneOutput,
    Watched,
    choose,
    choose_format,
    clock,
    find_width,
    print_document,
    print_error,
    print_json,
    print_table,
    print_thing,
    repeat,
    show_amounts,
    show_instant,
    show_texts,
    wrap,
)
from leasehold.cli.root import app, example
from leasehold.errors import NotAnswered, Unavailable, Unknown
from leasehold.texts.values import describe_event, name_source, show_levels, show_seconds, show_time
from scheduler.protocol.faults import describe_unknown
from scheduler.protocol.visible import make_visible

if TYPE_CHECKING:
    from leasehold.client.client import Client
    from leasehold.client.models import Explanation, Placement, Reservation
    from scheduler.model.events import Event

_POLL_SECONDS: Final = 1.0
ReservationId = Annotated[
    str,
    typer.Argument(metavar="RESERVATION", help="Id of an existing reservation.", autocompletion=complete_reservations),
]


@app.command(epilog=example("leasehold get build-7", "leasehold get build-7 --json", "leasehold get build-7 -o yaml"))
def get(reservation: ReservationId, output: OneOutput = None, as_json: AsJson = False) -> None:
    """Show a reservation with its leases.

    If the reservation ended more than ten minutes ago, a worker reads it from the database.
    """
    chosen = choose_format(output, as_json=as_json, known=DOCUMENTS)
    with connect() as client:
        row = client.get(reservation) or next(iter(client.recall(reservation)), None)
    if row is None:
        raise CommandError(describe_unknown("reservation", reservation))
    if chosen == "table":
        print_table(("", ""), describe_reservation(row), "")
    else:
        print_document(row, chosen)


def describe_reservation(row: "Reservation") -> list[tuple[str, str]]:
    request = row.request
    requested = "; ".join(
        f"{each.count} x {each.name} ({each.kind}) {show_amounts(each.resources)}".strip()
        for each in request.components
    )
    lines = [
        ("id", row.id),
        ("phase", row.phase + (f" ({row.reason})" if row.reason else "")),
        ("asked for", requested),
        ("system or pool", request.system or request.pool or ""),
        ("account", request.account or ""),
        ("priority", f"{row.priority:g}"),
        ("expected to run", show_seconds(request.expected_runtime) if request.expected_runtime else ""),
        ("runs at most", show_seconds(request.max_runtime) if request.max_runtime else ""),
        ("labels", show_texts(request.labels)),
        ("tags", show_texts(request.tags)),
        ("created", show_instant(row.created_at)),
        ("leased", show_instant(row.leased_at)),
        ("confirmed", show_instant(row.confirmed_at)),
        ("expires", show_instant(row.expires_at)),
        ("to be given back", f"{show_instant(row.revoke_by)}: {row.revoke_reason}" if row.revoke_by else ""),
        ("ended", show_instant(row.finished_at)),
        ("command", _describe_run(row)),
        ("restarts", _describe_restarts(row)),
        ("wanted", ", ".join(f"at most {most} x {name}" for name, most in sorted(row.want.items()))),
        ("given back", ", ".join(row.declined) if row.phase != "pending" else ""),
        ("declined slots", ", ".join(row.declined) if row.phase == "pending" else ""),
        ("token", str(row.token) if row.token else ""),
    ]
    lines += [(f"lease {lease.component}", _describe_lease(lease)) for lease in row.leases]
    return [(name, value) for name, value in lines if value]


def _describe_run(row: "Reservation") -> str:
    """Return the state of a reservation's command as text, or how it ended; "" without a command."""
    from scheduler.model.runs import describe_run

    return "" if row.run is None else describe_run(row.run) or row.run.state


def _describe_restarts(row: "Reservation") -> str:
    """Return as text how often a reservation was restarted, and how often each of its elastic components (whose leases
    end one by one) was restarted; "" if never.
    """
    counts = row.component_restarts or {}
    if not (row.restarts or counts):
        return ""
    parts = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
    return f"{row.restarts}" + (f" (by component: {parts})" if parts else "")


def _describe_lease(lease: "Placement") -> str:
    """Return a lease as text: slot, machine, and its state unless that is `held`. For a lease under quota the text also
    has the level that is paid and the cost so far.
    """
    from scheduler.model.reservations import cost_until

    where = " ".join(filter(None, (lease.slot, lease.instance_id, lease.address, lease.type, lease.zone)))
    parts = [where, "" if lease.state == "held" else lease.state]
    if lease.charged_at is not None or any(lease.cost):
        from scheduler.model.accounts import FREE

        parts += [
            ("free level" if lease.level == FREE else f"level {lease.level}"),
            f"used {show_levels(cost_until(lease, clock.now()))}",
        ]
    return ", ".join(filter(None, parts))


@app.command(epilog=example("leasehold explain build-7", "leasehold explain build-7 --watch 5"))
def explain(reservation: ReservationId, as_json: AsJson = False, watch: Watched = None) -> None:
    """Explain why a reservation waits, or where it runs.

    For a pending reservation: its position in the queue, the reason, and the conditions for a lease with their
    evidence. The last lines are the smallest change that would end the wait, with its command, or what would have to
    be true.
    For a leased one: slots, resources, start and expiry.
    """
    with connect() as client:

        def show() -> None:
            row = client.get(reservation)
            found = _explain(client, reservation, row)
            if as_json:
                print_json(found)
                return
            lines = str(found).splitlines()
            advice = found.describe_advice() if found.phase == "pending" else []
            print_thing(*lines[: len(lines) - len(advice)])
            unmet = [each for each in found.conditions if each.met is False and each.evidence != found.headline]
            met = [each for each in found.conditions if each.met]
            rows = [(each.name, "yes" if each.met else "no", each.evidence) for each in (*unmet, *met)]
            if rows:
                print_table(("condition", "met", "evidence"), rows, "")
            if row is None or row.phase != found.phase:
                # The reservation left the view or changed its phase between both reads.
                row = client.get(reservation) or next(iter(client.recall(reservation)), None)
            if row is not None:
                for line in _describe_course(row):
                    print_thing(line)
            _print_advice(found, advice)

        repeat(show, watch)


def _print_advice(found: "Explanation", advice: list[str]) -> None:
    """Print what would end a wait, and as the last lines the commands to type."""
    print_thing(*advice)
    if found.change is None:
        return
    from leasehold.texts.change_commands import format_commands

    for command in format_commands(found.change.actions):
        # A command is never wrapped, so that it can be copied.
        sys.stdout.write(f"  {make_visible(command)}\n")


def _explain(client: "Client", reservation: str, row: "Reservation | None") -> "Explanation":
    """Return the explanation of a reservation. If it is pending, a worker explains why it waits; if no worker answers,
    print that, and return the explanation of the last tick (a run of the scheduler), which lacks the smallest change
    that would end the wait. In another phase no worker is asked. `row`: the reservation in the view; None: the view
    does not have it, and a worker is asked.
    """
    if row is not None and row.phase != "pending":
        return client.explain(reservation)
    try:
        return client.suggest(reservation, timeout=WORKER_SECONDS)
    except (NotAnswered, Unavailable) as error:
        why = "no worker answered" if isinstance(error, NotAnswered) else f"no worker was asked ({error})"
        try:
            found = client.explain(reservation)
        except Unknown:
            raise CommandError(f"{why}; in the view {describe_unknown('reservation', reservation)}") from None
        print_error(f"{why}: this is the result of the last tick, without the smallest change")
        return found


def _describe_course(row: "Reservation") -> Iterator[str]:
    """Yield lines for people about what has happened to a reservation: its leases, its restarts, and when it was
    leased, expires, must be given back, or ended.
    """
    from scheduler.model.transitions import ENDED

    for lease in row.leases:
        if lease.state != "claimed":
            given = show_amounts(lease.resources)
            yield f"{lease.component}: on {_describe_lease(lease)}" + (f", with {given}" if given else "")
    if row.phase in ENDED:
        yield f"ended: {show_instant(row.finished_at)}" + (f", {row.reason}" if row.reason else "")
    if row.leased_at is not None and row.phase != "pending":
        yield f"leased: {show_instant(row.leased_at)}" + (f", token {row.token}" if row.token else "")
    if row.phase in {"pending", "leased"} and row.expires_at:
        yield f"expires: {show_instant(row.expires_at)}, unless it is renewed"
    elif row.phase == "leased":
        yield "expires: never"
    if row.phase == "revoking":
        due = show_instant(row.revoke_by) if row.revoke_by else "as soon as its holder releases it"
        yield f"to be given back: {due}" + (f", {row.revoke_reason}" if row.revoke_reason else "")
    if row.restarts:
        yield f"restarts: {_describe_restarts(row)}"


@app.command(
    epilog=example(
        "leasehold events --follow",
        "leasehold events --reservation build-7 --json",
        "leasehold events --slot linux-1 --name slot_ready",
    )
)
def events(
    reservation: Annotated[
        str | None, typer.Option(help="Select events of this reservation.", autocompletion=complete_reservations)
    ] = None,
    slot: Annotated[str | None, typer.Option(help="Select events of this slot.", autocompletion=complete_slots)] = None,
    name: Annotated[
        str | None, typer.Option(help="Select events with this name, like slot_ready.", autocompletion=complete_events)
    ] = None,
    limit: Annotated[int, typer.Option(help="Number of events: the newest ones.", min=1, max=10_000)] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue with new events until Ctrl-C.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show events of reservations and slots, oldest first.

    Events are read from the database; times are in UTC.
    """
    from scheduler.model.events import EVENT_NAMES
    from scheduler.ports import EventFilter

    if name is not None:
        choose("--name", name, EVENT_NAMES)

    last = 0
    wanted = EventFilter(reservation=reservation, slot=slot, name=name, newest=True, limit=limit)
    with open_store() as store:
        while True:
            for event in store.read_events(wanted):
                last = event.number
                _print_event(event, as_json)
            if not follow:
                if not (last or as_json):
                    print_thing("no events")
                return
            sys.stdout.flush()
            # Polling: the database does not notify about new rows.
            time.sleep(_POLL_SECONDS)
            wanted = EventFilter(after=last, reservation=reservation, slot=slot, name=name, limit=10_000)


def _print_event(event: "Event", as_json: bool) -> None:
    if as_json:
        print_json(event)
        return
    parts = (f"{event.name:<23}", " ".join(filter(None, (event.reservation, event.slot))), describe_event(event))
    line = f"{show_time(event.at)}  {'  '.join(filter(None, parts))} [{name_source(event)}]"
    sys.stdout.write(f"{wrap(make_visible(line), find_width(), indent='    ')}\n")
