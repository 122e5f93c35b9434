"""The `leasehold` command without its subcommands. The other files of this package add their commands to `app`; see
`leasehold.cli.program`.
"""

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "A stack on this machine": ("up", "down", "logs", "demo", "emulate-ec2"),
    "Reservations": (
        *("reserve", "run", "submit", "rerun", "list", "get", "explain", "wait", "priority", "cancel"),
        *("renew", "surrender", "release", "confirm", "absent", "idle"),
    ),
    "Slots and hosts": ("slots", "cordon", "uncordon", "drain", "host"),
    "Rules and accounts": ("config", "apply", "rules", "accounts", "costs", "prices", "offers"),
    "Operations": ("status", "top", "events", "doctor", "alive", "migrate", "backup", "restore", "principals"),
    "Planning": ("forecasts", "runtimes", "snapshot", "simulate"),
    "Help": ("help",),
}
"""The sections of `leasehold --help`, in their order: title -> names of the commands."""


class GroupedCommands(TyperGroup):
    """The group of all commands, which `leasehold --help` lists in the sections of `GROUPS`. It works without the
    library rich, whose import would slow each start.
    """

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - as its base has it
        """Write the list of commands for `leasehold --help` into `formatter`, section by section. typer calls this
        method.
        """
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


@app.callback(invoke_without_command=True)
def _begin(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as find_version

        typer.echo(f"leasehold {find_version('leasehold')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def example(*lines: str) -> str:
    """Return the last part of a command's help: `lines` as examples to copy, which are not wrapped."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


@app.command("help", epilog=example("leasehold help", "leasehold help reserve", "leasehold help accounts set"))
def help_(
    context: typer.Context,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[COMMAND]...", help="The command; default: all.")
    ] = None,
) -> None:
    """Print the help of a command."""
    shown: Any = context.parent
    for word in words or ():
        group = shown.command
        if not hasattr(group, "get_command"):
            raise typer.BadParameter(f"{shown.command_path} has no commands of its own, got {word!r}")
        # An unknown name is refused as it is where the command itself is typed.
        _, command, _ = group.resolve_command(shown, [word])
        shown = context.__class__(command, info_name=word, parent=shown)
    typer.echo(shown.get_help())


def add_group(name: str, help_: str, line: str) -> typer.Typer:
    """Add a group of commands, like `leasehold host`, and return it. `help_`: the description of the group; `line`: the
    example in its help.
    """
    group = typer.Typer(
        help=help_, callback=_begin_group, invoke_without_command=True, no_args_is_help=False, rich_markup_mode=None
    )
    app.add_typer(group, name=name, epilog=example(line))
    return group


def _begin_group(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def with_options_of(
    describe: Callable[..., Any], without: Collection[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command the options of the function `describe`, before the command's own options.

    The command gets the result of `describe` as its first argument. A parameter of `describe` that `without` names does
    not become an option.
    """
    parameters = inspect.signature(describe).parameters
    described = {name: each for name, each in parameters.items() if name not in without}

    def extend(command: Callable[..., None]) -> Callable[..., None]:
        own = dict(list(inspect.signature(command).parameters.items())[1:])

        def with_options(**given: Any) -> None:
            made = describe(**{name: given[name] for name in described})
            command(made, **{name: given[name] for name in own})

        with_options.__doc__ = command.__doc__
        # typer reads the signature. Keyword-only parameters may have no default after others that have one.
        options = [each.replace(kind=each.KEYWORD_ONLY) for each in {**described, **own}.values()]
        with_options.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
        return with_options

    return extend
