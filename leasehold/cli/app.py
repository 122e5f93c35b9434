"""The commands, put together. Nothing heavy is imported here or at the top of any command's file."""

from typing import Annotated

import typer

from leasehold.cli import (
    accounts,
    alive,
    configuring,
    hosting,
    listing,
    operating,
    reading,
    requesting,
    running,
    simulating,
    status,
)
from leasehold.cli.demo import demo
from leasehold.cli.doctor import doctor

app = typer.Typer(
    help="Leases slots on elastic fleets of EC2 instances.",
    epilog="A stack for trying out: `leasehold up`; then, in a second terminal: `leasehold status`.",
    add_completion=False,
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
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Say which version this is.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


running.register(app)
simulating.register(app)
requesting.register(app)
reading.register(app)
listing.register(app)
status.register(app)
alive.register(app)
operating.register(app)
accounts.register(app)
hosting.register(app)
configuring.register(app)
app.command()(demo)
app.command()(doctor)
