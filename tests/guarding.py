"""Whatever tests, benches and chaos start ends with them, however they end.

They have the stack's own guardian (leasehold/stack/reaper.py): a process that hears by the end of a pipe that they
are gone, killed ones too, and ends what they had started. SIGTERM is taken as Ctrl-C, so that folders go as well.
"""

import atexit
import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from leasehold.stack.programs import Reaper, make_gated, open_gate

__all__ = ["Guarded", "take_signals_as_interrupts"]

END_SECONDS: Final = 5.0


def take_signals_as_interrupts() -> None:
    """From now on SIGTERM raises KeyboardInterrupt, unless it has a handler already; so does SIGINT where it was
    inherited as ignored. Processes that are started afterwards begin with both as they are by default.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    for number, untouched in ((signal.SIGTERM, signal.SIG_DFL), (signal.SIGINT, signal.SIG_IGN)):
        if signal.getsignal(number) is untouched:
            signal.signal(number, signal.default_int_handler)


class Guarded(subprocess.Popen[bytes]):
    """A process in a session of its own, which ends with this one. When it ends, so does all of its group."""

    _is_cleared = False

    def __init__(self, command: Sequence[object], **options: Any) -> None:
        take_signals_as_interrupts()
        words = [str(word) for word in command]
        super().__init__(make_gated(words), stdin=subprocess.PIPE, start_new_session=True, **options)
        _running.add(self)
        _find_guardian().watch(self.pid)
        open_gate(self)

    def poll(self) -> int | None:
        """See Popen."""
        status = super().poll()
        self._clear(status)
        return status

    def wait(self, timeout: float | None = None) -> int:
        """See Popen."""
        status = super().wait(timeout)
        self._clear(status)
        return status

    def _clear(self, status: int | None) -> None:
        if status is None or self._is_cleared:
            return
        self._is_cleared = True
        _running.discard(self)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        _find_guardian().forget(self.pid)


_running: Final[set[Guarded]] = set()


@cache
def _find_guardian() -> Reaper:
    """The one of this process."""
    guardian = Reaper()
    atexit.register(_leave, guardian)
    return guardian


def _leave(guardian: Reaper) -> None:
    """End what nobody stopped, because its start was interrupted, say; then the guardian has nothing to wait for.

    It would wait its whole grace: what has ended and whose parent still waits for the guardian is not quite gone.
    """
    for process in list(_running):
        process.terminate()
    for process in list(_running):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
    guardian.dismiss()
