"""Commands for leasehold.toml: write a template with comments, check a file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leasehold.cli.failures import BAD_INPUT, CommandError
from leasehold.cli.output import AsJson, print_json, print_thing
from leasehold.cli.root import add_group, example

if TYPE_CHECKING:
    from scheduler.model.validation import Fault

File = Annotated[
    Path | None,
    typer.Argument(
        metavar="FILE",
        help="The configuration file; default: the environment variable LEASEHOLD_CONFIG, else ./leasehold.toml.",
    ),
]
group = add_group("config", "Write and check leasehold.toml.", "leasehold config init")


@group.command(epilog=example("leasehold config check", "leasehold config check other.toml --json"))
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


@group.command(epilog=example("leasehold config init", "leasehold config init --minimal other.toml"))
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
