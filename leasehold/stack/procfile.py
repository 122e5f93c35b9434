"""Read the Procfile, the only definition of the processes of a stack. Each line has the name and the command of a
process.
"""

import shlex
import sys
from pathlib import Path

import leasehold
from leasehold.stack.programs import Program


class ProcfileError(Exception):
    """Raised if the Procfile is missing, or if one of its lines is not `name: command`."""


def find_procfile() -> Path:
    """Return the path of the Procfile: in a checkout the one next to the package, else the copy inside the installed
    package.
    """
    package = Path(leasehold.__file__).parent
    for candidate in (package.parent / "Procfile", package / "Procfile"):
        if candidate.is_file():
            return candidate
    raise ProcfileError("this installation has no Procfile: install the package leasehold again")


def read_procfile(text: str) -> list[Program]:
    """Return the programs of a Procfile in order. The command `python` is replaced by the interpreter of
    this process.
    """
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
