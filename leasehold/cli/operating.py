"""Commands for operators: cordon, uncordon and drain slots, with the wait for their leases or machines to end, and
update the schema of the database. Source of the wait: Orchard's `pause --wait`.
"""

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand

from leasehold.cli.completing import complete_slots
from leasehold.cli.connecting import connect, load_settings
from leasehold.cli.output import (
    INTERRUPTED,
    AsJson,
    CommandError,
    print_result,
    print_slot,
    send_each,
    shorten,
    show_progress,
)
from leasehold.cli.requesting import check_each
from leasehold.cli.root import app, example
from leasehold.texts.values import show_seconds

if TYPE_CHECKING:
    from leasehold.client.client import Client
    from leasehold.client.models import Answer

Wait = Annotated[
    float | None,
    typer.Option(
        metavar="[SECONDS]",
        help="Wait until the slots hold no lease (drain: and their machines are gone): at most SECONDS, else without"
        " a limit.",
        min=0,
    ),
]
Timeout = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="Longest wait, in seconds; implies --wait.", min=0)
]
_POLL_SECONDS: Final = 0.2
_NUMBER: Final = re.compile(r"\+?(inf(inity)?|[0-9._]+(e[+-]?[0-9]+)?)", re.IGNORECASE)


class WaitingCommand(TyperCommand):
    """A command with the option `--wait [SECONDS]`. Without a number the wait has no time limit."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Add an infinite number of seconds after each `--wait` that has no number, then parse `args`."""
        completed: list[str] = []
        for index, arg in enumerate(args):
            completed.append(arg)
            following = args[index + 1] if index + 1 < len(args) else "-"
            is_named = any(not each.startswith("-") for each in args[:index])
            # The next argument is the value of --wait if it is a number, or if a slot was named before --wait.
            has_value = not following.startswith("-") and (is_named or _NUMBER.fullmatch(following))
            if arg == "--wait" and not has_value:
                completed.append(str(math.inf))
        return super().parse_args(ctx, completed)


def find_patience(wait: float | None, timeout: float | None) -> float | None:
    """Return the longest wait in seconds: the shorter one of the options --wait and --timeout. Return None if neither
    is given, because the command then does not wait.
    """
    given = [each for each in (wait, timeout) if each is not None]
    return min(given) if given else None


@contextmanager
def reports_interrupt(what_stays: str, slots: list[str]) -> Iterator[None]:
    """Turn Ctrl-C within this context into CommandError with exit status 130. `slots`: ids of the slots changed so far;
    the caller may extend the list within the context. `what_stays`: their lasting state, like "stays cordoned".

    Example of the message: "interrupted by Ctrl-C: slot linux-1 linux-2 stays cordoned". If `slots` is empty, the
    message reports that no slot was changed.
    """
    try:
        yield
    except KeyboardInterrupt:
        known = f": slot {' '.join(slots)} {what_stays}" if slots else " before a slot was changed, as far as is known"
        raise CommandError(f"interrupted by Ctrl-C{known}", INTERRUPTED) from None


class _Leases:
    """The leases on some slots, read again and again while a command waits for their end.

    The list of all reservations may be long. It is read only by the first call and when no known lease is left; in
    between only the reservations with a known lease are read.
    """

    def __init__(self, client: "Client", names: set[str]) -> None:
        self._client, self._names = client, names
        self._holders: dict[str, list[str]] = {}

    def describe(self) -> str:
        """Return a text that names the slots which still hold leases, and the reservations of these leases; "" if there
        are none.
        """
        known = {id_ for ids in self._holders.values() for id_ in ids}
        self._sort(row for id_ in sorted(known) if (row := self._client.get(id_)) is not None)
        if not self._holders:
            self._sort(self._client.list(["leased", "revoking"]))
        return ", ".join(
            f"{slot} holds {shorten(ids, 5, before_more='')}" for slot, ids in sorted(self._holders.items())
        )

    def _sort(self, rows: Iterable[Any]) -> None:
        self._holders = {}
        for row in rows:
            for slot in {lease.slot for lease in row.leases} & self._names:
                self._holders.setdefault(slot, []).append(row.id)


