"""Commands of operators: slots in and out of use, rules, the schema."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leasehold.cli.checking import check_each
from leasehold.cli.completing import complete_slots
from leasehold.cli.connecting import adopt_stack, connect, load_settings, open_store
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

    from leasehold.results import Answer

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
    app.command(epilog=example("leasehold apply leasehold.toml"))(apply)
    app.command(epilog=example("leasehold migrate"))(migrate)
    rules = typer.Typer(help="Show the rules in force.", no_args_is_help=True, rich_markup_mode=None)
    rules.command("show", epilog=example("leasehold rules show", "leasehold rules show --json"))(show_rules)
    rules.callback()(_group)
    app.add_typer(rules, name="rules", epilog=example("leasehold rules show"))


def _group() -> None:
    """The rules in force: scheduler, pools, accounts."""


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


def apply(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A leasehold.toml.")], as_json: AsJson = False
) -> None:
    """Check a configuration file and put its rules in force."""
    adopt_stack()
    from leasehold.cli.applying import apply_file

    version, changed = apply_file(file)
    if as_json:
        print_json({"version": version, "changed": changed})
    else:
        print_thing(f"rules version {version}" + ("" if changed else ", unchanged"))


def show_rules(as_json: AsJson = False) -> None:
    """Show the rules in force, as they were applied."""
    stored = open_store().load_rules()
    if not stored.version:
        raise CommandError("no rules were applied yet: `leasehold apply FILE`")
    if as_json:
        print_json({"version": stored.version, "rules": stored.document})
        return
    from leasehold.cli.applying import format_toml

    print_thing(f"# version {stored.version}\n{format_toml(stored.document)}")


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
