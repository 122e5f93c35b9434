"""`python -m tests.chaos.commands.agent WORDS`: the command `leasehold` of a host, whose agent notes what it relies on.

The file that NOTES names gets a line for each answer by which a command may run on, with the time at which the request
was sent; and one for each start of the runner and each connection to a guard.
"""

import json
import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Final

from leasehold.work.guard import read_boot_clock
from tests.chaos.commands.switches import switch_off

NOTES: Final = "CHAOS_NOTES"
OFF: Final = "CHAOS_OFF"


class Notes:
    """The notes of one host, which its agents write one after the other."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def write(self, what: str, **more: Any) -> None:
        """Write one line by one call, so that a kill cuts off none."""
        os.write(self._file, json.dumps({"what": what, "at": read_boot_clock(), **more}).encode() + b"\n")

    def write_term(self, key: Any, sent_at: float, ttl: float | None) -> None:
        """Note that a request about a lease, sent at `sent_at`, was answered: the lease has `ttl` left."""
        lease = {"reservation": key.reservation, "component": key.component, "token": str(key.token)}
        self.write("term", sent_at=sent_at, ttl=ttl, **lease)


def note_all(notes: Notes) -> None:
    """Wrap the functions of this process whose results are noted."""
    from leasehold.agent.commands import HostCommands
    from leasehold.work.guard_client import GuardClient
    from leasehold.work.ports import Renewed, Taken
    from leasehold.work.runner import Runner

    def note_takes(found: Any, sent_at: float, _nonces: Any) -> None:
        for key, answer in found.items():
            if isinstance(answer, Taken):
                notes.write_term(key, sent_at, json.loads(answer.command)["ttl"])

    def note_renewals(found: Any, sent_at: float, _keys: Any) -> None:
        for key, answer in found.items():
            if isinstance(answer, Renewed):
                notes.write_term(key, sent_at, answer.ttl)

    _wrap(HostCommands, "take", note_takes)
    _wrap(HostCommands, "renew", note_renewals)
    _wrap(Runner, "start", lambda *_: notes.write("runner", pid=os.getpid()))
    _wrap(GuardClient, "connect", lambda *_: notes.write("connected", pid=os.getpid()))


def _wrap(owner: Any, name: str, note: Callable[..., None]) -> None:
    """Call `note` after each call that returns: with the result, the time of the call, and the arguments."""
    inner = getattr(owner, name)

    @wraps(inner)
    def noting(self: Any, *given: Any, **named: Any) -> Any:
        sent_at = read_boot_clock()
        found = inner(self, *given, **named)
        note(found, sent_at, *given, **named)
        return found

    setattr(owner, name, noting)


def main() -> None:
    """Run the command with the words of the command line."""
    note_all(Notes(Path(os.environ[NOTES])))
    if off := os.environ.get(OFF):
        switch_off(off)
    from leasehold.cli import main as carry_out

    carry_out()


if __name__ == "__main__":
    main()
