"""The Procfile: which processes a stack has, one line each; the only place that says so."""

import shlex
import sys
from pathlib import Path

import leasehold
from leasehold.stack.programs import Program


class ProcfileError(Exception):
    """The Procfile is missing, or a line of it is no `name: command`."""


def find_procfile() -> Path:
    """The one beside the package in a checkout, else the copy inside the installed package."""
    package = Path(leasehold.__file__).parent
    for candidate in (package.parent / "Procfile", package / "Procfile"):
        if candidate.is_file():
            return candidate
    raise ProcfileError("this installation has no Procfile: install it again")


def read_procfile(text: str) -> list[Program]:
    """The programs of a Procfile, in its order; `python` stands for the interpreter that runs this."""
    programs = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, colon, command = line.partition(":")
        words = shlex.split(command)
        if not colon or not name.strip() or not words:
            raise ProcfileError(f"Procfile, line {number}: expected `name: command`, got {line!r}")
        if words[0] in {"python", "python3"}:
            words[0] = sys.executable
        programs.append(Program(name.strip(), tuple(words)))
    return programs
