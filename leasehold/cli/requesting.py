"""Commands that send a request about a reservation to the workers, which accept it when it is committed to the
database; `run`, which holds a lease while another command runs; and `wait`. Requests are checked before they are sent,
with the same schemas by which workers check them.
"""

import contextlib
import json
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from leasehold.cli.completing import (
    complete_accounts,
    complete_held_reservations,
    complete_live_reservations,
    complete_phases,
    complete_pools,
    complete_slots,
    complete_systems,
)
from leasehold.cli.connecting import connect
from leasehold.cli.interrupts import inherited
from leasehold.cli.output import (
    BAD_INPUT,
    CPUS_HELP,
    INTERRUPTED,
    MEMORY_HELP,
    AsJson,
    CommandError,
    Timeout,
    clock,
    explaining_refusals,
    parse_number,
    parse_pairs,
    parse_resources,
    parse_time,
    print_error,
    print_json,
    print_result,
    print_thing,
    send_each,
    show_instant,
    show_progress,
)
from leasehold.cli.root import app, example, with_options_of
from leasehold.client.reservation_fields import FIELDS
from leasehold.errors import CannotBeServed, Ended, LeaseholdError, NotAnswered, Refused, Unavailable, Unknown
from leasehold.texts.values import show_seconds
from scheduler.protocol.faults import describe_unknown
from scheduler.protocol.forecasts import describe_eta
from scheduler.protocol.states import PHASES

if TYPE_CHECKING:
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
    expected_runtime: Annotated[
        str | None, typer.Option(help="How long it will probably run once it is leased, like 90 (seconds) or 15m.")
    ] = None,
    max_runtime: Annotated[
        str | None, typer.Option(help="How long it runs at most once it is leased; an account may enforce it.")
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
        "ttl": None if ttl is None else parse_number(ttl),
        "expected_runtime": None if expected_runtime is None else parse_number(expected_runtime),
        "max_runtime": None if max_runtime is None else parse_number(max_runtime),
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
            answers = client.reserve_many(items)
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
        else:
            row = submit(client, items)
            try:
                row = row if wait is None else client.wait(row.id, "leased", wait, renew=True)
            except KeyboardInterrupt:
                raise CommandError(
                    f"interrupted: {row.id} continues; `leasehold cancel {row.id}` ends it", INTERRUPTED
                ) from None
            print_result(row, describe_reservation(row), as_json=as_json)


def _read_file(path: Path) -> Any:
    from scheduler.model.input_texts import parse_json
    from scheduler.protocol.input_files import read_input_text

    try:
        text = sys.stdin.read() if str(path) == "-" else read_input_text(path)
        items = parse_json(text)
    except ValueError as error:
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
    if row.eta is not None:
        print_error(f"{row.id}: {describe_eta(row.eta, clock.now())}")
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
        _show(client.confirm(reservation, _find_token(client, reservation, token), slot=slot, as_of=at), as_json)


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


DEFAULT_TTL: Final = 60
"""Default of `leasehold run --ttl`: if the process that renews the lease is killed, the lease expires after this number
of seconds.
"""
AWAITED: Final = (*PHASES, "ended")
_POLL_SECONDS: Final = 1.0


@app.command(
    "run",
    epilog=example(
        "leasehold run --system x86_64-linux --cpus 2 -- make -j2",
        "leasehold run --pool linux -- sh -c 'ssh \"$LEASEHOLD_ADDRESS\" nproc'",
    ),
)
@with_options_of(describe_request, without={"restart"})
def run(
    items: Any,
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND", help="The command with its arguments.")],
    wait: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Longest wait for the lease, in seconds; default: no limit.", min=0),
    ] = None,
    wait_anyway: Annotated[
        bool,
        typer.Option(
            "--wait-anyway", help="Wait although no pool serves the reservation, or no slot could ever hold it."
        ),
    ] = False,
    timeout: Timeout = 30,
) -> None:
    """Run a command on this machine while holding a lease.

    The command submits a reservation, waits for its lease, renews the lease while COMMAND runs, and releases it at the
    end. If no slot and no launch could serve the reservation, it is cancelled, unless --wait-anyway is given. The lease
    is in COMMAND's environment (LEASEHOLD_ADDRESS, LEASEHOLD_TOKEN, ...). The exit status is that of COMMAND; 124: not
    leased in time, 125: the lease was lost and COMMAND killed, 126: not executable, 127: not found. The default of
    --ttl is 60 seconds.
    """
    if isinstance(items, list):
        raise CommandError("--file: expected one reservation, got a list", BAD_INPUT)
    from secrets import token_hex

    from leasehold.leased_command import OF_A_SIGNAL, CommandGroup, NotStarted, Signals, Stopped

    fields = {"id": f"r-{token_hex(8)}", "ttl": DEFAULT_TTL, **items}
    group = CommandGroup()
    with connect(timeout) as client:
        # This check comes before signals are handled, because a signal cancels the reservation, and another process may
        # hold it already.
        row = client.get(fields["id"])
        if row is not None and row.phase in {"leased", "revoking"}:
            raise CommandError(
                f"--id: expected a reservation that is not leased yet, got {row.id}, which is {row.phase}"
            )
        with Signals(group) as signals:
            try:
                status = _run(client, fields, command, group, signals, wait=wait, wait_anyway=wait_anyway)
            except Stopped as stopped:
                what = "interrupted" if stopped.number + OF_A_SIGNAL == INTERRUPTED else f"stopped by {stopped}"
                raise CommandError(
                    f"{what} before the command was started: {_give_up(client, fields['id'])}",
                    stopped.number + OF_A_SIGNAL,
                ) from None
            except NotStarted as error:
                raise CommandError(str(error), error.status) from None
    raise typer.Exit(status)


