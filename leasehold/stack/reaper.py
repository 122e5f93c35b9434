"""The reaper of a stack: a process that outlives a killed supervisor and ends the supervisor's processes.

The reaper reads lines `+PID START` and `-PID` from its standard input, a pipe that closes when the supervisor ends.
Then it sends SIGTERM to every process that was added and not removed, and after some seconds SIGKILL to the rest of
their groups. A later process with the same id gets no signal, because its start time differs. The reaper imports only
the standard library and light modules, so that it starts quickly.
"""

import contextlib
import signal
import sys
import time
from collections.abc import Iterable
from typing import Final

from leasehold.process_identity import ProcessIdentity, end_group, is_running, send_signal

GRACE_SECONDS: Final = 6.0
_POLL_SECONDS: Final = 0.05


def read_processes(lines: Iterable[str]) -> list[ProcessIdentity]:
    """Read the reaper's input to its end. Return the processes that were added and not removed, in the order in which
    they were added.
    """
    known: dict[int, ProcessIdentity] = {}
    for line in lines:
        match line.split():
            case [item, started] if item[0] == "+" and item[1:].isdigit() and started.isdigit():
                known[int(item[1:])] = ProcessIdentity(int(item[1:]), int(started))
            case [item] if item[0] == "-" and item[1:].isdigit():
                known.pop(int(item[1:]), None)
    return list(known.values())


def end_groups(processes: Iterable[ProcessIdentity], grace: float = GRACE_SECONDS) -> None:
    """Send SIGTERM to each process. When all have ended, or after `grace` seconds, send SIGKILL to their groups."""
    left = [process for process in processes if _terminate(process)]
    until = time.monotonic() + grace
    groups = list(left)
    while left and time.monotonic() < until:
        left = [process for process in left if is_running(process)]
        # Polling: the processes are no children of this one, so it cannot wait for their end.
        time.sleep(_POLL_SECONDS)
    for process in groups:
        end_group(process)


def _terminate(process: ProcessIdentity) -> bool:
    """Send SIGTERM to a process. Return whether the process existed and this user may send it signals."""
    with contextlib.suppress(PermissionError):
        return send_signal(process, signal.SIGTERM)
    return False


def main() -> int:
    """Wait for the end of the stack's supervisor, then end the processes that it started. Return the exit status 0."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    end_groups(read_processes(sys.stdin))
    return 0


if __name__ == "__main__":
    sys.exit(main())
