"""`python leasehold/stack/guardian.py`: outlives a supervisor that was killed, to end what it had started.

It reads `+PID` and `-PID` from its standard input. The pipe closes when the supervisor ends: then every process
that it still knows gets SIGTERM, and what is left of their groups after some seconds SIGKILL. It needs nothing
but the standard library and works wherever pipes do.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterable
from typing import Final

GRACE_SECONDS: Final = 6.0
_LOOK_SECONDS: Final = 0.05


def read_pids(lines: Iterable[str]) -> list[int]:
    """The processes that are still known when the input ends, in the order in which they came."""
    known: dict[int, None] = {}
    for line in lines:
        word = line.strip()
        if word[1:].isdigit():
            if word[0] == "+":
                known[int(word[1:])] = None
            else:
                known.pop(int(word[1:]), None)
    return list(known)


def end_groups(pids: Iterable[int], grace: float = GRACE_SECONDS) -> None:
    """SIGTERM to each process, and after the grace (or once all have ended) SIGKILL to their groups."""
    left = [pid for pid in pids if _send(os.kill, pid, signal.SIGTERM)]
    until = time.monotonic() + grace
    groups = list(left)
    while left and time.monotonic() < until:
        left = [pid for pid in left if _send(os.kill, pid, 0)]
        # They are no children of this process, so nothing tells of their end.
        time.sleep(_LOOK_SECONDS)
    for pid in groups:
        _send(os.killpg, pid, signal.SIGKILL)


def _send(how: object, pid: int, number: int) -> bool:
    """Whether there was such a process (or group) to send it to."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        how(pid, number)  # type: ignore[operator]
        return True
    return False


def main() -> int:
    """Wait for the end of the supervisor, then clear up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    end_groups(read_pids(sys.stdin))
    return 0


if __name__ == "__main__":
    sys.exit(main())