def _run(
    client: "Client",
    fields: dict[str, Any],
    command: list[str],
    group: Any,
    signals: Any,
    *,
    wait: float | None,
    wait_anyway: bool,
) -> int:
    """Submit the reservation in `fields`, wait for its lease, run the command and release the lease.

    Raises CommandError if the reservation is not leased within `wait` seconds, or cannot be served (unless
    `wait_anyway`).
    """
    from leasehold.leased_command import NOT_IN_TIME, LeasedCommand

    submit(client, fields)
    name, began = fields["id"], time.monotonic()
    with contextlib.ExitStack() as stack:
        try:
            with showing_why(client, name):
                lease = stack.enter_context(client.lease(wait=wait, wait_anyway=wait_anyway, **fields))
        except CannotBeServed as error:
            raise CommandError(f"{error}; {_give_up(client, name)} (--wait-anyway keeps it)") from None
        except (NotAnswered, Unavailable) as error:
            if wait is None or time.monotonic() - began < wait:
                raise
            raise CommandError(
                f"{error}; the wait for the lease is over: {_give_up(client, name)}", NOT_IN_TIME
            ) from None
        signals.pass_on()
        return LeasedCommand(client, lease, group, print_error).run(command, inherited())


def _give_up(client: "Client", name: str) -> str:
    """Cancel the reservation `name`, which is not leased yet. Return a sentence about the result."""
    try:
        client.cancel(name, timeout=5.0)
    except Refused:
        # The reservation has ended: Client.lease() cancels its reservation when it is interrupted before the lease.
        pass
    except LeaseholdError as error:
        return f"{name} could not be cancelled ({error}); `leasehold cancel {name}` cancels it"
    return f"{name} is cancelled"


@app.command("wait", epilog=example("leasehold wait build-7", "leasehold wait build-7 --for ended --timeout 600"))
def wait_for(
    reservation: LiveId,
    phase: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="PHASE",
            help=f"The awaited phase: {', '.join(PHASES)}, or ended (in any way).",
            autocompletion=complete_phases,
        ),
    ] = "leased",
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", metavar="SECONDS", help="Longest wait, in seconds; default: no limit.", min=0),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Wait until a reservation is leased or in a given phase.

    The exit status is 1 if the reservation does not reach the phase in time, or if it ends in another phase.
    """
    if phase not in AWAITED:
        raise typer.BadParameter(f"expected one of {', '.join(AWAITED)}, got {phase!r}", param_hint="--for")
    with connect() as client:
        try:
            with showing_why(client, reservation):
                row = _wait(client, reservation, phase, timeout)
        except KeyboardInterrupt:
            raise CommandError(f"interrupted: {reservation} stays as it is", INTERRUPTED) from None
    print_result(row, describe_reservation(row), as_json=as_json)


def _wait(client: "Client", name: str, phase: str, timeout: float | None) -> "Reservation":
    """Wait until the reservation `name` is in `phase`, and return it. If the view in Redis no longer has the
    reservation, ask a worker how it ended.

    Raises Ended if the reservation ended in another phase, and Unknown if no reservation has this id. `timeout`: the
    longest wait in seconds; None: no limit.
    """
    from leasehold.client.models import list_phases

    try:
        return client.wait(name, phase, timeout)
    except Unknown:
        row = next(iter(client.recall(name)), None)
        if row is None:
            raise
        if row.phase not in (list_phases(phase) or ()):
            raise Ended(row.id, row.phase, row.reason) from None
        return row


@contextmanager
def showing_why(client: "Client", name: str) -> Iterator[None]:
    """Within this context, show on the terminal why the reservation `name` waits. Without a terminal, show nothing."""
    if not sys.stderr.isatty():
        yield
        return
    over = threading.Event()
    thread = threading.Thread(target=_show_why, args=(client, name, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_POLL_SECONDS)
        show_progress("")


def _show_why(client: "Client", name: str, over: threading.Event) -> None:
    began = time.monotonic()
    while not over.wait(_POLL_SECONDS):
        try:
            found = client.explain(name)
            eta = "" if found.eta is None else f"; {describe_eta(found.eta, clock.now())}"
            text = str(found).splitlines()[0] + eta
        except LeaseholdError as error:
            text = str(error)
        if not over.is_set():
            show_progress(f"{text} ({show_seconds(time.monotonic() - began)})")


_ENVELOPE: Final = frozenset({"request", "reply_to"})
"""Keys of a request's document that belong to the message (its id and its reply address) and not to the request."""


def check(verb: str, document: Mapping[str, Any]) -> None:
    """Check the document of a request against the schema of `verb`, the name of the request, like `release`. A key with
    the value None counts as missing.

    Raises InvalidInputError with the faults that a worker would find.
    """
    from scheduler.model.command_schemas import SCHEMAS
    from scheduler.model.validation import read_document

    given = {name: value for name, value in document.items() if value is not None and name not in _ENVELOPE}
    read_document(SCHEMAS[verb], given)


def check_each(verb: str, field: str, names: Iterable[str]) -> None:
    """Check the requests that a command will send, one for each of `names`: a request `verb` whose field `field` has
    the name as its value. Raises InvalidInputError if a name is not valid.
    """
    for name in names:
        check(verb, {field: name})


def check_reservation(fields: Mapping[str, Any]) -> None:
    """Check the fields of a new reservation. The id may be missing, because the client then makes one. Raises
    InvalidInputError if a field is not valid.
    """
    given = {name: value for name, value in fields.items() if name != "key"}
    check("submit", given if given.get("id") is not None else {**given, "id": "new"})
    if fields.get("key") is not None:
        check("renew", {"reservation": "new", "key": fields["key"]})
