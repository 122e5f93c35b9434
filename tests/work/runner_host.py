"""A runner of the tests, with its fake scheduler, its guard and its events."""

import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from leasehold.client.models import LeaseKey
from leasehold.work import guard
from leasehold.work.command import HostIdentity, Signer
from leasehold.work.guard_client import GuardClient, GuardLost
from leasehold.work.ports import Outcome
from leasehold.work.records import Records
from leasehold.work.runner import Runner
from testbed.processes import wait_for
from tests.work.fake_scheduler import SIGNER, FakeScheduler
from tests.work.guarded_host import is_running

HOST = HostIdentity("lab-1", "m1", "b-1")
T = TypeVar("T")


class RunnerHost:
    """A host whose runner works in this process."""

    def __init__(self, folder: Path, scheduler: FakeScheduler | None = None, **more: Any) -> None:
        self.folder = folder / "commands"
        self.scheduler = scheduler or FakeScheduler(HOST)
        self.events: list[Mapping[str, Any]] = []
        signer: Signer | None = more.pop("signer", SIGNER)
        self.runner = Runner(self.scheduler, signer, self.scheduler.host, self.folder, self.events.append, **more)
        self.runner.start()

    def look(self) -> None:
        """Let the runner see the present leases."""
        self.runner.look(list(self.scheduler.leases.values()), guard.read_boot_clock())

    def await_that(self, find: Callable[[], T | None], what: str) -> T:
        """Wait for a condition; the leases are read meanwhile, as the agent does."""

        def look() -> T | None:
            self.look()
            return find()

        return wait_for(look, f"{what}; requests {self.scheduler.requests[-20:]}, events {self.events}")

    def await_outcome(self, key: LeaseKey) -> Outcome:
        return self.await_that(lambda: self.scheduler.outcomes.get(key), f"the outcome of {key}")

    def await_start(self, key: LeaseKey) -> int:
        """Wait until a command runs, and return its process id."""

        def find() -> int | None:
            names = ("command_started", "taken_back")
            found = [each for each in self.events if each["event"] in names and each["reservation"] == key.reservation]
            return int(found[-1]["pid"]) if found else None

        return self.await_that(find, f"the start of {key}")

    def await_event(self, name: str) -> Mapping[str, Any]:
        return self.await_that(lambda: next((each for each in self.events if each["event"] == name), None), name)

    def list_events(self, name: str) -> list[Mapping[str, Any]]:
        return [each for each in self.events if each["event"] == name]

    @property
    def guard(self) -> int:
        """The process id of the guard; 0: none was started."""
        return read_guard(self.folder)

    def close(self) -> None:
        self.runner.close()
        end_guard(self.folder)


def read_guard(folder: Path) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int((folder / "guard" / guard.LOCK).read_text(encoding="utf-8").split()[0])
    return 0


def list_left(folder: Path) -> list[int]:
    """Return the running processes of all commands whose records are in a folder."""
    tags = [each.tag for each in Records(folder).load()]
    return [pid for pid in guard.list_processes() for tag in tags if guard.has_tag(pid, tag)]


def end_guard(folder: Path) -> None:
    pid = read_guard(folder)
    if pid and is_running(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        client = GuardClient(folder / "guard")
        with contextlib.suppress(GuardLost):
            client.connect()
            client.send({"do": "end"})
        client.close()
        wait_for(lambda: not is_running(read_guard(folder)), "the end of the guard")
    wait_for(lambda: not list_left(folder), "the end of the commands")
