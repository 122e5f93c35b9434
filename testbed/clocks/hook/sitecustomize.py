"""Shifts the wall clock of the process that imports this at its start, and of every process that it forks.

The shift is read from a file for each look at the clock, so it takes no thread, which a fork would lose, and the file
may change while the process runs. Monotonic clocks, and the times that the kernel gives to files, stay right.
"""

import os
import sys
from typing import Any, Final

# time-machine is a plugin of pytest as well, and imports it where it can: that takes longer than everything else here.
_hidden: Final[dict[str, Any]] = {"pytest": None}
sys.modules.update(_hidden)
import time_machine  # noqa: E402

del sys.modules["pytest"]

VARIABLE: Final = "SHIFTED_CLOCK_FILE"
"""Names the file; its text is the shift in seconds. Without the file the clock is right."""
_MOST_BYTES: Final = 64


class ShiftedClock(time_machine.Traveller):
    """The wall clock of the host, plus the seconds in a file."""

    def __init__(self, path: str) -> None:
        super().__init__(0, None, tick=True)
        self._path = path
        self._read: tuple[int, int] | None = None
        self._shift_ns = 0

    def time_ns(self) -> int:
        """Nanoseconds since the epoch."""
        return time_machine.escape_hatch.time.time_ns() + self._find_shift()

    def _find_shift(self) -> int:
        try:
            found = os.stat(self._path)  # noqa: PTH116 - called for each look at the clock
        except FileNotFoundError:
            return 0
        # The file is replaced, never written in place: another shift is another inode or another time.
        version = (found.st_ino, found.st_mtime_ns)
        if version != self._read:
            with open(self._path, "rb", buffering=0) as file:  # noqa: PTH123 - as above
                self._shift_ns = round(float(file.read(_MOST_BYTES)) * 1_000_000_000)
            self._read = version
        return self._shift_ns


def shift_clock() -> None:
    """Shift the clock of this process, if the variable names a file."""
    path = os.environ.get(VARIABLE)
    if path:
        time_machine.travel(0).start()
        time_machine.traveller_stack[:] = [ShiftedClock(path)]


shift_clock()
