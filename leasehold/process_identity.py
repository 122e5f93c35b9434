"""Identify processes by id and start time.

The kernel reuses the id of a process that has ended, so a signal is sent only if the start time is the same, too. The
module imports only the standard library, because the reaper of a stack imports it.
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
"""Field of /proc/PID/stat, counted behind the name in parentheses."""
_PS: Final = "/bin/ps"
_PS_TIME: Final = "%a %b %d %H:%M:%S %Y"
_PS_ENVIRONMENT: Final = {"LC_ALL": "C", "TZ": "UTC"}


@dataclass(frozen=True)
class ProcessIdentity:
    """A process: its id and its start time, in the kernel's ticks since it booted where there is /proc, else in
    seconds since the epoch. None: unknown; a process without a start time gets no signal.
    """

    pid: int
    started: int | None
    command: str | None = None
    """The command line; None: any."""


def identify(pid: int) -> ProcessIdentity:
    """The process that has this id now."""
    return ProcessIdentity(pid, find_start(pid), read_command(pid))


def is_running(process: ProcessIdentity) -> bool:
    """Whether this very process is there, if only as one whose parent has not waited for it yet."""
    if process.started is None or find_start(process.pid) != process.started:
        return False
    return process.command is None or read_command(process.pid) == process.command


def send_signal(process: ProcessIdentity, number: int) -> bool:
    """Send a signal to this very process; False when it has ended. Raises PermissionError."""
    with suppress(ProcessLookupError):
        descriptor = _open_descriptor(process.pid)
        if descriptor is None:
            return is_running(process) and _kill(process.pid, number)
        try:
            # The descriptor stays with its process, whatever becomes of the id after this look.
            return is_running(process) and _kill_by_descriptor(descriptor, number)
        finally:
            os.close(descriptor)
    return False


def _open_descriptor(pid: int) -> int | None:
    """A descriptor of the process that has this id now; None where there are none: macOS, a kernel before 5.3, some
    sandboxes. Raises ProcessLookupError.
    """
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError:
        return None


def _kill_by_descriptor(descriptor: int, number: int) -> bool:
    signal.pidfd_send_signal(descriptor, number)
    return True


def _kill(pid: int, number: int) -> bool:
    os.kill(pid, number)
    return True


def end_group(process: ProcessIdentity) -> None:
    """Kill what is left of the group that this process leads or has led.

    The id of a group is not given to a new process while the group has members. So the group is this process's own
    unless another process has the id by now.
    """
    if process.started is None or find_start(process.pid) not in {None, process.started}:
        return
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def find_start(pid: int) -> int | None:
    """The start time of a process (see ProcessIdentity); None for one that is gone."""
    if not PROC.joinpath("self").exists():
        return find_start_by_ps(pid)
    fields = read_stat(pid)
    return int(fields[_STARTED]) if fields else None


def find_start_by_ps(pid: int) -> int | None:
    """The start time in seconds since the epoch, where there is no /proc, as on macOS."""
    text = _ask_ps(pid, "lstart=")
    return calendar.timegm(time.strptime(text, _PS_TIME)) if text else None


def read_command(pid: int) -> str | None:
    """The command line of a process; None for one that is gone or that another user has."""
    if not PROC.joinpath("self").exists():
        return _ask_ps(pid, "command=")
    try:
        words = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return None
    return words.decode(errors="replace").replace("\0", " ").strip() or None


def read_stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the name; none when the process is gone."""
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _ask_ps(pid: int, what: str) -> str | None:
    if pid <= 0:
        return None
    command = [_PS, "-o", what, "-p", str(pid)]
    done = subprocess.run(command, env=_PS_ENVIRONMENT, capture_output=True, text=True, check=False)  # noqa: S603 - fixed path
    return done.stdout.strip() or None
