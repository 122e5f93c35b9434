"""Commands of operators: slots in and out of use, the schema."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leasehold.cli.checking import check_each
from leasehold.cli.completing import complete_slots
from leasehold.cli.connecting import connect, load_settings
from leasehold.cli.failures import FAILED, CommandError
from leasehold.cli.output import AsJson, example, print_json, print_thing
from leasehold.cli.waiting import (
    Timeout,
    Wait,
    WaitingCommand,
    await_free,
    await_gone,
    find_patience,
    said_on_interrupt,
)
from leasehold.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Callable

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

    The leases that they hold run on. Ctrl-C ends a wait and leaves the slots cordoned.
    """
    check_each("cordon", "slot", names)
    patience = find_patience(wait, timeout)
    said: list[str] = []
    with connect() as client, said_on_interrupt("stays cordoned", said):
        _say(client.cordon, names, as_json, said)
        if patience is not None:
            await_free(client, names, patience)


def uncordon(names: SlotIds, as_json: AsJson = False) -> None:
    """Uncordon slots: they take leases again."""
    check_each("uncordon", "slot", names)
    with connect() as client:
        _say(client.uncordon, names, as_json, [])


def drain(names: SlotIds, wait: Wait = None, timeout: Timeout = None, as_json: AsJson = False) -> None:
    """Drain slots: their leases run out, then their machines go.

    Ctrl-C ends a wait, not the draining.
    """
    check_each("drain", "slot", names)
    patience = find_patience(wait, timeout)
    said: list[str] = []
    with connect() as client, said_on_interrupt("goes on draining", said):
        found = [client.slot(name) for name in names] if patience is not None else []
        _say(client.drain, names, as_json, said)
        if patience is not None:
            await_gone(client, names, {slot.id: slot.epoch for slot in found if slot is not None}, patience)


def _say(word: "Callable[[str], Answer]", names: list[str], as_json: bool, said: list[str]) -> None:
    """Say it of each slot; those that were heard are added to `said`."""
    refused: list[str] = []
    for name in names:
        try:
            answer = word(name)
        except Refused as error:
            refused.append(str(error))
            continue
        said.append(name)
        if as_json:
            print_json(answer)
        else:
            print_thing(f"{answer.slot} {answer.state}" + (" cordoned" if answer.cordoned else ""))
    if refused:
        raise CommandError("\n".join(refused), FAILED)


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
    """The default database lies in `.leasehold`, which may not be there yet."""
    path = Path(url.removeprefix("sqlite:///"))
    if url.startswith("sqlite:///") and path.parent.name == ".leasehold" and path.parent.parent.is_dir():
        path.parent.mkdir(exist_ok=True)
