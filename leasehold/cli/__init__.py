"""The command line: `leasehold`. An error is one line on standard error and an exit status for scripts.

Statuses: 0 done; 1 refused, failed or not found; 2 bad input or usage; 130 interrupted. `leasehold status` has its own.
"""

import sys
from collections.abc import Sequence

from leasehold.cli.failures import run_safely
from leasehold.cli.interrupts import take_interrupts

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its status."""
    take_interrupts()
    sys.exit(run_safely(sys.argv[1:] if arguments is None else list(arguments)))
