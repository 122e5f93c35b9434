"""`python -m tests.chaos.command WORDS`: the command `leasehold` with the named points of a restore in it."""

import os
from pathlib import Path

from tests.chaos.points import place_restore_points
from tests.chaos.switches import SWITCHES
from tests.chaos.worker import FOLDER, OFF


def main() -> None:
    """Run the command with the words of the command line."""
    place_restore_points(Path(os.environ[FOLDER]))
    if off := os.environ.get(OFF):
        SWITCHES[off]()
    from leasehold.cli import main as carry_out

    carry_out()


if __name__ == "__main__":
    main()
