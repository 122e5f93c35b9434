"""The commands `leasehold run`, which holds a lease while another command runs, and `leasehold wait`, which waits for a
phase of a reservation.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from leasehold.cli.completing import PHASES, complete_phases
from leasehold.cli.connecting import connect
from leasehold.cli.failures import BAD_INPUT, INTERRUPTED, CommandError, print_error
from leasehold.cli.interrupts import inherited
from leasehold.cli.output import AsJson, Timeout, print_result
from leasehold.cli.requesting import LiveId, describe_request, describe_reservation, submit
from leasehold.cli.root import app, example
from leasehold.cli.sharing import with_options_of
from leasehold.cli.waiting import show_progress
from leasehold.errors import CannotBeServed, Ended, LeaseholdError, NotAnswered, Refused, Unavailable, Unknown
from leasehold.texts.values import show_seconds

if TYPE_CHECKING:
    from leasehold.client.client import Client
    from leasehold.client.lease import Lease
    from leasehold.client.models import Reservation

DEFAULT_TTL: Final = 60
"""Default of `leasehold run --ttl`: if the process that renews the lease is killed, the lease expires after this number
of seconds.
"""
AWAITED: Final = (*PHASES, "ended")
_POLL_SECONDS: Final = 1.0
_CANCEL_SECONDS: Final = 5.0


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
                text = f"{what} before the command was started: {_give_up(client, fields['id'])}"
                raise CommandError(text, stopped.number + OF_A_SIGNAL) from None
            except NotStarted as error:
                raise CommandError(str(error), error.status) from None
    raise typer.Exit(status)


def _run(client: "Client", fields: dict[str, Any], command: list[str], group: Any, signals: Any, **waiting: Any) -> int:
    from leasehold.leased_command import LeasedCommand

    submit(client, fields)
    with contextlib.ExitStack() as stack:
        lease = _enter(client, fields, stack, **waiting)
        signals.pass_on()
        return LeasedCommand(client, lease, group, print_error).run(command, inherited())


def _enter(
    client: "Client",
    fields: dict[str, Any],
    stack: contextlib.ExitStack,
    *,
    wait: float | None,
    wait_anyway: bool,
) -> "Lease":
    """Submit the reservation in `fields`, wait for its lease and return the lease. The lease is released when `stack`
    closes.

    Raises CommandError if the reservation is not leased within `wait` seconds, or cannot be served (unless
    `wait_anyway`).
    """
    from leasehold.leased_command import NOT_IN_TIME

    name, began = fields["id"], time.monotonic()
    try:
        with showing_why(client, name):
            return stack.enter_context(client.lease(wait=wait, wait_anyway=wait_anyway, **fields))
    except CannotBeServed as error:
        raise CommandError(f"{error}; {_give_up(client, name)} (--wait-anyway keeps it)") from None
    except (NotAnswered, Unavailable) as error:
        if wait is None or time.monotonic() - began < wait:
            raise
        raise CommandError(f"{error}; the wait for the lease is over: {_give_up(client, name)}", NOT_IN_TIME) from None


def _give_up(client: "Client", name: str) -> str:
    """Cancel the reservation `name`, which is not leased yet. Return a sentence about the result."""
    try:
        client.cancel(name, timeout=_CANCEL_SECONDS)
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
            text = str(client.explain(name)).splitlines()[0]
        except LeaseholdError as error:
            text = str(error)
        if not over.is_set():
            show_progress(f"{text} ({show_seconds(time.monotonic() - began)})")
