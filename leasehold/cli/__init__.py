"""The command line `leasehold`. A command that fails prints one line for each error on standard error.

The exit status is 0 if the command succeeded, 1 if it was refused, failed or found nothing, 2 for bad input or usage,
130 if it was interrupted. The command `leasehold status` has exit statuses of its own.
"""

import gc
import sys
from collections.abc import Sequence
from typing import Final

from leasehold.cli.interrupts import take_interrupts

__all__ = ["main"]

_ALLOCATIONS: Final = 100_000
"""Python looks for garbage after this number of new objects. The usual 700 cost a seventh of the time of a short
command: imports make many objects, and no garbage.
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the `leasehold` command with `arguments` (None: those of this process) and exit with the command's status."""
    gc.set_threshold(_ALLOCATIONS)
    take_interrupts()
    # After the two lines above, because the import of all commands takes most of the time of a short one.
    from leasehold.cli.program import run_safely

    status = run_safely(sys.argv[1:] if arguments is None else list(arguments))
    # Speed: at its end Python looks for garbage again, which is a fifth of the time of a short command.
    gc.freeze()
    sys.exit(status)
