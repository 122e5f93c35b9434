"""Processes of tests, benchmarks and chaos runs that end with their starter, even if it is killed.

The stack's reaper (leasehold/stack/reaper.py) notices by the end of a pipe that the starter has ended, and ends its
processes. SIGTERM raises KeyboardInterrupt like Ctrl-C, so that temporary folders are removed as well. Python drops an
exception that a signal raises in `__del__`, and clients of Redis have such methods. After `note_interrupts`,
`raise_dropped_interrupt` raises it again.
"""

import atexit
import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from functools import cache
from types import FrameType
from typing import Any, Final, Protocol

from leasehold.stack.programs import Reaper, make_gated, open_gate

__all__ = [
    "Guarded",
    "note_end",
    "note_interrupts",
    "note_start",
    "raise_dropped_interrupt",
    "take_signals_as_interrupts",
]

END_SECONDS: Final = 5.0


def take_signals_as_interrupts() -> None:
    """Let SIGTERM raise KeyboardInterrupt from now on unless it has a handler, and SIGINT if it was inherited as
    ignored. Processes that are started later have the default handlers of both.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    for number, untouched in ((signal.SIGTERM, signal.SIG_DFL), (signal.SIGINT, signal.SIG_IGN)):
        if signal.getsignal(number) is untouched:
            signal.signal(number, signal.default_int_handler)


def note_interrupts() -> None:
    """Let SIGTERM and SIGINT raise KeyboardInterrupt from now on, and remember it. Only for the main function of a
    program that ends at its first interrupt.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupt)


def raise_dropped_interrupt() -> None:
    """Raise KeyboardInterrupt, once, if a signal has raised it after `note_interrupts`. If that exception was not
    dropped, this process is ending already, and waits for nothing more.
    """
    if threading.current_thread() is threading.main_thread() and _is_interrupted.is_set():
        _is_interrupted.clear()
        raise KeyboardInterrupt


_is_interrupted: Final = threading.Event()


def _interrupt(number: int, frame: FrameType | None) -> None:
    _is_interrupted.set()
    signal.default_int_handler(number, frame)


class Guarded(subprocess.Popen[bytes]):
    """A process in a session of its own that ends with this one. When it ends, the rest of its group is ended too."""

    _is_cleared = False

    def __init__(self, command: Sequence[object], **options: Any) -> None:
        take_signals_as_interrupts()
        raise_dropped_interrupt()
        words = [str(word) for word in command]
        super().__init__(make_gated(words), stdin=subprocess.PIPE, start_new_session=True, **options)
        note_start(self)
        open_gate(self)

    def poll(self) -> int | None:
        """See Popen.poll."""
        status = super().poll()
        self._clear(status)
        return status

    def wait(self, timeout: float | None = None) -> int:
        """See Popen.wait."""
        status = super().wait(timeout)
        self._clear(status)
        return status

    def _clear(self, status: int | None) -> None:
        if status is None or self._is_cleared:
            return
        self._is_cleared = True
        note_end(self)


class Ending(Protocol):
    """A process in a session of its own that this process has started."""

    @property
    def pid(self) -> int: ...
    def terminate(self) -> None: ...
    def wait(self, timeout: float | None = None) -> int: ...


def note_start(process: Ending) -> None:
    """Let this process end when its starter has ended."""
    _running.add(process)
    _find_reaper().watch(process.pid)


def note_end(process: Ending) -> None:
    """End the rest of the group of a process that has ended."""
    _running.discard(process)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    _find_reaper().forget(process.pid)


_running: Final[set[Ending]] = set()


@cache
def _find_reaper() -> Reaper:
    """Return the reaper of this process."""
    reaper = Reaper()
    atexit.register(_end_all, reaper)
    return reaper


def _end_all(reaper: Reaper) -> None:
    """End the processes that are left, for example after an interrupted start, and then the reaper.

    Otherwise the reaper would wait for its whole grace: an ended process still exists while its parent, which waits for
    the reaper, has not waited for it.
    """
    for process in list(_running):
        process.terminate()
    for process in list(_running):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
    reaper.dismiss()
