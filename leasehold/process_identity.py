"""Identify a process by its id and its start time. The kernel gives the id of an ended process to a new one, so an id
alone may name another process later.

A process gets a signal only if its start time is the recorded start time. This module imports only the standard
library, so that the reaper of a stack, which imports the module, starts quickly.
"""

import calendar
import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
_STARTED: Final = 19
"""Index of the start time among the fields of /proc/PID/stat that follow the name in parentheses, from 0."""


@dataclass(frozen=True)
class ProcessIdentity:
    """One process, identified by its id and its start time: kernel ticks since boot on a system with /proc, else
    seconds since the epoch.

    If the start time is None, it is unknown, and the process gets no signal.
    """

    pid: int
    started: int | None
    command: str | None = None
    """The command line that the process must have too; None: the command line is not compared."""


def identify(pid: int) -> ProcessIdentity:
    """Return the identity of the process that has the id `pid` now."""
    return ProcessIdentity(pid, find_start(pid), read_command(pid))


def is_running(process: ProcessIdentity) -> bool:
    """Return whether exactly this process exists: start time and command line must match. A zombie (a process that has
    ended, and for which its parent has not waited yet) counts as existing.
    """
    if process.started is None or find_start(process.pid) != process.started:
        return False
    return process.command is None or read_command(process.pid) == process.command


def send_signal(process: ProcessIdentity, number: int) -> bool:
    """Send the signal `number` to exactly this process. Return True, or False without sending a signal if the process
    has ended. Raises PermissionError if this user may not send it a signal.
    """
    with suppress(ProcessLookupError):
        descriptor = _open_descriptor(process.pid)
        try:
            if not is_running(process):
                return False
            if descriptor is None:
                os.kill(process.pid, number)
            else:
                # The descriptor means the same process even if the id is given to another one after this check.
                signal.pidfd_send_signal(descriptor, number)
            return True
        finally:
            if descriptor is not None:
                os.close(descriptor)
    return False


def _open_descriptor(pid: int) -> int | None:
    """Return a descriptor of the process that has the id `pid` now, or None on a system without such descriptors:
    macOS, kernels before 5.3, some sandboxes. Raises ProcessLookupError if there is no such process.
    """
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError:
        return None


def end_group(process: ProcessIdentity) -> None:
    """Kill the remaining processes of the group that `process` leads or has led.

    While a group has members, the kernel gives its id to no other process. So the group belongs to `process`, unless
    another process has the id now; then no process is killed.
    """
    if process.started is None or find_start(process.pid) not in {None, process.started}:
        return
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def find_start(pid: int) -> int | None:
    """Return the start time of the process `pid`, in the unit of ProcessIdentity; None if the process has ended."""
    if not PROC.joinpath("self").exists():
        return find_start_by_ps(pid)
    fields = read_stat(pid)
    return int(fields[_STARTED]) if fields else None


def find_start_by_ps(pid: int) -> int | None:
    """Return the start time of the process `pid` in seconds since the epoch, for systems without /proc such as macOS;
    None if the process has ended.
    """
    text = _run_ps(pid, "lstart=")
    return calendar.timegm(time.strptime(text, "%a %b %d %H:%M:%S %Y")) if text else None


def read_command(pid: int) -> str | None:
    """Return the command line of the process `pid`; None if the process has ended or belongs to another user."""
    if not PROC.joinpath("self").exists():
        return _run_ps(pid, "command=")
    try:
        words = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return None
    return words.decode(errors="replace").replace("\0", " ").strip() or None


def read_stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat that follow the name of the process; [] if the process has ended."""
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _run_ps(pid: int, what: str) -> str | None:
    if pid <= 0:
        return None
    command = ["/bin/ps", "-o", what, "-p", str(pid)]
    done = subprocess.run(command, env={"LC_ALL": "C", "TZ": "UTC"}, capture_output=True, text=True, check=False)  # noqa: S603 - fixed path
    return done.stdout.strip() or None