def _await(describe: Callable[[], str], seconds: float, *, late: str) -> None:
    began = time.monotonic()
    try:
        while left := describe():
            waited = time.monotonic() - began
            if waited >= seconds:
                raise CommandError(f"slots are {late} after {seconds:g} s: {left}")
            show_progress(f"{left} ({show_seconds(waited)})")
            # Polling: readers of the view get no notice of changes.
            time.sleep(min(_POLL_SECONDS, seconds - waited))
    finally:
        show_progress("")


SlotIds = Annotated[
    list[str],
    typer.Argument(metavar="SLOT...", help="Ids of slots, like linux-1.", autocompletion=complete_slots),
]


def _show(answer: "Answer", as_json: bool, sent: list[str]) -> None:
    """Print a worker's answer about a slot, and append the id of the slot to `sent`, the slots that the command has
    changed so far.
    """
    sent += [answer.slot] if answer.slot is not None else []
    print_slot(answer, as_json)


@app.command(cls=WaitingCommand, epilog=example("leasehold cordon linux-1", "leasehold cordon linux-1 --wait 600"))
def cordon(names: SlotIds, wait: Wait = None, timeout: Timeout = None, as_json: AsJson = False) -> None:
    """Cordon slots: they take no new leases.

    Present leases of the slots continue. With --wait the command returns when the slots hold no lease. Ctrl-C ends the
    wait; the slots stay cordoned.
    """
    check_each("cordon", "slot", names)
    patience = find_patience(wait, timeout)
    sent: list[str] = []
    with connect() as client, reports_interrupt("stays cordoned", sent):
        send_each(client.cordon, names, lambda answer: _show(answer, as_json, sent))
        if patience is not None:
            _await(_Leases(client, set(names)).describe, patience, late="not free")


@app.command(epilog=example("leasehold uncordon linux-1"))
def uncordon(names: SlotIds, as_json: AsJson = False) -> None:
    """Uncordon slots: they take leases again."""
    check_each("uncordon", "slot", names)
    with connect() as client:
        send_each(client.uncordon, names, lambda answer: print_slot(answer, as_json))


@app.command(
    cls=WaitingCommand, epilog=example("leasehold drain linux-1", "leasehold drain linux-1 linux-2 --wait 600")
)
def drain(names: SlotIds, wait: Wait = None, timeout: Timeout = None, as_json: AsJson = False) -> None:
    """Drain slots: their machines end after the last lease.

    With --wait the command returns when the machines are gone. Ctrl-C ends the wait; the slots continue to drain.
    """
    check_each("drain", "slot", names)
    patience = find_patience(wait, timeout)
    sent: list[str] = []
    with connect() as client, reports_interrupt("continues to drain", sent):
        # The epochs are read before the request, so that a later machine of the same slot does not prolong the wait.
        slots = map(client.slot, names if patience is not None else ())
        machines = {slot.id: slot.epoch for slot in slots if slot is not None}
        send_each(client.drain, names, lambda answer: _show(answer, as_json, sent))
        if patience is not None:
            leases = _Leases(client, set(names))

            def describe() -> str:
                return leases.describe() or ", ".join(
                    f"{slot.id} is {slot.state}"
                    for slot in map(client.slot, names)
                    if slot is not None and slot.state not in {"empty", "error"} and slot.epoch == machines.get(slot.id)
                )

            _await(describe, patience, late="not drained")


@app.command(epilog=example("leasehold migrate"))
def migrate(as_json: AsJson = False) -> None:
    """Create the tables of the database, or bring them up to date."""
    url = load_settings().database_url
    from scheduler.store.migrating import migrate as migrate_

    folder = Path(url.removeprefix("sqlite:///")).parent
    if url.startswith("sqlite:///") and folder.name == ".leasehold" and folder.parent.is_dir():
        # The folder of the default database may be missing before the first start.
        folder.mkdir(exist_ok=True)
    applied = migrate_(url)
    text = "\n".join(f"applied {each}" for each in applied) or "nothing to do"
    print_result({"applied": applied}, text, as_json=as_json)
