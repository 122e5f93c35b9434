"""Commands for operators: cordon, uncordon and drain slots, and update the schema of the database."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leasehold.cli.checking import check_each
from leasehold.cli.completing import complete_slots
from leasehold.cli.connecting import connect, load_settings
from leasehold.cli.failures import send_each
from leasehold.cli.output import AsJson, print_result, print_slot
from leasehold.cli.root import app, example
from leasehold.cli.waiting import (
    Timeout,
    Wait,
    WaitingCommand,
    await_free,
    await_gone,
    find_patience,
    reports_interrupt,
)

if TYPE_CHECKING:
    from leasehold.client.models import Answer

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
            await_free(client, names, patience)


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
            await_gone(client, names, machines, patience)


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
