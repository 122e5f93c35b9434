"""Starting and ending one process, so that nothing of it outlives its supervisor.

A process begins behind a gate: a shell that waits for a word on its standard input and then becomes the command.
The word is given after the guardian knows the process; a supervisor that dies before leaves a closed pipe, and
the shell ends. So there is no moment at which a process runs that nobody would end.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from leasehold.private_files import PRIVATE_UMASK, open_private
from leasehold.process_identity import ProcessIdentity, end_group, find_start

_GATE: Final = 'read -r _ || exit 1; exec "$@" </dev/null'
_GUARDIAN: Final = Path(__file__).with_name("reaper.py")
_RUN: Final = "import runpy, sys; sys.path.append(sys.argv[1]); runpy.run_path(sys.argv[2], run_name='__main__')"
"""The folder of our packages goes last, so that nothing in it hides a module of the standard library."""


def make_gated(command: Sequence[str]) -> list[str]:
    """The command behind the gate: it runs once a line comes on its standard input, and never if that ends before."""
    return ["/bin/sh", "-c", _GATE, command[0], *command]


def open_gate(process: subprocess.Popen[bytes]) -> None:
    """Let the command of this process run. It may have been killed already."""
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.write(b"go\n")
            process.stdin.flush()
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.stdin = None


@dataclass(frozen=True)
class Program:
    """What is to run: a name for people and its log, the command, what its surroundings have in addition."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


class Reaper:
    """A process of its own that ends the rest of us when the supervisor is gone, however it went.

    `descriptors` stay open in it: the lock of the stack is held until the last process has ended. It is run by its
    file: by its name the whole application would be imported first, for a process that reads numbers from a pipe.
    """

    def __init__(self, descriptors: Sequence[int] = ()) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - our own file
            [sys.executable, "-I", "-S", "-c", _RUN, str(_GUARDIAN.parents[2]), str(_GUARDIAN)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=tuple(descriptors),
        )

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def watch(self, pid: int) -> None:
        """End this process (and its group) if the supervisor dies. It is a child that was not waited for yet, so that
        its start time is its own.
        """
        self._say(f"+{pid} {find_start(pid)}\n")

    def forget(self, pid: int) -> None:
        """This process has ended, with all its group."""
        self._say(f"-{pid}\n")

    def dismiss(self) -> None:
        """Nothing is left to be watched."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        self._process.wait()

    def _say(self, word: str) -> None:
        # A guardian that was killed is a loss only if the supervisor is killed too.
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.write(word.encode())
                self._process.stdin.flush()


class Child:
    """A program that runs, in a session of its own: Ctrl-C in the terminal reaches the supervisor alone."""

    def __init__(self, program: Program, log: Path, folder: Path, guardian: Reaper) -> None:
        self.program, self._guardian = program, guardian
        with open(log, "ab", opener=open_private) as output:
            self._process = subprocess.Popen(  # noqa: S603 - the Procfile's and our own commands
                make_gated(program.command),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=folder,
                env={**os.environ, **program.environment},
                umask=PRIVATE_UMASK,
            )
        self.identity = ProcessIdentity(self.pid, find_start(self.pid))
        guardian.watch(self.pid)
        open_gate(self._process)

    @property
    def pid(self) -> int:
        """The process, which leads its group."""
        return self._process.pid

    def poll(self) -> int | None:
        """Its exit status; None while it runs."""
        return self._process.poll()

    def ask_to_end(self) -> None:
        """SIGTERM to the process alone: what it has started is its own to end."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float) -> bool:
        """Whether it has ended within this time."""
        try:
            self._process.wait(max(seconds, 0.0))
        except subprocess.TimeoutExpired:
            return False
        return True

    def clear(self) -> None:
        """End whatever is left of it and its group."""
        end_group(self.identity)
        self._process.wait()
        self._guardian.forget(self.pid)
