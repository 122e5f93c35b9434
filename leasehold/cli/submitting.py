"""`leasehold submit`: submit a reservation with a command, which the host of its lease runs, and follow the output."""

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from leasehold.cli.connecting import connect
from leasehold.cli.output import (
    BAD_INPUT,
    INTERRUPTED,
    AsJson,
    CommandError,
    Timeout,
    choose,
    parse_number,
    parse_pairs,
    print_error,
    print_json,
    print_result,
    print_thing,
)
from leasehold.cli.requesting import check_reservation, describe_request, describe_reservation, submit
from leasehold.cli.root import app, example, with_options_of
from leasehold.errors import LeaseholdError, NotAnswered, Unavailable
from scheduler.protocol.visible import make_visible

if TYPE_CHECKING:
    from leasehold.client.client import Client
    from leasehold.client.models import Command, Execution, Reservation

Wait = Annotated[
    bool, typer.Option("--wait", help="Print its output until it has ended; the exit status is that of COMMAND.")
]
OF_A_SIGNAL: Final = 128
"""The exit status of a shell for a command that a signal ended is this plus the number of the signal."""
NO_OUTCOME: Final = 125
"""The exit status if the reservation ended without an exit code of its command, as for `leasehold run`."""
CANNOT_RUN: Final = 126
POLL_SECONDS: Final = 1.0
MOST_HELD_BACK: Final = 4096
"""Bytes of an unfinished line from which on it is printed at once, because a host reports the last 8 KiB only."""
_ENDED: Final = frozenset({"released", "cancelled", "expired", "failed"})


@app.command(
    "submit",
    epilog=example(
        "leasehold submit --pool lab --cpus 2 -- make -C /srv/shop test",
        "leasehold submit --pool lab --id night-7 --env CI=1 --wait -- ./run.sh",
        "leasehold logs --reservation night-7 --follow",
    ),
)
@with_options_of(describe_request)
def submit_command(  # noqa: PLR0913, PLR0917 - an option each
    items: Any,
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND", help="The command with its arguments.")],
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A variable of its environment. May be repeated."),
    ] = None,
    cwd: Annotated[str | None, typer.Option(metavar="FOLDER", help="Its working directory on the host.")] = None,
    user: Annotated[str | None, typer.Option(metavar="NAME", help="The user of the host for its processes.")] = None,
    grace: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Time from the signal TERM to KILL when it has to end, like 30s."),
    ] = None,
    image: Annotated[str | None, typer.Option(help="The container image in which it runs.")] = None,
    on_exit: Annotated[
        str,
        typer.Option(
            "--on-exit", metavar="RULE", help="fail: only exit code 0 releases the reservation; release: every code."
        ),
    ] = "fail",
    wait: Wait = False,
    timeout: Timeout = 30,
    as_json: AsJson = False,
) -> None:
    """Submit a command that the host of the lease runs.

    The command prints the id of the reservation and returns. The agent of the host (`leasehold host run`) starts
    COMMAND when the lease begins, keeps the lease, and releases it at the end. Nothing on this machine has to go on:
    `leasehold run` runs a command on this machine instead, and `leasehold reserve` only reserves. The submitter needs
    the right `run` (`leasehold principals may`), except on a stack of `leasehold up`.

    With --wait the exit status is that of COMMAND, 128 and the signal's number if a signal ended it, 126 if the host
    could not start it, and 125 if the reservation ended otherwise.
    """
    if isinstance(items, list):
        raise CommandError("--file: expected one reservation, got a list", BAD_INPUT)
    choose("--on-exit", on_exit, ("fail", "release"))
    given: dict[str, Any] = {
        "argv": command,
        "env": parse_pairs("--env", env) if env else None,
        "cwd": cwd,
        "user": user,
        "grace": None if grace is None else parse_number(grace),
        "image": image,
        "on_exit": on_exit,
    }
    fields = {**items, "run": {name: value for name, value in given.items() if value is not None}}
    check_reservation(fields)
    with connect(timeout) as client:
        _show(client, submit(client, fields), wait=wait, as_json=as_json)


@app.command("rerun", epilog=example("leasehold rerun night-7", "leasehold rerun night-7 --id night-7b --wait"))
def rerun(
    reservation: Annotated[
        str, typer.Argument(metavar="RESERVATION", help="Id of a reservation with a command, which may have ended.")
    ],
    new_id: Annotated[
        str | None, typer.Option("--id", help="Id of the new reservation; default: a random one.")
    ] = None,
    wait: Wait = False,
    timeout: Timeout = 30,
    as_json: AsJson = False,
) -> None:
    """Submit the command of an earlier reservation again.

    The new reservation asks for the same resources and labels, and has the same environment, which is not shown. Only
    the submitter of the earlier reservation and operators may do so, and need the right `run`. Output and exit status
    are those of `leasehold submit`.
    """
    with connect(timeout) as client:
        _show(client, client.rerun(reservation, new_id=new_id), wait=wait, as_json=as_json)


