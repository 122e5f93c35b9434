"""The commands `leasehold principals …`, which add, list and remove principals (the senders of messages) and change
their keys. They read and write the database themselves, without a worker.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Final

import typer

from leasehold.cli.connecting import open_store
from leasehold.cli.output import (
    BAD_INPUT,
    AsJson,
    CommandError,
    choose,
    parse_seconds,
    print_json,
    print_result,
    print_table,
    print_thing,
)
from leasehold.cli.root import add_group, example
from leasehold.texts.values import show_time

if TYPE_CHECKING:
    from scheduler.ports import StoredPrincipal

ROLES: Final = ("producer", "operator", "host", "reader")
RIGHTS: Final = ("run",)
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the principal.")]
KeyFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write the key to this file (mode 0600); default: print it."),
]
group = add_group(
    "principals",
    "Show and manage the senders of messages and their keys.",
    "leasehold principals list",
)


@group.command(
    epilog=example(
        "leasehold principals add ci --role producer --account ci --key-file ci.key",
        "leasehold principals add ci --role producer --may run --key-file ci.key",
        "leasehold principals add anna --role operator --key-file anna.key",
        "leasehold principals add lab-1 --role host --key-file lab-1.key",
    )
)
def add(
    name: Name,
    role: Annotated[str, typer.Option(metavar="ROLE", help=f"Role of the principal: {', '.join(ROLES)}.")],
    account: Annotated[
        list[str] | None,
        typer.Option(metavar="ACCOUNT", help="Quota account that a producer may submit for. May be repeated."),
    ] = None,
    may: Annotated[
        list[str] | None,
        typer.Option(
            "--may", metavar="RIGHT", help="Right of a producer or operator: run (submit commands that hosts run)."
        ),
    ] = None,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Add a principal and print its key, or write it to a file."""
    from scheduler.operations.principals import add_principal

    choose("--role", role, ROLES)
    for right in may or ():
        choose("--may", right, RIGHTS)
    with _writing(key_file, replaces=False) as file, open_store() as store:
        added = add_principal(store, {"name": name, "role": role, "accounts": account or [], "rights": may or []})
        _hand_out(added, store.read_cluster().identity, file, key_file, as_json)


@group.command("list", epilog=example("leasehold principals list", "leasehold principals list --json"))
def list_(as_json: AsJson = False) -> None:
    """List the principals, without their keys."""
    with open_store() as store:
        found = [_describe(row) for row in store.find_principals()]
    if as_json:
        print_json(found)
        return
    rows = [
        (
            each["name"],
            each["role"],
            " ".join(each["accounts"]),
            " ".join(each["rights"]),
            show_time(each["created_at"]),
            show_time(each["previous_until"]) if each["previous_until"] is not None else "",
        )
        for each in found
    ]
    print_table(("principal", "role", "accounts", "may", "added", "earlier key valid until"), rows, "no principals")


@group.command(epilog=example("leasehold principals rotate ci --key-file ci.key --grace 1d"))
def rotate(
    name: Name,
    grace: Annotated[
        str,
        typer.Option(metavar="DURATION", help="How long the earlier key stays valid, like 30m or 1d."),
    ] = "1h",
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Give a principal a new key.

    The key file is replaced if it exists. The principal `leasehold`, with which the workers sign, needs no key file.
    """
    from scheduler.operations.principals import rotate_principal

    seconds = 0.0 if grace == "0" else parse_seconds("--grace", grace)
    with _writing(key_file, replaces=True) as file, open_store() as store:
        _hand_out(rotate_principal(store, name, seconds), store.read_cluster().identity, file, key_file, as_json)


@group.command(epilog=example("leasehold principals may ci run", "leasehold principals may ci run --not"))
def may(
    name: Name,
    right: Annotated[
        str,
        typer.Argument(metavar="RIGHT", help="The right: run (submit commands that hosts run).", show_default=False),
    ],
    is_withdrawn: Annotated[bool, typer.Option("--not", help="Withdraw the right.")] = False,
    as_json: AsJson = False,
) -> None:
    """Grant a right to a producer or an operator, or withdraw it. It holds within a second.

    A principal with the right `run` may submit reservations whose hosts run a command. Commands that run go on.
    """
    from scheduler.operations.principals import change_right

    choose("RIGHT", right, RIGHTS)
    with open_store() as store:
        row = change_right(store, name, "run", has_it=not is_withdrawn)
    print_result(_describe(row), f"{name} may {'not ' if is_withdrawn else ''}{right}", as_json=as_json)


@group.command(epilog=example("leasehold principals remove ci"))
def remove(name: Name, as_json: AsJson = False) -> None:
    """Remove a principal: within a second its messages are refused."""
    from scheduler.operations.principals import remove_principal

    with open_store() as store:
        removed = remove_principal(store, name)
    print_result(_describe(removed), f"{name} is removed", as_json=as_json)


def _describe(row: "StoredPrincipal") -> dict[str, Any]:
    return {
        "name": row.name,
        "role": row.role,
        "accounts": list(row.accounts),
        "rights": list(row.rights),
        "created_at": row.created_at,
        "previous_until": row.previous_until,
    }


@contextmanager
def _writing(path: Path | None, *, replaces: bool) -> Iterator[IO[str] | None]:
    """Yield a new file of mode 0600 for a key, or None if `path` is None. When the block ends without an error, the
    file is renamed to `path`.

    Raises CommandError before the block if `path` cannot be written, or if it exists and `replaces` is false.
    """
    if path is None:
        yield None
        return
    if path.exists() and not replaces:
        raise CommandError(f"{path}: expected no file there yet, got a file", BAD_INPUT)
    from tempfile import mkstemp

    try:
        # mkstemp creates the file with mode 0600, so it is never readable by others.
        descriptor, temporary = mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise CommandError(f"{path}: expected a file that can be written, got {error.strerror}", BAD_INPUT) from None
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            yield file
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink()
        raise


def _hand_out(row: "StoredPrincipal", cluster: str, file: IO[str] | None, path: Path | None, as_json: bool) -> None:
    from scheduler.protocol.signing import format_key_line

    line = format_key_line(row.name, row.key, cluster)
    if file is not None:
        file.write(f"{line}\n")
    if as_json:
        print_json(_describe(row) | ({"key_file": str(path)} if file is not None else {"key": line}))
    elif file is not None:
        print_thing(f"{row.name} ({row.role}): the key is in {path}")
    else:
        print_thing(f"{row.name} ({row.role}); this key is not shown again:")
        # The line is printed without wrapping, so that it can be copied.
        typer.echo(line)
