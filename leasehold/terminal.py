"""Control the terminal of this process: choose the process group that may read from the terminal, and stop this process
as Ctrl-Z does.
"""

import contextlib
import os
import signal
from typing import Final

STOPS_TO_ASK_FOR_IT: Final = frozenset({signal.SIGTTIN, signal.SIGTTOU})
"""Signals by which the kernel stops a process that reads from or writes to the terminal while another process group is
in the foreground.
"""


class Terminal:
    """The controlling terminal of this process. If the process has no terminal, the methods do nothing. Only the main
    thread may call the methods.

    The terminal sends Ctrl-C and Ctrl-Z to its foreground process group, and only that group may read from it.
    """

    def __init__(self) -> None:
        self._given: int | None = None
        try:
            self._descriptor: int | None = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            self._descriptor = None

    def close(self) -> None:
        """Make this process's group the foreground group again, and close the terminal."""
        self.take_back()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    @property
    def is_for_one_command(self) -> bool:
        """Whether an interactive shell started this process as a single command, neither in a script nor in a pipeline:
        the process leads its process group, and standard input and output are terminals.
        """
        return os.isatty(0) and os.isatty(1) and os.getpgrp() == os.getpid()

    def give(self, group: int) -> bool:
        """Make the process group `group` the terminal's foreground group, if this process's group is in the foreground
        now. Return whether the foreground group was changed.
        """
        if not self._move(os.getpgrp(), group):
            return False
        self._given = group
        return True

    def take_back(self) -> None:
        """Make this process's group the foreground group again, if `give` made another group the foreground group."""
        if self._given is not None:
            self._move(self._given, os.getpgrp())
            self._given = None

    def _move(self, present: int, wanted: int) -> bool:
        if self._descriptor is None:
            return False
        # SIGTTOU is blocked, because the kernel would stop a background process that changes the foreground group.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        try:
            if os.tcgetpgrp(self._descriptor) != present:
                return False
            os.tcsetpgrp(self._descriptor, wanted)
        except OSError:
            # The terminal or the group is gone.
            return False
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return True


def stop_own_group() -> None:
    """Stop this process and its process group, as Ctrl-Z does, and return when a shell continues the group.

    Return at once if this process ignores SIGTSTP, or if no shell could continue the group: the kernel does not stop
    such a group.
    """
    before = signal.getsignal(signal.SIGTSTP)
    if before is signal.SIG_IGN:
        return
    signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    try:
        with contextlib.suppress(OSError):
            os.killpg(os.getpgrp(), signal.SIGTSTP)
    finally:
        signal.signal(signal.SIGTSTP, before)
