"""Commands for operators: take slots out of use and back into use, update the schema."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leasehold.cli.checking import check_each
from leasehold.cli.completing import complete_slots
from leasehold.cli.connecting import connect, load_settings
from leasehold.cli.failures import send_each
from leasehold.cli.output import AsJson, example, print_json, print_thing
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


def register(app: typer.Typer) -> None:
    """Add the commands."""
    waited = example("leasehold cordon linux-1", "leasehold cordon linux-1 --wait 600")
    app.command(cls=WaitingCommand, epilog=waited)(cordon)
    app.command(epilog=example("leasehold uncordon linux-1"))(uncordon)
    waited = example("leasehold drain linux-1", "leasehold drain linux-1 linux-2 --wait 600")
    app.command(cls=WaitingCommand, epilog=waited)(drain)
    app.command(epilog=example("leasehold migrate"))(migrate)


def cordon(names: SlotIds, wait: Wait = None, timeout: Timeout = None, as_json: AsJson = False) -> None:
    """Cordon slots: they take no new leases.

    Their leases continue. Ctrl-C ends a wait and leaves the slots cordoned.
    """
    check_each("cordon", "slot", names)
    patience = find_patience(wait, timeout)
    sent: list[str] = []
    with connect() as client, reports_interrupt("stays cordoned", sent):
        send_each(client.cordon, names, lambda answer: _show(answer, as_json, sent))
        if patience is not None:
            await_free(client, names, patience)


def uncordon(names: SlotIds, as_json: AsJson = False) -> None:
    """Uncordon slots: they take leases again."""
    check_each("uncordon", "slot", names)
    with connect() as client:
        send_each(client.uncordon, names, lambda answer: _show(answer, as_json, []))


def drain(names: SlotIds, wait: Wait = None, timeout: Timeout = None, as_json: AsJson = False) -> None:
    """Drain slots: when their leases end, their machines go.

    Ctrl-C ends a wait, not the draining.
    """
    check_each("drain", "slot", names)
    patience = find_patience(wait, timeout)
    sent: list[str] = []
    with connect() as client, reports_interrupt("continues to drain", sent):
        found = [client.slot(name) for name in names] if patience is not None else []
        send_each(client.drain, names, lambda answer: _show(answer, as_json, sent))
        if patience is not None:
            await_gone(client, names, {slot.id: slot.epoch for slot in found if slot is not None}, patience)


def _show(answer: "Answer", as_json: bool, sent: list[str]) -> None:
    """Print the answer about a slot and add its id to `sent`."""
    if answer.slot is not None:
        sent.append(answer.slot)
    if as_json:
        print_json(answer)
    else:
        print_thing(f"{answer.slot} {answer.state}" + (" cordoned" if answer.cordoned else ""))


def migrate(as_json: AsJson = False) -> None:
    """Create the tables of the database, or bring them up to date."""
    url = load_settings().database_url
    from scheduler.store.migrating import migrate as migrate_

    _make_folder(url)
    applied = migrate_(url)
    if as_json:
        print_json({"applied": applied})
    else:
        print_thing("\n".join(f"applied {each}" for each in applied) or "nothing to do")


def _make_folder(url: str) -> None:
    """Make the folder `.leasehold` of the default database if it is missing."""
    path = Path(url.removeprefix("sqlite:///"))
    if url.startswith("sqlite:///") and path.parent.name == ".leasehold" and path.parent.parent.is_dir():
        path.parent.mkdir(exist_ok=True)
