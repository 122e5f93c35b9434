"""Keeps a set of programs running: starts them, starts again what dies, with a growing pause, and ends them all."""

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
"""A program that ran for so long begins with the first pause again."""
GRACE_SECONDS: Final = 6.0
"""How long a program may take to end before it is killed; above Celery's soft shutdown."""
_LOOK_SECONDS: Final = 0.1


@dataclass
class Watched:
    """A program under supervision: its process, or when it is due to be started again."""

    program: Program
    child: Child | None
    started_at: float
    pause: float = FIRST_PAUSE_SECONDS
    due: float | None = None
    restarts: int = 0


class Supervisor:
    """Programs under one guardian; a thread looks after them. `on_change` is called after each restart."""

    def __init__(self, folder: Path, logs: Path, guardian: Reaper, on_change: Callable[[], None]) -> None:
        self._folder, self._logs, self._guardian = folder, logs, guardian
        self._on_change = on_change
        self._watched: dict[str, Watched] = {}
        self._guard = threading.RLock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._look_after, name="supervisor", daemon=True)

    def begin(self) -> None:
        """Look after what is started from now on."""
        self._thread.start()

    def start(self, program: Program) -> bool:
        """Start a program and keep it running; False when everything is being ended already."""
        with self._guard:
            if self._stopping.is_set():
                return False
            self._watched[program.name] = Watched(program, self._spawn(program), time.monotonic())
            return True

    def pids(self) -> dict[str, int]:
        """The processes that run now, by name."""
        with self._guard:
            return {name: each.child.pid for name, each in self._watched.items() if each.child}

    def identities(self) -> dict[str, ProcessIdentity]:
        """The processes that run now with their start times and commands, by name."""
        with self._guard:
            return {
                name: replace(each.child.identity, command=shlex.join(each.program.command))
                for name, each in self._watched.items()
                if each.child
            }

    def restarts(self) -> dict[str, int]:
        """How often each program was started again."""
        with self._guard:
            return {name: each.restarts for name, each in self._watched.items()}

    def end(self, names: Iterable[str], grace: float = GRACE_SECONDS) -> None:
        """End these, all at once; killed when they take longer than the grace."""
        with self._guard:
            ending = [self._watched.pop(name) for name in names if name in self._watched]
        children = [each.child for each in ending if each.child]
        for child in children:
            child.ask_to_end()
        until = time.monotonic() + grace
        for child in children:
            child.wait(until - time.monotonic())
            child.clear()

    def end_all(self, last: Iterable[str], grace: float = GRACE_SECONDS) -> None:
        """End everything, and these last, since the others need them to end well."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        kept = set(last)
        self.end([name for name in list(self._watched) if name not in kept], grace)
        self.end(list(self._watched), grace)

    def _spawn(self, program: Program) -> Child:
        return Child(program, self._logs / f"{program.name}.log", self._folder, self._guardian)

    def _look_after(self) -> None:
        while not self._stopping.wait(_LOOK_SECONDS):
            with self._guard:
                changed = [self._look_at(each, time.monotonic()) for each in self._watched.values()]
            if any(changed):
                self._on_change()

    def _look_at(self, watched: Watched, now: float) -> bool:
        """Note a death, or start again what is due; whether anything changed."""
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
