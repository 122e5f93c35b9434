"""The command line `leasehold`: a failed command prints one line for each error on standard error and ends with an exit
status for scripts.

Exit statuses: 0 done; 1 refused, failed or not found; 2 bad input or usage; 130 interrupted. The command `leasehold
status` has exit statuses of its own.
"""

import sys
from collections.abc import Sequence

from leasehold.cli.failures import run_safely
from leasehold.cli.interrupts import take_interrupts

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the `leasehold` command with `arguments` (None: those of this process) and exit with the command's status."""
    take_interrupts()
    sys.exit(run_safely(sys.argv[1:] if arguments is None else list(arguments)))
