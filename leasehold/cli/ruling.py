"""Commands for leasehold.toml (write a template, check a file) and for the scheduling rules: apply a file, show present
and earlier versions, apply an earlier version again.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from leasehold.cli.completing import complete_versions
from leasehold.cli.connecting import adopt_stack, find_rules, find_version, open_store
from leasehold.cli.output import BAD_INPUT, NO_RULES, AsJson, CommandError, find_width, print_json, print_thing
from leasehold.cli.root import add_group, app, example
from leasehold.texts.values import show_time
from scheduler.protocol.visible import make_visible

if TYPE_CHECKING:
    from scheduler.model.validation import Fault

DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the changes and their consequences; apply nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
MOST_CHANGES = 3
"""Most changes that `leasehold rules history` shows of one version."""
_INDENT: Final = 2
group = add_group("rules", "Show the rules in force, and earlier ones.", "leasehold rules show")


@app.command(
    epilog=example(
        "leasehold apply leasehold.toml",
        "leasehold apply --dry-run leasehold.toml",
        "leasehold apply leasehold.toml --yes --json",
    )
)
def apply(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The configuration file, like leasehold.toml.")],
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Check a configuration file and put its rules in force.

    If machines go, leases end or accounts lose balance, the command asks on a terminal; elsewhere it refuses without
    --yes.
    """
    adopt_stack()
    from leasehold.cli.applying import apply_file

    apply_file(file, dry_run=dry_run, yes=yes, as_json=as_json)


@group.command("show", epilog=example("leasehold rules show", "leasehold rules show --version 3 --json"))
def show_rules(
    version: Annotated[
        int | None,
        typer.Option(
            help="Number of an earlier version of the rules; default: the rules in force.",
            min=1,
            autocompletion=complete_versions,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the rules in force, or an earlier version of them.

    The output is TOML, with the rules as they were applied.
    """
    with open_store() as store:
        shown = find_rules(store) if version is None else find_version(store, version)
    if as_json:
        print_json({"version": shown.version, "rules": shown.document})
        return
    from leasehold.texts.change_commands import format_toml

    # The text is never wrapped, because a TOML string must stay on one line.
    sys.stdout.write(f"# version {shown.version}\n{format_toml(shown.document)}\n")


@group.command(epilog=example("leasehold rules history", "leasehold rules history --limit 5 --json"))
def history(
    limit: Annotated[int, typer.Option(help="Show at most this many versions, the newest.", min=1, max=10_000)] = 20,
    as_json: AsJson = False,
) -> None:
    """List the versions of the rules, oldest first.

    A version has its time, its source and its first changes.
    """
    with open_store() as store:
        from scheduler.operations.rules.history import describe_history

        lines = describe_history(store, limit)
    if not lines:
        raise CommandError(NO_RULES)
    if as_json:
        print_json(lines)
        return
    width = find_width()
    for each in lines:
        by = f" by {each['source']}" if each["source"] else ""
        sys.stdout.write(make_visible(f"version {each['version']}, {show_time(each['applied_at'])}{by}") + "\n")
        sys.stdout.writelines(f"  {line}\n" for line in _list_changes(each["changes"], width))


def _list_changes(changes: list[str], width: int | None) -> Iterator[str]:
    """Yield the changes of one version as lines. A change that is wider than the terminal is continued before each of
    its values, never within one: a value that is too wide ends with an ellipsis.
    """
    most = float("inf") if width is None else width - _INDENT
    for change in map(make_visible, changes[:MOST_CHANGES]):
        path, colon, values = change.partition(": ")
        before, arrow, after = values.partition(" -> ")
        if len(change) <= most:
            yield change
            continue
        yield path + colon.rstrip()
        for value in (before, arrow.lstrip() + after):
            if value:
                yield "  " + (value if len(value) <= most - 2 else f"{value.partition('… (')[0][: int(most) - 3]}…")
    if not changes:
        yield "only defaults are written differently"
    if len(changes) > MOST_CHANGES:
        yield f"and {len(changes) - MOST_CHANGES} more (--json has all)"


@group.command(epilog=example("leasehold rules rollback 3 --dry-run", "leasehold rules rollback 3 --yes"))
def rollback(
    version: Annotated[
        int,
        typer.Argument(
            metavar="VERSION",
            help="A number from `leasehold rules history`.",
            min=1,
            autocompletion=complete_versions,
        ),
    ],
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Apply the rules of an earlier version again, as a new version.

    If machines go, leases end or accounts lose balance, the command asks on a terminal; elsewhere it refuses without
    --yes.
    """
    adopt_stack()
    from leasehold.cli.applying import apply_version

    apply_version(version, dry_run=dry_run, yes=yes, as_json=as_json)


@group.command(
    "set",
    epilog=example(
        "leasehold rules set pools.linux.max_slots=5", "leasehold rules set budgets.all.per_day=40 --dry-run"
    ),
)
def set_(
    values: Annotated[
        list[str], typer.Argument(metavar="KEY=VALUE...", help="A key of the rules, with a value as in leasehold.toml.")
    ],
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Change single keys of the rules in force, as a new version.

    Keys are dotted, values are TOML: pools.linux.labels.disk='"ssd"'. A list replaces the whole list. The next
    `leasehold apply` of a file replaces these values by those of the file. `leasehold rules rollback` restores the
    version before. If machines go, leases end or accounts lose balance, the command asks on a terminal; elsewhere it
    refuses without --yes.
    """
    adopt_stack()
    from leasehold.cli.applying import apply_values

    apply_values(values, dry_run=dry_run, yes=yes, as_json=as_json)


File = Annotated[
    Path | None,
    typer.Argument(
        metavar="FILE",
        help="The configuration file; default: the environment variable LEASEHOLD_CONFIG, else ./leasehold.toml.",
    ),
]
config_group = add_group("config", "Write and check leasehold.toml.", "leasehold config init")


@config_group.command(epilog=example("leasehold config check", "leasehold config check other.toml --json"))
def check(file: File = None, as_json: AsJson = False) -> None:
    """Check a configuration file; report errors and likely mistakes.

    The exit status is 2 if there are errors.
    """
    from workers.configuration import check_configuration, find_configuration, find_warnings, read_configuration

    faults = check_configuration(file)
    warnings: list[Fault] = []
    if not faults:
        from leasehold.cli.market import check_market

        configuration = read_configuration(file)
        faults, unchecked = check_market(configuration)
        from workers.ec2.patterns import find_refused

        warnings = (
            []
            if faults
            else [
                *find_warnings(configuration),
                *find_refused(configuration.rules, configuration.settings.aws),
                *unchecked,
            ]
        )
    found = find_configuration(file)
    if as_json:
        print_json({"file": str(found) if found else None, "faults": faults, "warnings": warnings})
        raise typer.Exit(BAD_INPUT if faults else 0)
    if faults:
        raise CommandError("\n".join(map(str, faults)), BAD_INPUT)
    lines = [f"warning: {warning}" for warning in warnings]
    print_thing(*lines, f"{found or 'no file, so the defaults'}: no faults")


@config_group.command(epilog=example("leasehold config init", "leasehold config init --minimal other.toml"))
def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")] = Path("leasehold.toml"),
    minimal: Annotated[bool, typer.Option("--minimal", help="Write one pool in about 20 lines.")] = False,
) -> None:
    """Write a leasehold.toml with every key and its default.

    Each key has a comment. An existing file is not overwritten. `leasehold up` starts a stack with the file.
    """
    from workers.config_template import write_template

    write_template(file, is_minimal=minimal)
    print_thing(f"wrote {file}")
