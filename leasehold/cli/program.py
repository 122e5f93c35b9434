"""Runs the `leasehold` command: finds the subcommand, and turns a known error into lines and an exit status."""

import os
import sys

import typer

from leasehold.cli.app import app
from leasehold.cli.conversion import convert_quickly
from leasehold.cli.failures import (
    BAD_INPUT,
    FAILED,
    INTERRUPTED,
    CommandError,
    explain,
    list_known,
    print_error,
)
from leasehold.extras import explain_missing


def run_safely(arguments: list[str]) -> int:
    """Run the `leasehold` command with `arguments` and return its exit status. A known error is printed, one line for
    each fault. An unknown error is raised.
    """
    convert_quickly()
    try:
        _check_encoding(arguments)
        result = app(arguments, prog_name="leasehold", standalone_mode=False)
        sys.stdout.flush()
    except typer.Exit as exit_:
        return exit_.exit_code
    except (KeyboardInterrupt, typer.Abort):
        result = INTERRUPTED
    except BrokenPipeError:
        # The reader of standard output (like `head`) has closed it. Python's flush at exit must not fail on that again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except ModuleNotFoundError as error:
        line = explain_missing(error)
        if line is None:
            raise
        print_error(line)
        return FAILED
    except list_known() as error:
        lines, status = explain(error)
        for line in lines:
            print_error(line)
        return status
    # typer, too, returns this status for a Ctrl-C, without a message; our own commands raise CommandError with one.
    if result == INTERRUPTED:
        print_error("interrupted")
    return result if isinstance(result, int) else 0


def _check_encoding(arguments: list[str]) -> None:
    """Raise CommandError for an argument that is not UTF-8. Arguments after `--` are those of another command."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    for number, each in enumerate(own, start=1):
        try:
            each.encode()
        except UnicodeEncodeError:
            raise CommandError(f"argument {number}: expected a text in UTF-8, got {each[:60]}", BAD_INPUT) from None
