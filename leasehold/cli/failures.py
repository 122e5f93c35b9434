"""From errors to lines and statuses; the one place where the command line ends with either."""

import contextlib
import os
import sys
from typing import Final

import typer

from leasehold.common.visible import make_visible
from leasehold.errors import BadCredentials, LeaseholdError
from leasehold.extras import explain_missing

FAILED: Final = 1
BAD_INPUT: Final = 2
INTERRUPTED: Final = 130
ERROR_PREFIX: Final = "leasehold: "
UsageError: Final[type[Exception]] = typer.BadParameter.__mro__[1]
"""What the parser raises for options and arguments that are wrong; typer itself does not export it."""


class CommandError(Exception):
    """A command could not do what it was asked; the message is what people are told."""

    def __init__(self, message: str, status: int = FAILED) -> None:
        self.status = status
        super().__init__(message)


def run_safely(arguments: list[str]) -> int:
    """The status of one command; whatever goes wrong is said in a line (or one for each fault)."""
    from leasehold.cli.app import app

    try:
        result = app(arguments, prog_name="leasehold", standalone_mode=False)
        sys.stdout.flush()
    except typer.Exit as exit_:
        return exit_.exit_code
    except (KeyboardInterrupt, typer.Abort):
        result = INTERRUPTED
    except BrokenPipeError:
        # Whoever read us (`| head`) has enough; nothing more may be written at the end either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except ModuleNotFoundError as error:
        line = explain_missing(error)
        if line is None:
            raise
        say_error(line)
        return FAILED
    except _list_known() as error:
        lines, status = explain(error)
        for line in lines:
            say_error(line)
        return status
    # typer, too, makes this status of a Ctrl-C, and says nothing; our own commands raise CommandError.
    if result == INTERRUPTED:
        say_error("interrupted")
    return result if isinstance(result, int) else 0


def explain(error: Exception) -> tuple[list[str], int]:
    """The lines and the status for one of the known errors."""
    if isinstance(error, UsageError):
        return [f"{error.format_message()} (see --help)"], BAD_INPUT  # type: ignore[attr-defined]
    if isinstance(error, CommandError):
        return str(error).splitlines(), error.status
    if isinstance(error, BadCredentials):
        return [one_line(str(error))], BAD_INPUT
    if isinstance(error, LeaseholdError):
        return [one_line(str(error))], FAILED
    if isinstance(error, OSError):
        return [one_line(f"{error.filename}: {error.strerror}" if error.filename else str(error))], FAILED
    faults = getattr(error, "faults", None)
    if faults:
        return [one_line(str(each)) for each in faults], BAD_INPUT
    return [one_line(str(error)), *map(one_line, getattr(error, "details", ()))], FAILED


_OURS: Final = (
    ("scheduler.model.validation", "InvalidInputError"),
    ("scheduler.ports", "StoreUnavailableError"),
    ("scheduler.ports", "ViewUnavailableError"),
    ("scheduler.ports", "StaleWriteError"),
    ("leasehold.stack.configuration", "StackError"),
)
"""Errors of packages that only some commands import: who has not imported one cannot have raised it."""


def _list_known() -> tuple[type[Exception], ...]:
    """What is somebody's error and no fault of this program. Asked for when there is one."""
    loaded = [getattr(sys.modules[module], name) for module, name in _OURS if module in sys.modules]
    return (UsageError, CommandError, LeaseholdError, OSError, *loaded)


def one_line(text: str) -> str:
    """The text without its line breaks."""
    return " ".join(text.split())


def say_error(line: str) -> None:
    """Say it on standard error."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{ERROR_PREFIX}{make_visible(line, multiline=True)}\n")
