"""Keeps a set of programs running: starts them, restarts dead ones after a growing pause, and ends them all."""

import shlex
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from leasehold.process_identity import ProcessIdentity
from leasehold.stack.programs import Child, Program, Reaper

FIRST_PAUSE_SECONDS: Final = 0.5
LONGEST_PAUSE_SECONDS: Final = 15.0
SETTLED_SECONDS: Final = 30.0
"""After running this long a program's pause before a restart is the first one again."""
GRACE_SECONDS: Final = 6.0
"""How long a program may take to end before it is killed; longer than Celery's soft shutdown."""
_POLL_SECONDS: Final = 0.1


@dataclass
class Watched:
    """A program under supervision: its process, or the time at which it will be restarted."""

    program: Program
    child: Child | None
    started_at: float
    pause: float = FIRST_PAUSE_SECONDS
    due: float | None = None
    restarts: int = 0


class Supervisor:
    """Programs under one reaper, watched by a thread. `on_change` is called after each death and restart."""

    def __init__(self, folder: Path, logs: Path, reaper: Reaper, on_change: Callable[[], None]) -> None:
        self._folder, self._logs, self._reaper = folder, logs, reaper
        self._on_change = on_change
        self._watched: dict[str, Watched] = {}
        self._guard = threading.RLock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="supervisor", daemon=True)

    def begin(self) -> None:
        """Start the thread that watches the programs of the stack."""
        self._thread.start()

    def start(self, program: Program) -> bool:
        """Start a program and keep it running. Return False if the programs are already being ended."""
        with self._guard:
            if self._stopping.is_set():
                return False
            self._watched[program.name] = Watched(program, self._spawn(program), time.monotonic())
            return True

    def pids(self) -> dict[str, int]:
        """Return the pids of the running processes by name."""
        return {name: each.pid for name, each in self.identities().items()}

    def identities(self) -> dict[str, ProcessIdentity]:
        """Return the running processes with their start times and commands, by name."""
        with self._guard:
            return {
                name: replace(each.child.identity, command=shlex.join(each.program.command))
                for name, each in self._watched.items()
                if each.child
            }

    def restarts(self) -> dict[str, int]:
        """Return how often each program was restarted."""
        with self._guard:
            return {name: each.restarts for name, each in self._watched.items()}

    def end(self, names: Iterable[str], grace: float = GRACE_SECONDS) -> None:
        """End these programs together; kill those that take longer than the grace."""
        with self._guard:
            ending = [self._watched.pop(name) for name in names if name in self._watched]
        children = [each.child for each in ending if each.child]
        for child in children:
            child.terminate()
        until = time.monotonic() + grace
        for child in children:
            child.wait(until - time.monotonic())
            child.clear()

    def end_all(self, last: Iterable[str], grace: float = GRACE_SECONDS) -> None:
        """End all programs. Those in `last` end after the others, which need them to end cleanly."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        kept = set(last)
        self.end([name for name in list(self._watched) if name not in kept], grace)
        self.end(list(self._watched), grace)

    def _spawn(self, program: Program) -> Child:
        return Child(program, self._logs / f"{program.name}.log", self._folder, self._reaper)

    def _watch(self) -> None:
        while not self._stopping.wait(_POLL_SECONDS):
            with self._guard:
                changed = [self._check(each, time.monotonic()) for each in self._watched.values()]
            if any(changed):
                self._on_change()

    def _check(self, watched: Watched, now: float) -> bool:
        """Record the death of a program, or restart a program whose pause is over. Return whether anything changed."""
        if watched.child is not None:
            if watched.child.poll() is None:
                return False
            watched.child.clear()
            if now - watched.started_at >= SETTLED_SECONDS:
                watched.pause = FIRST_PAUSE_SECONDS
            watched.child, watched.due = None, now + watched.pause
            watched.pause = min(watched.pause * 2, LONGEST_PAUSE_SECONDS)
            return True
        if watched.due is None or now < watched.due:
            return False
        watched.child, watched.started_at, watched.due = self._spawn(watched.program), now, None
        watched.restarts += 1
        return True
