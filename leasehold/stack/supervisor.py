"""Keep a set of programs running: start them, restart each program that ended after a pause that grows, and end them
all.
"""

import shlex
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from leasehold.process_identity import ProcessIdentity
from leasehold.stack.nursery import Nursery
from leasehold.stack.programs import Child, Program, Reaper

FIRST_PAUSE_SECONDS: Final = 0.5
LONGEST_PAUSE_SECONDS: Final = 15.0
SETTLED_SECONDS: Final = 30.0
"""A program that has run for this many seconds is restarted after FIRST_PAUSE_SECONDS again, however often it was
restarted before.
"""
GRACE_SECONDS: Final = 6.0
"""Seconds that a program may take to end before it is killed. It is longer than Celery's soft shutdown."""
_POLL_SECONDS: Final = 0.1


@dataclass
class Watched:
    """One supervised program: its process, or, after the process ended, the monotonic time `due` of the restart.
    `pause`: seconds between the next end of the process and its restart.
    """

    program: Program
    child: Child | None
    started_at: float
    pause: float = FIRST_PAUSE_SECONDS
    due: float | None = None
    restarts: int = 0


class Supervisor:
    """Keeps programs running, watched by a thread. `on_change` is called each time a program has ended or was
    restarted.
    """

    def __init__(
        self, folder: Path, logs: Path, reaper: Reaper, on_change: Callable[[], None], nursery: Nursery | None = None
    ) -> None:
        self._folder, self._logs, self._reaper, self._nursery = folder, logs, reaper, nursery
        self._on_change = on_change
        self._watched: dict[str, Watched] = {}
        self._guard = threading.RLock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="supervisor", daemon=True)

    def begin(self) -> None:
        """Start the thread that watches and restarts the programs."""
        self._thread.start()

    def start(self, program: Program) -> bool:
        """Start a program and keep it running. Return False without starting it if `end_all` was called before."""
        with self._guard:
            if self._stopping.is_set():
                return False
            self._watched[program.name] = Watched(program, self._spawn(program), time.monotonic())
            return True

    def pids(self) -> dict[str, int]:
        """Return the ids of the running processes, by the name of the program."""
        return {name: each.pid for name, each in self.identities().items()}

    def identities(self) -> dict[str, ProcessIdentity]:
        """Return the running processes, with start time and command, by the name of the program."""
        with self._guard:
            return {
                name: replace(each.child.identity, command=shlex.join(each.program.command))
                for name, each in self._watched.items()
                if each.child
            }

    def restarts(self) -> dict[str, int]:
        """Return how often each program was restarted, by its name."""
        with self._guard:
            return {name: each.restarts for name, each in self._watched.items()}

    def end(self, names: Iterable[str], grace: float = GRACE_SECONDS) -> None:
        """End the programs `names` together, and kill those that have not ended after `grace` seconds."""
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
        """End all programs. The programs `last` end after all other programs, which need them until they have ended. A
        program that has not ended `grace` seconds after SIGTERM is killed.
        """
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        kept = set(last)
        self.end([name for name in list(self._watched) if name not in kept], grace)
        self.end(list(self._watched), grace)
        if self._nursery is not None:
            self._nursery.close()

    def _spawn(self, program: Program) -> Child:
        return Child(program, self._logs / f"{program.name}.log", self._folder, self._reaper, self._nursery)

    def _watch(self) -> None:
        while not self._stopping.wait(_POLL_SECONDS):
            with self._guard:
                changed = [self._check(each, time.monotonic()) for each in self._watched.values()]
            if any(changed):
                self._on_change()

    def _check(self, watched: Watched, now: float) -> bool:
        """If the process of a program has ended, record that and plan the restart; if a restart is due, restart the
        program. Return whether anything changed.
        """
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
