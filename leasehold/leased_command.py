"""Run a command while a lease is held: set its environment, control its process group, and end it when the lease is
lost.

The command leads a process group of its own. If the lease is lost, the whole group is killed. If the command ends, the
remaining processes of the group are killed.
"""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from leasehold.client.lease import Lease
from leasehold.errors import LeaseholdError
from leasehold.terminal import STOPS_TO_ASK_FOR_IT, Terminal, stop_own_group

if TYPE_CHECKING:
    from leasehold.client.client import Client

NOT_IN_TIME: Final = 124
LEASE_LOST: Final = 125
NOT_EXECUTABLE: Final = 126
NOT_FOUND: Final = 127
OF_A_SIGNAL: Final = 128
"""If a signal ends a command, its exit status is this number plus the number of the signal, as in shells."""
CLOCK_SECONDS: Final = 1.0
"""Seconds by which the cluster time of this process may differ from that of the stack. If a revoked lease is lost, and
its deadline (`revoke_by`) is at most this far ahead or has passed, the report on standard error gives this reason: the
lease was not given back in time.
"""
RETRY_SECONDS: Final = 1.0
"""Seconds between two attempts of a command in the background to use the terminal."""
ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals that ask a program to end."""
VARIABLES: Final = (
    "LEASEHOLD_RESERVATION",
    "LEASEHOLD_TOKEN",
    "LEASEHOLD_SLOT",
    "LEASEHOLD_ADDRESS",
    "LEASEHOLD_INSTANCE_ID",
    "LEASEHOLD_TYPE",
    "LEASEHOLD_ZONE",
    "LEASEHOLD_RESOURCES",
    "LEASEHOLD_PLACEMENTS",
    "LEASEHOLD_DEADLINE",
    "LEASEHOLD_REVOKED_FILE",
)
"""Environment variables that describe the lease to the command. They cannot be mistaken for settings of Leasehold,
because the name of the variable of a setting contains two underscores in a row, like LEASEHOLD_BROKER__URL.
"""
_PLACEMENT_FIELDS: Final = ("component", "kind", "slot", "token", "resources", "instance_id", "address", "type", "zone")


class Stopped(BaseException):
    """Raised if a signal asks this process to end before the command was started. `number` is the number of
    the signal.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(signal.Signals(number).name)


class NotStarted(LeaseholdError):  # noqa: N818 - as the other errors of the client
    """Raised if the command could not be started. `status`: the exit status that a shell would return: 127 if the
    command was not found, else 126.
    """

    def __init__(self, message: str, status: int) -> None:
        self.status = status
        super().__init__(message)


