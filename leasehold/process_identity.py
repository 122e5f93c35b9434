"""Identify processes by id and start time. The kernel reuses ids, so an id alone may name another process.

A signal is only sent if the start time is the recorded one. The module uses only the standard library, because the
guardian of a stack imports it.
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
"""Index of the start time in /proc/PID/stat, counted after the name in parentheses."""
_PS: Final = "/bin/ps"
_PS_TIME: Final = "%a %b %d %H:%M:%S %Y"
_PS_ENVIRONMENT: Final = {"LC_ALL": "C", "TZ": "UTC"}


@dataclass(frozen=True)
class ProcessIdentity:
    """A process: its id and its start time, in kernel ticks since boot with /proc, else in seconds since the epoch.

    Start time None: unknown; such a process gets no signal.
    """

    pid: int
    started: int | None
    command: str | None = None
    """The command line of the process; None: not compared."""


def identify(pid: int) -> ProcessIdentity:
    """Return the identity of the process that has this id now."""
    return ProcessIdentity(pid, find_start(pid), read_command(pid))


def is_running(process: ProcessIdentity) -> bool:
    """Return whether this process exists. A process that has ended, and for which its parent has not waited, still
    exists.
    """
    if process.started is None or find_start(process.pid) != process.started:
        return False
    return process.command is None or read_command(process.pid) == process.command


def send_signal(process: ProcessIdentity, number: int) -> bool:
    """Send a signal to exactly this process. Return False if it has ended. Raise PermissionError."""
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
    """Return a descriptor of the process that has this id now. Return None on systems without them: macOS, kernels
    before 5.3, some sandboxes. Raise ProcessLookupError.
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
    """Kill what is left of the process group that this process leads or has led.

    The kernel does not reuse the id of a group that has members. So the group belongs to this process, unless another
    process has the id now.
    """
    if process.started is None or find_start(process.pid) not in {None, process.started}:
        return
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def find_start(pid: int) -> int | None:
    """Return the start time of a process (see ProcessIdentity), or None if it has ended."""
    if not PROC.joinpath("self").exists():
        return find_start_by_ps(pid)
    fields = read_stat(pid)
    return int(fields[_STARTED]) if fields else None


def find_start_by_ps(pid: int) -> int | None:
    """Return the start time of a process in seconds since the epoch, for systems without /proc such as macOS."""
    text = _run_ps(pid, "lstart=")
    return calendar.timegm(time.strptime(text, _PS_TIME)) if text else None


def read_command(pid: int) -> str | None:
    """Return the command line of a process. Return None if it has ended or belongs to another user."""
    if not PROC.joinpath("self").exists():
        return _run_ps(pid, "command=")
    try:
        words = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return None
    return words.decode(errors="replace").replace("\0", " ").strip() or None


def read_stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name, or none if the process has ended."""
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _run_ps(pid: int, what: str) -> str | None:
    if pid <= 0:
        return None
    command = [_PS, "-o", what, "-p", str(pid)]
    done = subprocess.run(command, env=_PS_ENVIRONMENT, capture_output=True, text=True, check=False)  # noqa: S603 - fixed path
    return done.stdout.strip() or None
