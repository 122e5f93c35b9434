"""Commands that send a request about a reservation to the workers. A request is accepted when a worker has committed it
to the database.
"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leasehold.cli.checking import check, check_reservation
from leasehold.cli.completing import (
    complete_accounts,
    complete_held_reservations,
    complete_live_reservations,
    complete_pools,
    complete_slots,
    complete_systems,
)
from leasehold.cli.connecting import connect
from leasehold.cli.failures import BAD_INPUT, INTERRUPTED, CommandError, explaining_refusals, print_error, send_each
from leasehold.cli.output import (
    CPUS_HELP,
    MEMORY_HELP,
    AsJson,
    Timeout,
    parse_amounts,
    parse_pairs,
    parse_resources,
    parse_time,
    print_json,
    print_result,
    print_thing,
    show_instant,
)
from leasehold.cli.root import app, example
from leasehold.cli.sharing import with_options_of
from leasehold.client.reservation_fields import FIELDS
from scheduler.protocol.faults import describe_unknown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leasehold.client.client import Client
    from leasehold.client.models import Answer, Note, Reservation, Wait

LiveId = Annotated[
    str,
    typer.Argument(
        metavar="RESERVATION", help="Id of an existing reservation.", autocompletion=complete_live_reservations
    ),
]
HeldId = Annotated[
    str,
    typer.Argument(
        metavar="RESERVATION", help="Id of an existing reservation.", autocompletion=complete_held_reservations
    ),
]
Token = Annotated[int | None, typer.Option(help="The fencing token of the lease; default: the present one.")]
AsOf = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Time of the report, in seconds since the epoch or like 2026-11-21T14:00:00Z."),
]


def describe_request(  # noqa: PLR0913, PLR0917 - an option each
    system: Annotated[
        str | None,
        typer.Option(
            help="Request slots in any pool of this system, like x86_64-linux.", autocompletion=complete_systems
        ),
    ] = None,
    pool: Annotated[
        str | None, typer.Option(help="Request slots in this pool only.", autocompletion=complete_pools)
    ] = None,
    name: Annotated[str | None, typer.Option("--id", help="Id of the new reservation; default: a random id.")] = None,
    cpus: Annotated[str | None, typer.Option(help=f"Number of cpus, {CPUS_HELP}.")] = None,
    memory: Annotated[str | None, typer.Option(help=f"Memory {MEMORY_HELP}.")] = None,
    resource: Annotated[
        list[str] | None, typer.Option(metavar="NAME=AMOUNT", help="Amount of another resource.")
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A label that a slot must have.")
    ] = None,
    prefer: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A label that a slot should have.")
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A tag: a name and a text, kept with the reservation."),
    ] = None,
    account: Annotated[
        str | None, typer.Option(help="The account that pays for the reservation.", autocompletion=complete_accounts)
    ] = None,
    priority: Annotated[float | None, typer.Option(help="Priority: higher is served first; 0: on hold.")] = None,
    ttl: Annotated[
        str | None,
        typer.Option(
            help="Time until the reservation expires if it is not renewed, like 90 (seconds) or 15m; 0: never."
        ),
    ] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Restart the reservation if it fails.")] = False,
    file: Annotated[
        Path | None,
        typer.Option(help="A JSON file with a reservation or a list of them; - reads standard input."),
    ] = None,
) -> Any:
    """Return the fields of the reservation that the options describe, or the content of the file of `--file`. Raises
    InvalidInputError if a field is not valid.
    """
    resources = parse_resources(resource, cpus, memory)
    fields: dict[str, Any] = {
        "id": name,
        "system": system,
        "pool": pool,
        "resources": resources or None,
        "labels": parse_pairs("--label", label or []) or None,
        "prefers": parse_pairs("--prefer", prefer or []) or None,
        "tags": parse_pairs("--tag", tag or []) or None,
        "account": account,
        "priority": priority,
        "ttl": None if ttl is None else parse_amounts("--ttl", [f"ttl={ttl}"])["ttl"],
        "restart_policy": "on_failure" if restart else None,
    }
    given = {key: value for key, value in fields.items() if value is not None}
    if file is not None and given:
        raise CommandError(f"--file: expected no other option of a reservation, got --{next(iter(given))}", BAD_INPUT)
    items = _read_file(file) if file is not None else given
    if not isinstance(items, list):
        check_reservation(items)
    return items


@app.command(
    "reserve",
    epilog=example(
        "leasehold reserve --system x86_64-linux --cpus 2 --wait 60",
        "leasehold reserve --pool linux --id build-7 --label ssd=yes --ttl 30m --json",
        "leasehold reserve --file reservations.json",
    )
    + f"\n\n{FIELDS}",
)
@with_options_of(describe_request)
def reserve(
    items: Any,
    wait: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Longest wait for the lease; default: do not wait.", min=0)
    ] = None,
    timeout: Timeout = 30,
    as_json: AsJson = False,
) -> None:
    """Request a reservation; with --wait, wait for its lease.

    The reservation is accepted when the command returns. The file of --file may have fields for which there is no
    option; all fields are listed below.
    """
    with connect(timeout) as client:
        if isinstance(items, list):
            _reserve_many(client, items, as_json)
        else:
            row = submit(client, items)
            try:
                row = row if wait is None else client.wait(row.id, "leased", wait, renew=True)
            except KeyboardInterrupt:
                message = f"interrupted: {row.id} continues; `leasehold cancel {row.id}` ends it"
                raise CommandError(message, INTERRUPTED) from None
            print_result(row, describe_reservation(row), as_json=as_json)


def _read_file(path: Path) -> Any:
    from scheduler.model.json_text import parse_json
    from scheduler.protocol.input_files import read_input_text

    try:
        text = sys.stdin.read() if str(path) == "-" else read_input_text(path)
        items = parse_json(text)
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{path}: expected valid JSON, got {error}", BAD_INPUT) from None
    except OSError as error:
        raise CommandError(f"{path}: expected a file that can be read, got {error.strerror}", BAD_INPUT) from None
    wrong = [each for each in (items if isinstance(items, list) else [items]) if not isinstance(each, dict)]
    if wrong:
        raise CommandError(f"{path}: expected a table or a list of tables, got {json.dumps(wrong[0])}", BAD_INPUT)
    return items


def submit(client: "Client", fields: dict[str, Any]) -> "Reservation":
    """Submit one reservation and return it. Print a warning for each part of the request that has no effect, and if no
    slot can hold the reservation.

    Raises CommandError if the request is refused.
    """
    with explaining_refusals():
        row = client.submit(fields)
    _print_wait(row.id, row.waiting)
    _print_notes(row.notes)
    return row


def _print_wait(name: str, why: "Wait | None") -> None:
    """Print on standard error why no slot can hold the new reservation `name`, which waits until slots or rules change.
    `why`: the reason; None: nothing is printed.
    """
    if why is not None:
        print_error(f"{name} is accepted and waits: {why}")


def _print_notes(notes: "Iterable[Note]", name: str = "") -> None:
    """Print the notes of a worker's answer on standard error. A note names a part of an accepted request that has no
    effect.
    """
    for note in notes:
        print_error(f"note: {name and f'{name}: '}{note}")


def _reserve_many(client: "Client", items: list[dict[str, Any]], as_json: bool) -> None:
    answers = client.reserve_many(items)  # type: ignore[arg-type]  # checked by the intake
    refused = [answer for answer in answers if not answer.ok]
    for answer in answers:
        _print_wait(answer.reservation or "", answer.waiting)
        _print_notes(answer.notes, answer.reservation or "")
    if as_json:
        for answer in answers:
            print_json(answer)
    else:
        print_thing(f"{len(answers) - len(refused)} of {len(answers)} accepted")
    if refused:
        lines = [f"[{error.index}].{error}" for answer in refused for error in answer.errors]
        raise CommandError("\n".join(lines), BAD_INPUT)


def describe_reservation(row: "Reservation") -> str:
    """Return a reservation as one line of text: id, phase, slots, fencing token, and until when its lease holds."""
    reason = f" ({row.reason})" if row.reason else ""
    where = ", ".join(
        " ".join(
            part
            for part in (lease.slot, lease.instance_id and f"({lease.instance_id})", lease.address)
            if part is not None
        )
        for lease in row.leases
    )
    held = f" on {where}, token {row.token}" if where else ""
    until = f", until {show_instant(row.expires_at)} unless renewed" if row.phase == "leased" and row.expires_at else ""
    return f"{row.id} {row.phase}{reason}{held}{until}"


@app.command(epilog=example("leasehold release build-7", "leasehold release build-7 --token 12"))
def release(reservation: HeldId, token: Token = None, timeout: Timeout = 30, as_json: AsJson = False) -> None:
    """Release a reservation: it ends and frees its slots."""
    check("release", {"reservation": reservation, "token": token})
    with connect(timeout) as client:
        _show(client.release(reservation, _find_token(client, reservation, token)), as_json)


@app.command(
    epilog=example(
        "leasehold surrender build-7",
        "leasehold surrender build-7 --component helper.3",
        "leasehold surrender build-7 --component helper --want 4",
    )
)
def surrender(
    reservation: HeldId,
    component: Annotated[
        str | None,
        typer.Option(help="Elastic instance to give back, even if not revoked; default: all revoked instances."),
    ] = None,
    want: Annotated[
        int | None,
        typer.Option(help="Most instances of the component from now on, more or fewer; the last ones beyond end."),
    ] = None,
    token: Token = None,
    timeout: Timeout = 30,
    as_json: AsJson = False,
) -> None:
    """Give back a lease that is being revoked."""
    check("surrender", {"reservation": reservation, "token": token, "component": component, "want": want})
    with connect(timeout) as client:
        held = _find_token(client, reservation, token)
        _show(client.surrender(reservation, held, component=component, want=want), as_json)


@app.command(epilog=example("leasehold renew build-7"))
def renew(reservation: HeldId, token: Token = None, timeout: Timeout = 30, as_json: AsJson = False) -> None:
    """Renew a lease: it expires ttl seconds from now."""
    check("renew", {"reservation": reservation, "token": token})
    with connect(timeout) as client:
        _show(client.renew(reservation, _find_token(client, reservation, token)), as_json)


@app.command(
    epilog=example("leasehold confirm build-7", "leasehold confirm build-7 --slot host-3 --as-of 2026-11-21T14:00:00Z")
)
def confirm(
    reservation: LiveId,
    slot: Annotated[
        str | None,
        typer.Option(
            help="The slot on which the reservation runs; default: the slot of its lease.",
            autocompletion=complete_slots,
        ),
    ] = None,
    as_of: AsOf = None,
    token: Token = None,
    timeout: Timeout = 30,
    as_json: AsJson = False,
) -> None:
    """Confirm where a reservation runs.

    The reservation is leased on that slot from now on. Other reservations on the slot return to the queue until the
    reservation fits.
    """
    at = parse_time("--as-of", as_of)
    check("confirm", {"reservation": reservation, "token": token, "slot": slot, "as_of": at})
    with connect(timeout) as client:
        held = _find_token(client, reservation, token)
        _show(client.confirm(reservation, held, slot=slot, as_of=at), as_json)


@app.command(epilog=example("leasehold absent build-7"))
def absent(reservation: LiveId, as_of: AsOf = None, timeout: Timeout = 30, as_json: AsJson = False) -> None:
    """Report that a reservation neither runs nor waits.

    The reservation is recorded as ended, whatever was recorded before.
    """
    at = parse_time("--as-of", as_of)
    check("absent", {"reservation": reservation, "as_of": at})
    with connect(timeout) as client:
        _show(client.absent(reservation, as_of=at), as_json)


@app.command(epilog=example("leasehold idle host-3", "leasehold idle host-3 --label image=web"))
def idle(
    slot: Annotated[str, typer.Argument(metavar="SLOT", help="Id of the slot.", autocompletion=complete_slots)],
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Label of the slot; replaces all its labels. May be repeated."),
    ] = None,
    as_of: AsOf = None,
    timeout: Timeout = 30,
    as_json: AsJson = False,
) -> None:
    """Report that nothing runs on a slot.

    Reservations that were confirmed to run on this slot are recorded as ended.
    """
    at, labels = parse_time("--as-of", as_of), parse_pairs("--label", label) if label else None
    check("idle", {"slot": slot, "labels": labels, "as_of": at})
    with connect(timeout) as client:
        answer = client.idle(slot, labels=labels, as_of=at)
    print_result(answer, f"{answer.slot} {answer.state}", as_json=as_json)


def _find_token(client: "Client", reservation: str, given: int | None) -> int | None:
    """Return the fencing token `given`. If it is None, return the present token of the reservation (None without a
    lease), so that a user need not look it up.
    """
    if given is not None:
        return given
    row = client.get(reservation)
    return row.token if row is not None and row.leases else None


@app.command(epilog=example("leasehold cancel build-7 build-8 --reason 'not needed'"))
def cancel(
    reservations: Annotated[
        list[str],
        typer.Argument(
            metavar="RESERVATION...", help="Ids of reservations.", autocompletion=complete_live_reservations
        ),
    ],
    reason: Annotated[str | None, typer.Option(help="Reason of the end, shown with the reservation.")] = None,
    timeout: Timeout = 30,
    as_json: AsJson = False,
) -> None:
    """Cancel reservations in any phase."""
    for reservation in reservations:
        check("cancel", {"reservation": reservation, "reason": reason})
    with connect(timeout) as client:
        send_each(lambda name: client.cancel(name, reason=reason), reservations, lambda answer: _show(answer, as_json))


@app.command(epilog=example("leasehold priority build-7 10", "leasehold priority build-7 0   # on hold"))
def priority(
    reservation: LiveId,
    value: Annotated[float, typer.Argument(metavar="PRIORITY", help="Priority: higher is served first; 0: on hold.")],
    timeout: Timeout = 30,
    as_json: AsJson = False,
) -> None:
    """Change the priority of a reservation."""
    check("priority", {"reservation": reservation, "priority": value})
    with connect(timeout) as client:
        _show(client.priority(reservation, value), as_json)


def _show(answer: "Answer", as_json: bool) -> None:
    _print_notes(answer.notes)
    name = answer.reservation or ""
    text = f"{name} {answer.phase}" if answer.phase else describe_unknown("reservation", name)
    print_result(answer, text, as_json=as_json)
