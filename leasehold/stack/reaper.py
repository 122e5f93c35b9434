"""The guardian of a stack: it outlives a supervisor that was killed, to end what it had started.

It reads `+PID START` and `-PID` from its standard input. The pipe closes when the supervisor ends: then every process
that it still knows gets SIGTERM, and what is left of their groups after some seconds SIGKILL. A process that got the id
of one that ended gets no signal: its start time differs. The guardian needs nothing but the standard library and works
wherever pipes do.
"""

import contextlib
import signal
import sys
import time
from collections.abc import Iterable
from typing import Final

from leasehold.process_identity import ProcessIdentity, end_group, is_running, send_signal

GRACE_SECONDS: Final = 6.0
_LOOK_SECONDS: Final = 0.05


def read_processes(lines: Iterable[str]) -> list[ProcessIdentity]:
    """The processes that are still known when the input ends, in the order in which they came."""
    known: dict[int, ProcessIdentity] = {}
    for line in lines:
        match line.split():
            case [word, started] if word[0] == "+" and word[1:].isdigit() and started.isdigit():
                known[int(word[1:])] = ProcessIdentity(int(word[1:]), int(started))
            case [word] if word[0] == "-" and word[1:].isdigit():
                known.pop(int(word[1:]), None)
    return list(known.values())


def end_groups(processes: Iterable[ProcessIdentity], grace: float = GRACE_SECONDS) -> None:
    """SIGTERM to each process, and after the grace (or once all have ended) SIGKILL to their groups."""
    left = [process for process in processes if _terminate(process)]
    until = time.monotonic() + grace
    groups = list(left)
    while left and time.monotonic() < until:
        left = [process for process in left if is_running(process)]
        # They are no children of this process, so nothing reports their end.
        time.sleep(_LOOK_SECONDS)
    for process in groups:
        end_group(process)


def _terminate(process: ProcessIdentity) -> bool:
    """Whether there was such a process to end."""
    with contextlib.suppress(PermissionError):
        return send_signal(process, signal.SIGTERM)
    return False


def main() -> int:
    """Wait for the end of the supervisor, then clear up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    end_groups(read_processes(sys.stdin))
    return 0


if __name__ == "__main__":
    sys.exit(main())
