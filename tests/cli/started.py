"""Commands as processes, for tests that send signals to them."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler.model.reservations import Reservation
from testbed.guarding import Guarded
from testbed.processes import wait_for
from tests.builders import a_lease
from tests.client.intake import a_row

LEASEHOLD = (sys.executable, "-m", "leasehold.cli")


class Started:
    """A command as a process, with its output."""

    def __init__(self, folder: Path, command: tuple[str, ...]) -> None:
        self.out, self.err = folder / "out", folder / "err"
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = Guarded(command, cwd=folder, stdout=out, stderr=err, env=dict(os.environ))

    def read(self) -> str:
        return self.out.read_text()

    def await_output(self) -> str:
        """Wait for the first complete line of output and return it."""
        return wait_for(lambda: self.read() if "\n" in self.read() else None, "the command").splitlines()[0]

    def await_text(self, text: str) -> None:
        wait_for(lambda: text in self.read(), repr(text))

    def await_status(self) -> int:
        return self.process.wait(40)

    def complaints(self) -> list[str]:
        """The lines of `leasehold` on standard error; a shell may add lines about terminated commands."""
        return [line for line in self.err.read_text().splitlines() if line.startswith("leasehold: ")]


Start = Callable[..., Started]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Yield a function that starts `leasehold` with these arguments."""
    found: list[Started] = []

    def begin(*words: str, before: tuple[str, ...] = ()) -> Started:
        found.append(Started(tmp_path, (*before, *LEASEHOLD, *words)))
        return found[-1]

    yield begin
    for each in found:
        if each.process.poll() is None:
            each.process.kill()
            each.process.wait()


def leased(name: str = "r1", **changes: Any) -> Reservation:
    """Return a reservation with a lease on linux-1."""
    return a_row(name, **{"phase": "leased", "token": 7, "leases": (a_lease("linux-1"),), "version": 2, **changes})
