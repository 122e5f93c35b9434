"""Processes of a test stack; each has its own log."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Final, TypeVar

from testbed.guarding import Guarded, raise_dropped_interrupt
from testbed.nursery import FORKED, fork

PATIENCE: Final = 40.0
"""Seconds until the wait for a condition fails; far more than it takes, also on a busy machine."""
STOP_SECONDS: Final = 15.0

Found = TypeVar("Found")


def wait_for(find: Callable[[], Found | None], what: str, patience: float = PATIENCE) -> Found:
    """Call `find` until it returns a true value and return that. Fail after `patience` seconds."""
    deadline = time.monotonic() + patience
    pause = Event()
    raise_dropped_interrupt()
    while not (found := find()):
        raise_dropped_interrupt()
        assert time.monotonic() < deadline, f"waited {patience:g} s in vain for {what}"
        pause.wait(0.02)
    return found


class Process:
    """A process: `python -m MODULE ARGUMENTS`.

    It has its own session, so that its children can be killed with it. It ends with the tests, however they end. On
    Linux the programs of a stack are forked (testbed/nursery.py), and those that are `like` one of them.
    """

    def __init__(
        self, name: str, arguments: Sequence[str], environment: Mapping[str, str], folder: Path, *, like: str = ""
    ) -> None:
        self.name, self._arguments, self._environment = name, arguments, environment
        self._is_forked = sys.platform == "linux" and (like or arguments[0]) in FORKED
        self._folder, self.log = folder, folder / f"{name}.log"
        self._first_byte = self.log.stat().st_size if self.log.exists() else 0
        """Where its output begins; an earlier process of the same name may have written to the same log."""
        self.start()

    def start(self) -> None:
        """Start the process, also after it was killed."""
        with self.log.open("ab") as log:
            forked = fork(self._arguments, self._environment, self._folder, self.log) if self._is_forked else None
            self._process = forked or Guarded(
                [sys.executable, "-m", *self._arguments],
                env=dict(self._environment),
                cwd=self._folder,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def pid(self) -> int:
        """The pid of the running process."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    @property
    def has_succeeded(self) -> bool:
        """Whether the process has ended with status 0."""
        return self._process.poll() == 0

    def await_end(self) -> int:
        """Wait until the process ends and return its status."""
        return self._process.wait(PATIENCE)

    def ask_to_end(self) -> None:
        """Send SIGTERM to the process."""
        if self.is_alive:
            self._process.terminate()

    def stop(self) -> None:
        """Send SIGTERM, and kill the process with its children if it does not end in time."""
        self.ask_to_end()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Kill the process and its children, as a crash of the machine does."""
        os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def read_log(self, characters: int = 4000) -> str:
        """Return the end of its log, including the output before a restart."""
        output = self.log.read_bytes()[self._first_byte :] if self.log.exists() else b""
        return output.decode(errors="replace")[-characters:]