def make_environment(lease: Lease, revoked_file: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of a command that holds `lease`: those in `inherited`, and LEASEHOLD_ variables
    that describe the lease. If a property of the machine is unknown, its variable is not set.
    """
    placements = [
        {name: getattr(each, name) for name in _PLACEMENT_FIELDS} | {"cores": each.usable_cores}
        for each in lease.placements
    ]
    values = {
        "RESERVATION": lease.id,
        "TOKEN": str(lease.token),
        "SLOT": lease.slot,
        "ADDRESS": lease.address,
        "INSTANCE_ID": lease.instance_id,
        "TYPE": lease.type,
        "ZONE": lease.zone,
        "RESOURCES": json.dumps(lease.resources),
        "PLACEMENTS": json.dumps(placements),
        "DEADLINE": None if lease.deadline is None else f"{lease.deadline:.3f}",
        "REVOKED_FILE": str(revoked_file),
    }
    kept = {name: value for name, value in inherited.items() if name not in VARIABLES}
    return kept | {f"LEASEHOLD_{name}": value for name, value in values.items() if value is not None}


class CommandGroup:
    """The process group of one command. Any thread may send a signal to the group. When `wait` returns, all processes
    of the group have ended.
    """

    def __init__(self) -> None:
        self._pid: int | None = None
        self._is_over = False
        self._early: list[int] = []
        # Reentrant, because a signal handler may interrupt the thread that holds the lock.
        self._guard = threading.RLock()

    @property
    def is_over(self) -> bool:
        """Whether the command and all processes of its group have ended."""
        return self._is_over

    def send(self, number: int) -> None:
        """Send the signal `number` to all processes of the group. Before the start of the command the signal is kept
        and sent at the start; after the end of the group nothing is sent.
        """
        with self._guard:
            if self._pid is None:
                self._early.append(number)
            elif not self._is_over:
                # macOS refuses signals to a group that has only a zombie left.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._pid, number)

    def start(self, words: Sequence[str], environment: Mapping[str, str]) -> int:
        """Start the command and return the id of its process group. Raises NotStarted if the command cannot
        be started.
        """
        try:
            self._process = subprocess.Popen(words, env=environment, process_group=0)  # noqa: S603 - running it is the purpose
        except FileNotFoundError as error:
            raise NotStarted(f"the command {words[0]} cannot be started: {error.strerror}", NOT_FOUND) from None
        except OSError as error:
            raise NotStarted(f"the command {words[0]} cannot be started: {error.strerror}", NOT_EXECUTABLE) from None
        with self._guard:
            self._pid, early = self._process.pid, self._early
            for number in early:
                self.send(number)
        return self._process.pid

    def wait(self, on_stop: Callable[[int], object]) -> int:
        """Wait until the command ends, kill the other processes of its group, and return the exit status of the command
        as a shell would.

        Each time a signal stops the command (as Ctrl-Z does), `on_stop` is called with the number of the signal.
        """
        while True:
            _, status = os.waitpid(self._process.pid, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                break
            on_stop(os.WSTOPSIG(status))
        with self._guard:
            self.send(signal.SIGKILL)
            self._is_over = True
        self._process.returncode = os.waitstatus_to_exitcode(status)
        return self._process.returncode if self._process.returncode >= 0 else OF_A_SIGNAL - self._process.returncode


class Signals:
    """Handles the signals that ask this process to end. Before `pass_on` is called, such a signal raises Stopped, which
    ends the wait for the lease. Afterwards such a signal is sent to the command.

    A signal that this process ignores stays ignored, also by the command; see nohup(1).
    """

    def __init__(self, group: CommandGroup) -> None:
        self._group = group
        self._is_passing = False
        self._stopped_by: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._handle(ENDING)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def pass_on(self) -> None:
        """From now on, send each signal that asks this process to end, and the SIGTSTP of Ctrl-Z, to the leased
        command. Stopped is no longer raised, except here if such a signal came before.
        """
        self._is_passing = True
        if self._stopped_by is not None:
            # It was raised within code that drops every exception, like a destructor.
            raise Stopped(self._stopped_by)
        self._handle((signal.SIGTSTP,))

    def _handle(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._take)

    def _take(self, number: int, _frame: FrameType | None) -> None:
        if not self._is_passing:
            self._stopped_by = number
            raise Stopped(number)
        self._group.send(number)


class LeasedCommand:
    """Runs one command while a lease is held. `report` is called with each message for people, from any thread."""

    def __init__(self, client: "Client", lease: Lease, group: CommandGroup, report: Callable[[str], object]) -> None:
        self._client, self._lease, self._group, self._report = client, lease, group, report
        self._guard = threading.Lock()
        self._is_revoked = self._is_lost = False
        self._revoke_reason: str | None = None

    def run(self, words: Sequence[str], starting: contextlib.AbstractContextManager[None]) -> int:
        """Run the command `words` and return its exit status, or LEASE_LOST if the lease was lost. `starting`: a
        context manager that is active only while the command is started, for example to set which signals the command
        ignores.

        Raises NotStarted if the command cannot be started.
        """
        terminal = Terminal()
        # A thread of the lease may write to the folder while it is removed.
        folder_ = tempfile.TemporaryDirectory(prefix="leasehold-run-", ignore_cleanup_errors=True)
        with folder_ as folder, contextlib.closing(terminal):
            self._revoked_file = Path(folder) / "revoked"
            environment = make_environment(self._lease, self._revoked_file, os.environ)
            with starting:
                group = self._group.start(words, environment)
            if terminal.is_for_one_command:
                terminal.give(group)
            self._lease.on_revoke(self._revoke)
            self._lease.on_lost(self._lose)
            status = self._group.wait(lambda number: self._stop(number, terminal, group))
        with self._guard:
            return LEASE_LOST if self._is_lost else status

    def _stop(self, number: int, terminal: Terminal, group: int) -> None:
        """React to the signal `number` that stopped the command. If the command was stopped because it needs the
        terminal, give it the terminal and continue it; else stop this process too, and continue the command after this
        process was continued.
        """
        if number in STOPS_TO_ASK_FOR_IT and terminal.give(group):
            self._group.send(signal.SIGCONT)
        elif number != signal.SIGSTOP:
            terminal.take_back()
            stop_own_group()
            if not terminal.give(group) and number in STOPS_TO_ASK_FOR_IT:
                # If no shell can give this process the terminal either, the command would stop again at once.
                time.sleep(RETRY_SECONDS)
            if self._lease.is_held:
                self._group.send(signal.SIGCONT)

    def _revoke(self, lease: Lease) -> None:
        with self._guard:
            if self._is_revoked or self._group.is_over:
                return
            self._is_revoked = True
        # The row is read outside of the guard, so that the handling of a lost lease does not wait for Redis.
        row = None
        with contextlib.suppress(LeaseholdError):
            # An answer to a renewal reports a revocation without its reason; the row has it.
            row = None if lease.reason else self._client.get(self._lease.id)
        self._revoke_reason = reason = lease.reason or (row.revoke_reason if row else None) or "revoked"
        deadline = lease.revoke_by
        draft = self._revoked_file.with_suffix(".draft")
        with contextlib.suppress(OSError):
            # The draft is renamed when it is complete, because the command may read the file at any time. Without the
            # file the command still gets the signal.
            draft.write_text(f"{reason}\n{'' if deadline is None else f'{deadline:.3f}'}\n", encoding="utf-8")
            draft.replace(self._revoked_file)
        until = "" if deadline is None else f", and is killed in {deadline - self._client.now():.0f} s if it still runs"
        self._report(f"{lease.id} is being revoked: {reason}; the command gets SIGTERM{until}")
        self._group.send(signal.SIGTERM)

    def _lose(self, lease: Lease) -> None:
        with self._guard:
            if self._is_lost or self._group.is_over:
                return
            self._is_lost = True
        self._group.send(signal.SIGKILL)
        reason = lease.reason
        if lease.revoke_by is not None and self._client.now() >= lease.revoke_by - CLOCK_SECONDS:
            reason = f"it was not given back in time ({self._revoke_reason or 'revoked'})"
        self._report(f"{lease.id} is lost: {reason}; the command is killed")
