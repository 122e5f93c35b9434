"""Runs the `leasehold` command: finds the subcommand, converts its arguments without the library pydantic, and turns a
known error into lines and an exit status.

Every command file imports only light modules at its top, because each start and each completion imports all of them.
"""

import math
import os
import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import typer

from leasehold.cli import (  # noqa: F401 - each file adds its commands when it is imported
    accounts,
    backups,
    costs,
    doctor,
    forecasting,
    hosting,
    listing,
    operating,
    principals,
    reading,
    requesting,
    ruling,
    running,
    simulating,
    status,
    submitting,
    top,
)
from leasehold.cli.output import (
    BAD_INPUT,
    FAILED,
    INTERRUPTED,
    CommandError,
    explain,
    list_known,
    print_error,
)
from leasehold.cli.root import GROUPS, app
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


__all__ = ["GROUPS", "app"]


Convert = Callable[[object], object]
UNSURE: Final = object()
"""The result of a quick conversion that cannot convert the value, which is then passed to typer."""
_WHOLE: Final = re.compile(r"-?[0-9]{1,15}")
_DECIMAL: Final = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,15})?")
MOST_SECONDS: Final = 1e9
"""The highest value of a number with a least value, such as the seconds of a wait: about 30 years. The waits of Python
and of the operating system fail for ten times as much.
"""
_ENDLESS: Final = "wait"
"""Name of the only parameter that may be infinite: `--wait` alone waits without a limit."""
_MAKER: Final = "build_runtime_param"
"""Name of the function in typer.core that makes the converter of a parameter. Versions of typer without this function
convert without the library pydantic, and `convert_quickly` leaves them unchanged.
"""


class QuickParameter:
    """Converts the values of one parameter of a command. `convert`: the quick conversion. `make`: makes typer's own
    converter, which converts a value if the result of `convert` is UNSURE. `has_least`: whether the parameter has a
    least value.
    """

    def __init__(self, make: Callable[[], Any], convert: Convert, *, has_least: bool = False) -> None:
        self._make, self._convert, self._has_least = make, convert, has_least

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value of the parameter as the type that its command declares. typer calls this method as the
        method of its own class RuntimeParam.
        """
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        found = self._convert(value)
        if found is UNSURE:
            found = self._make().coerce(value, param=param, ctx=ctx)
        # `not <=` also refuses nan, which is neither less than the least value nor more than the highest one.
        if self._has_least and isinstance(found, float) and not found <= MOST_SECONDS:
            if found == math.inf and param.name == _ENDLESS:
                return found
            raise typer.BadParameter(f"expected a number of at most {MOST_SECONDS:.0e}", ctx=ctx, param=param)
        return found


def convert_quickly() -> None:
    """Let typer use the quick conversions of this module in this process."""
    core = import_module("typer.core")
    make = getattr(core, _MAKER, None)
    if make is None or getattr(make, "is_quick", False):
        return

    def make_quick(descriptor: Any) -> Any:
        info = descriptor.parameter_info
        convert, has_least = find_conversion(descriptor.annotation, info), getattr(info, "min", None) is not None
        return (
            make(descriptor)
            if convert is None
            else QuickParameter(lambda: make(descriptor), convert, has_least=has_least)
        )

    make_quick.is_quick = True  # type: ignore[attr-defined]
    setattr(core, _MAKER, make_quick)


def find_conversion(annotation: object, info: Any) -> Convert | None:
    """Return the quick conversion of values to the type `annotation`; None if typer must convert them. `info`: the
    constraints of the parameter, such as its least value.
    """
    if info.parser is not None:
        return None
    if annotation is int or annotation is float:
        return None if info.clamp else lambda value: _convert_number(annotation, value, info.min, info.max)
    if annotation is Path:
        # Paths that must exist, or must be writable, and so on, are left to typer.
        is_plain = not (info.exists or info.writable or info.resolve_path or info.allow_dash or info.path_type)
        return _convert_path if is_plain and info.file_okay and info.dir_okay else None
    if annotation == list[str]:
        return lambda value: (
            list(value) if isinstance(value, list | tuple) and all(type(each) is str for each in value) else UNSURE
        )
    if annotation is bool or annotation is str:
        return lambda value: value if type(value) is annotation else UNSURE
    return None


def _convert_number(kind: type, value: object, least: float | None, most: float | None) -> object:
    is_number = type(value) is int or type(value) is kind
    if is_number or (type(value) is str and (_WHOLE if kind is int else _DECIMAL).fullmatch(value)):
        number = kind(value)
        if (least is None or number >= least) and (most is None or number <= most):
            return number
    return UNSURE


def _convert_path(value: object) -> object:
    if not isinstance(value, str | Path):
        return UNSURE
    # A path that exists and cannot be read is left to typer, which may refuse it.
    return Path(value) if os.access(value, os.R_OK) or not os.path.exists(value) else UNSURE  # noqa: PTH110 - raises less
