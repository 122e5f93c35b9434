"""The first process of a played machine: it runs the machine's user data, and when the machine ends, or the emulator
does, it ends every process that came from it, also those that left their session.

`python -S -E machine_init.py SCRIPT`. Only the standard library, because each machine has such a process.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
POLL_SECONDS = 0.2
PASS_SECONDS = 0.01
"""Pause between two searches for processes that are left."""
_PARENT = 1
"""Index of the parent's id in the fields of /proc/PID/stat that follow the name of the program."""


def list_descendants(root: int) -> list[int]:
    """Return the processes below `root`; [] where the system has no /proc."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            parent = int(path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[_PARENT])
            children.setdefault(parent, []).append(int(path.parent.name))
    found = [root]
    for pid in found:
        found += children.get(pid, ())
    return found[1:]


def _kill_all(group: int) -> None:
    """End the session of the script (0: it has none) and every process below this one, until none is left."""
    while True:
        if group:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        for pid in list_descendants(os.getpid()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not _reap():
            return
        time.sleep(PASS_SECONDS)  # a killed process takes a moment to end


def _reap() -> bool:
    """Reap what has ended. Return whether a child is left."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
        return True
    return False


class _EndedError(Exception):
    """Raised by the handler of SIGTERM."""


def _raise_ended(_number: int, _frame: object) -> None:
    raise _EndedError


def main() -> None:
    """Run the script of the arguments until SIGTERM, or until the parent has ended."""
    parent = os.getppid()
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    group = 0
    try:
        signal.signal(signal.SIGTERM, _raise_ended)
        group = subprocess.Popen(["/bin/sh", *sys.argv[1:]], start_new_session=True).pid  # noqa: S603 - the machine's own user data
        while os.getppid() == parent:
            _reap()
            time.sleep(POLL_SECONDS)  # SIGTERM ends it early
    except _EndedError:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _kill_all(group)


if __name__ == "__main__":
    main()
