"""The formats of the option `--output`: tables for people; JSON, YAML and CSV for programs."""

import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Final

import typer

from leasehold.cli.completing import starting
from leasehold.cli.failures import BAD_INPUT, CommandError
from leasehold.cli.output import choose, print_json
from scheduler.protocol.visible import escape_json, make_visible

FORMATS: Final = ("table", "wide", "json", "yaml", "csv")
DOCUMENTS: Final = ("table", "json", "yaml")
"""The formats of `--output` of a command that shows a single object, like one reservation."""
Output = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FORMAT",
        help="Form of the output: table, wide (all columns in full), json, yaml or csv.",
        autocompletion=lambda incomplete: starting(FORMATS, incomplete),
    ),
]
OneOutput = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FORMAT",
        help="Form of the output: table, json or yaml.",
        autocompletion=lambda incomplete: starting(FORMATS, incomplete),
    ),
]
_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_./@+-]*")
_NOT_TEXT: Final = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})
"""Words that readers of YAML 1.1 take for a truth value or null. A text that is such a word is printed in quotes."""


def choose_format(output: str | None, *, as_json: bool, known: Sequence[str] = FORMATS) -> str:
    """Return the format that `--output` or `--json` names; "table" without either. Raises BadParameter for an unknown
    format, and CommandError if the options name different formats.
    """
    if output is None:
        return "json" if as_json else "table"
    chosen = choose("--output", output, known)
    if as_json and chosen != "json":
        raise CommandError(f"--json: expected no other --output, got {chosen}", BAD_INPUT)
    return chosen


def print_document(value: Any, chosen: str) -> None:
    """Print `value` as one line of JSON if `chosen` is "json", else as YAML."""
    if chosen == "json":
        print_json(value)
        return
    import msgspec

    sys.stdout.write("\n".join(_list_lines(msgspec.to_builtins(value))) + "\n")


def print_csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print comma-separated values with a header (RFC 4180). None becomes an empty value. Control characters in texts
    become escapes.
    """
    from csv import writer as make_writer

    writer = make_writer(sys.stdout, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([[make_visible(each) if isinstance(each, str) else each for each in row] for row in rows])


def _list_lines(value: Any, indent: str = "") -> Iterator[str]:
    """Yield the lines of YAML in block style for `value`: a list, a mapping or a single value. `indent` begins each
    line.
    """
    if isinstance(value, dict) and value:
        for key, each in value.items():
            if each and isinstance(each, (dict, list, tuple)):
                yield f"{indent}{_show_scalar(key)}:"
                yield from _list_lines(each, f"{indent}  ")
            else:
                yield f"{indent}{_show_scalar(key)}: {_show_scalar(each)}"
    elif isinstance(value, (list, tuple)) and value:
        for each in value:
            first, *rest = _list_lines(each, f"{indent}  ")
            yield f"{indent}- {first.lstrip(' ')}"
            yield from rest
    else:
        yield indent + _show_scalar(value)


def _show_scalar(value: Any) -> str:
    if isinstance(value, float):
        return _show_float(value)
    if isinstance(value, str):
        is_plain = _PLAIN.fullmatch(value) and value.lower() not in _NOT_TEXT
        quoted = json.dumps(value, ensure_ascii=False)
        return value if is_plain else escape_json(quoted)
    # What remains is an empty list or mapping, an integer, a truth value or null.
    return json.dumps(value)


def _show_float(value: float) -> str:
    """Return a number as a text that readers of YAML 1.1 take for a number too: with a decimal point, also before an
    exponent.
    """
    if not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    digits, exponent, power = repr(value).partition("e")
    return (digits if "." in digits else f"{digits}.0") + exponent + power