def _show(client: "Client", row: "Reservation", *, wait: bool, as_json: bool) -> None:
    """Print a submitted reservation; with `wait`, follow the output of its command and exit with its status."""
    if not wait:
        print_result(row, describe_reservation(row), as_json=as_json)
        return
    print_error(f"{row.id} is submitted")
    found = follow(client, row.id, goes_on=True)
    if as_json:
        print_json(found)
    raise typer.Exit(find_status(found))


def print_output(name: str, *, follows: bool) -> None:
    """Print the output of the command of a reservation; with `follows`, until it has ended."""
    with connect() as client:
        follow(client, name, goes_on=follows)


def follow(client: "Client", name: str, *, goes_on: bool) -> "Command":
    """Print the end of the output of a reservation's command; with `goes_on`, print more until the reservation has
    ended, whatever interrupts it meanwhile. Return the state of the command. Raises Refused, and without `goes_on`
    NotAnswered or Unavailable.
    """
    printer, is_answered = OutputPrinter(print_thing), True
    try:
        while True:
            try:
                found = client.command(name)
            except (NotAnswered, Unavailable) as error:
                if not goes_on:
                    raise
                if is_answered:
                    print_error(f"{error}; {name} is asked for until an answer comes")
                is_answered = False
            else:
                is_answered = True
                is_last = not goes_on or is_over(client, found)
                printer.print_new(found, is_last=is_last)
                # The reader of a pipe gets the lines now, not at the end of the command.
                sys.stdout.flush()
                if is_last:
                    return found
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        raise CommandError(f"interrupted: {name} continues; `leasehold cancel {name}` ends it", INTERRUPTED) from None


def is_over(client: "Client", found: "Command") -> bool:
    """Return whether the reservation has ended, and its restart policy does not run the command again."""
    if found.phase not in _ENDED:
        return False
    try:
        row = client.get(found.reservation) if found.phase == "failed" else None
    except LeaseholdError:
        row = None
    return row is None or row.is_over


def find_status(found: "Command") -> int:
    """Return the exit status for the outcome of a command."""
    if found.why == "exited" and found.exit_code is not None:
        return found.exit_code
    if found.why == "not_started":
        return CANNOT_RUN
    if found.why in {"signal", "out_of_memory"} and found.signal is not None:
        return OF_A_SIGNAL + found.signal
    return NO_OUTCOME


class OutputPrinter:
    """Prints the output of the runs of a command as it grows. A host reports only the end of the output: what came
    between two reports may be missing, and is replaced by a line that counts it.
    """

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._seen: dict[tuple[str, int], int] = {}
        """Component and token of a run -> how many bytes of its output are printed."""
        self._ended: set[tuple[str, int]] = set()

    def print_new(self, found: "Command", *, is_last: bool = False) -> None:
        """Print what the runs have printed since the last call, and how they ended. A line that a run has not finished
        is printed with its end. `is_last`: no call follows.
        """
        from scheduler.model.runs import describe_end

        is_gang = len({each.component for each in found.executions}) > 1
        for run in found.executions:
            name = f"{run.component}: " if is_gang else ""
            for line in self._list_lines(run, is_whole=is_last or run.state == "ended"):
                self._write(f"{name}{make_visible(line, multiline=True)}")
            key = run.component, run.token
            if run.state == "ended" and key not in self._ended:
                self._ended.add(key)
                ended = describe_end(run.why, run.exit_code, run.signal)
                print_error(f"{run.component} on {run.slot}: {ended}{'' if run.error is None else f': {run.error}'}")

    def _list_lines(self, run: "Execution", *, is_whole: bool) -> list[str]:
        key = run.component, run.token
        new = run.bytes - self._seen.get(key, 0)
        tail = run.tail.encode()
        shown = tail[-new:] if new > 0 else b""
        rest = 0 if is_whole else len(shown.rpartition(b"\n")[2])
        if rest > MOST_HELD_BACK:
            rest = 0
        if not (shown := shown[: len(shown) - rest]):
            return []
        self._seen[key] = run.bytes - rest
        missing = [f"[{new - len(tail)} bytes before are not kept]"] if new > len(tail) else []
        return [*missing, *shown.decode(errors="replace").removesuffix("\n").split("\n")]
