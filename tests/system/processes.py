"""Processes of a test stack: each with a log of its own, ended by its pid."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Final, TypeVar

from tests.guarding import Guarded

PATIENCE: Final = 40.0
"""Seconds that a test waits for a condition at most: far more than it takes, on a busy machine too."""
STOP_SECONDS: Final = 15.0

Found = TypeVar("Found")


def wait_for(find: Callable[[], Found | None], what: str, patience: float = PATIENCE) -> Found:
    """What `find` gives as soon as it gives something true; asserts that it does in time."""
    deadline = time.monotonic() + patience
    pause = Event()
    while not (found := find()):
        assert time.monotonic() < deadline, f"waited {patience:g} s in vain for {what}"
        pause.wait(0.02)
    return found


class Process:
    """One process: `python -m MODULE ARGUMENTS`, in a session of its own, so that all of it can be ended;
    it ends with the tests, however they end.
    """

    def __init__(self, name: str, words: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        self.name, self._words, self._environment = name, words, environment
        self._folder, self.log = folder, folder / f"{name}.log"
        self._first_byte = self.log.stat().st_size if self.log.exists() else 0
        """Where its own words begin: one of the same name may have run before it."""
        self.start()

    def start(self) -> None:
        """Start it, or start it again after it was killed."""
        with self.log.open("ab") as log:
            self._process = Guarded(
                [sys.executable, "-m", *self._words],
                env=dict(self._environment),
                cwd=self._folder,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def pid(self) -> int:
        """The process that runs now."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    @property
    def has_succeeded(self) -> bool:
        """Whether it ended by itself, its work done."""
        return self._process.poll() == 0

    def await_end(self) -> int:
        """Its status, when it has ended by itself."""
        return self._process.wait(PATIENCE)

    def ask_to_end(self) -> None:
        """Send it SIGTERM."""
        if self.is_alive:
            self._process.terminate()

    def stop(self) -> None:
        """Ask it to end, and end it with its children when it takes too long."""
        self.ask_to_end()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it and its children at once, as a crash of the machine does."""
        os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def read_log(self, characters: int = 4000) -> str:
        """Its last words, also those from before it was started again."""
        said = self.log.read_bytes()[self._first_byte :] if self.log.exists() else b""
        return said.decode(errors="replace")[-characters:]
