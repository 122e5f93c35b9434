"""A host of the tests: a guard with commands that run as real processes."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar
from uuid import uuid4

from leasehold.work import guard
from leasehold.work.guard_client import Ended, Event, GuardClient, GuardEvent, GuardLost, Started
from testbed.processes import PATIENCE, wait_for

PYTHON: Final = (sys.executable, "-I", "-S", "-c")
"""Starts faster than with the packages."""
E = TypeVar("E", bound=Event)


def is_running(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    return guard.find_process(pid) is not None


def read_number(path: Path) -> int:
    """Return the number that a command writes into a file; 0: it has not yet."""
    with contextlib.suppress(OSError, ValueError):
        return int(path.read_text(encoding="utf-8"))
    return 0


class GuardedHost:
    """A guard, with the connection to it and the events that arrived."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.client = GuardClient(folder / "guard")
        self.events: list[GuardEvent] = []
        self.guard = self.client.connect().pid
        self._guards = [self.guard]
        self._tags: list[str] = []

    @property
    def keeper(self) -> int:
        """The process id of the parent of the guard."""
        process = guard.find_process(self.guard)
        assert process is not None
        return process.parent

    def start(self, name: str, argv: Sequence[str], **more: Any) -> None:
        """Send the request to start a command; its environment gets PATH and a tag."""
        tag = uuid4().hex
        self._tags.append(tag)
        (self.folder / name).mkdir(exist_ok=True)
        env = {"PATH": os.environ["PATH"], "HOME": str(self.folder), guard.TAG: tag} | more.pop("env", {})
        request = {"do": "start", "id": name, "argv": list(argv), "env": env, "folder": str(self.folder / name)}
        self.client.send(request | more)

    def run(self, name: str, argv: Sequence[str], **more: Any) -> int:
        """Start a command, wait until it runs, and return its process id."""
        self.start(name, argv, **more)
        return self.await_event(Started, name).pid

    def send(self, do: str, name: str, **more: Any) -> None:
        self.client.send({"do": do, "id": name, **more})

    def await_event(self, kind: type[E], name: str) -> E:
        """Wait for an event about a command, and return it."""
        return self.await_that(lambda: next((e for e in self._list(kind, name)), None), f"{kind.__name__} of {name}")

    def await_end(self, name: str) -> Any:
        """Wait for the outcome of a command, and return it."""
        return self.await_event(Ended, name)

    T = TypeVar("T")

    def await_that(self, find: Callable[[], T | None], what: str) -> T:
        """Take events until `find` returns a true value, and return that."""
        until = time.monotonic() + PATIENCE
        while not (found := find()):
            assert time.monotonic() < until, f"waited in vain for {what}; got {self.events}"
            self.events += self.client.wait(0.02)
        return found

    def _list(self, kind: type[E], name: str) -> list[E]:
        return [each for each in self.events if isinstance(each, kind) and getattr(each, "id", None) == name]

    def reconnect(self) -> Mapping[str, Any]:
        """Connect as a new agent does; return the commands of the guard by their ids."""
        listed = self.client.connect()
        self.guard = listed.pid
        self._guards.append(listed.pid)
        return {each.id: each for each in listed.read()}

    def list_tagged(self) -> list[int]:
        """Return the processes of all commands that can be found by their tags."""
        return [pid for pid in guard.list_processes() for tag in self._tags if guard.has_tag(pid, tag)]

    def close(self) -> None:
        for pid in self._guards:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        with contextlib.suppress(GuardLost):
            self.client.send({"do": "end"})
        self.client.close()
        wait_for(lambda: not any(is_running(pid) for pid in self._guards), "the end of the guards")
        wait_for(lambda: not self.list_tagged(), "the end of the commands")
