"""Read the Procfile, the one definition of the processes of a stack, a process on each line."""

import shlex
import sys
from pathlib import Path

import leasehold
from leasehold.stack.programs import Program


class ProcfileError(Exception):
    """The Procfile is missing, or one of its lines is not `name: command`."""


def find_procfile() -> Path:
    """Return the Procfile beside the package in a checkout, else the copy inside the installed package."""
    package = Path(leasehold.__file__).parent
    for candidate in (package.parent / "Procfile", package / "Procfile"):
        if candidate.is_file():
            return candidate
    raise ProcfileError("this installation has no Procfile: install it again")


def read_procfile(text: str) -> list[Program]:
    """Return the programs of a Procfile in order. `python` becomes the interpreter of this process."""
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
