"""Turn an error that ends a command into lines on standard error and an exit status."""

import contextlib
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Final

import typer

from leasehold.cli.tables import find_width, wrap
from leasehold.errors import BadCredentials, LeaseholdError, Refused
from scheduler.protocol.visible import make_visible

if TYPE_CHECKING:
    from leasehold.client.models import Answer

FAILED: Final = 1
BAD_INPUT: Final = 2
INTERRUPTED: Final = 130
NO_RULES: Final = "no rules were applied yet: `leasehold apply FILE`"
ERROR_PREFIX: Final = "leasehold: "
UsageError: Final[type[Exception]] = typer.BadParameter.__mro__[1]
"""The base class of the errors that the parser of options and arguments raises (click.UsageError). typer does not
export it.
"""


class CommandError(Exception):
    """Raised if a command fails for a known reason. The message is printed on standard error line by line, and `status`
    becomes the exit status.
    """

    def __init__(self, message: str, status: int = FAILED) -> None:
        self.status = status
        super().__init__(message)


def explain(error: Exception) -> tuple[list[str], int]:
    """Return the lines that are printed for a known error which ended a command, and the exit status."""
    if isinstance(error, UsageError):
        return [f"{error.format_message()} (see --help)"], BAD_INPUT  # type: ignore[attr-defined]
    if isinstance(error, CommandError):
        return str(error).splitlines(), error.status
    # Some errors of the client are an OSError too (TimeoutError, ConnectionError); they have a message of their own.
    if isinstance(error, OSError) and not isinstance(error, LeaseholdError) and error.filename:
        return [one_line(f"{error.filename} cannot be used: {error.strerror}")], FAILED
    faults = getattr(error, "faults", ())
    lines = [str(each) for each in faults] or [str(error), *getattr(error, "details", ())]
    is_bad_input = any(each.code != "unknown" for each in faults) or isinstance(error, BadCredentials)
    return [one_line(each) for each in lines], BAD_INPUT if is_bad_input else FAILED


_OURS: Final = (
    ("scheduler.model.validation", "InvalidInputError"),
    ("scheduler.ports", "StoreUnavailableError"),
    ("scheduler.ports", "ViewUnavailableError"),
    ("scheduler.ports", "StaleWriteError"),
    ("leasehold.stack.configuration", "StackError"),
)
"""Modules and names of the error classes that a command expects and that only some commands import. A module that was
not imported has raised no error, so it is not imported to recognise its errors.
"""


def list_known() -> tuple[type[Exception], ...]:
    """Return the classes of errors that are printed without a traceback: errors of input, of the environment and of
    other services.
    """
    loaded = [getattr(sys.modules[module], name) for module, name in _OURS if module in sys.modules]
    return (UsageError, CommandError, LeaseholdError, OSError, *loaded)


def one_line(text: str) -> str:
    """Return `text` with every line break or run of blanks replaced by one space."""
    return " ".join(text.split())


def print_error(line: str) -> None:
    """Print `line` on standard error after the name of the program, `leasehold`. On a terminal it is wrapped."""
    with contextlib.suppress(OSError):
        text = f"{ERROR_PREFIX}{make_visible(line, multiline=True)}"
        sys.stderr.write(f"{wrap(text, find_width(sys.stderr), indent='  ')}\n")


@contextlib.contextmanager
def explaining_refusals(about_state: Collection[str] = ()) -> Iterator[None]:
    """Within this context, turn a refused request (Refused) into CommandError, with one line for each fault.

    The exit status is FAILED if all faults are in fields that `about_state` names, else BAD_INPUT. The values of these
    fields were checked before the request was sent, so a fault in them comes from the cluster's present state.
    """
    try:
        yield
    except Refused as refused:
        is_about_state = {fault.path for fault in refused.errors} <= set(about_state)
        status = FAILED if is_about_state else BAD_INPUT
        raise CommandError("\n".join(map(str, refused.errors)) or str(refused), status) from None


def send_each(send: "Callable[[str], Answer]", names: Iterable[str], show: "Callable[[Answer], None]") -> None:
    """Send a request for each of `names` and show each answer. If a request is refused, the next ones are still sent,
    and at the end CommandError with all refusals is raised. Return without an error if no request was refused.
    """
    refused: list[str] = []
    for name in names:
        try:
            show(send(name))
        except Refused as error:
            refused.append(str(error))
    if refused:
        raise CommandError("\n".join(refused), FAILED)
