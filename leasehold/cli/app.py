"""The `leasehold` command with all its subcommands.

Every command file imports only light modules at its top, because each start and each completion imports all of them.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from leasehold.cli import (
    accounts,
    alive,
    backups,
    configuring,
    holding,
    hosting,
    listing,
    logs,
    operating,
    principals,
    reading,
    requesting,
    ruling,
    running,
    simulating,
    status,
)
from leasehold.cli.demo import demo
from leasehold.cli.doctor import doctor

GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "A stack on this machine": ("up", "down", "logs", "demo", "emulate-ec2"),
    "Reservations": (
        *("reserve", "run", "list", "get", "explain", "wait", "priority", "cancel"),
        *("renew", "surrender", "release", "confirm", "absent", "idle"),
    ),
    "Slots and hosts": ("slots", "cordon", "uncordon", "drain", "host"),
    "Rules and accounts": ("config", "apply", "rules", "accounts"),
    "Operations": ("status", "events", "doctor", "alive", "migrate", "backup", "restore", "principals"),
    "Planning": ("snapshot", "simulate"),
}
"""Title -> commands, in the order of `leasehold --help`."""


class GroupedCommands(TyperGroup):
    """Shows the commands in the groups of `GROUPS`. It needs no rich, whose import would slow each start."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - as its base has it
        """See TyperGroup.format_commands."""
        longest = max(map(len, self.commands))
        width = formatter.width - 6 - longest
        left = dict(self.commands)
        sections = {
            title: [(name, left.pop(name)) for name in names if name in left] for title, names in GROUPS.items()
        }
        for title, commands in (*sections.items(), ("Other commands", list(left.items()))):
            rows = [(name.ljust(longest), each.get_short_help_str(width)) for name, each in commands if not each.hidden]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


app = typer.Typer(
    cls=GroupedCommands,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Lease slots on elastic fleets of EC2 instances.",
    epilog="To try it out: `leasehold up`; then, in a second terminal: `leasehold status`.",
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    no_args_is_help=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"leasehold {version('leasehold')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _begin(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001 - its callback acts
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


running.register(app)
simulating.register(app)
requesting.register(app)
holding.register(app)
reading.register(app)
listing.register(app)
logs.register(app)
status.register(app)
alive.register(app)
operating.register(app)
backups.register(app)
ruling.register(app)
accounts.register(app)
principals.register(app)
hosting.register(app)
configuring.register(app)
app.command()(demo)
app.command()(doctor)
