"""Read the Procfile, the only definition of the processes of a stack, and start and end these processes so that none
outlives the supervisor (the process that started the stack). Keep them running: each program that ended is restarted
after a pause that grows.

A process begins as a gate: a shell that waits for a line on its standard input and then becomes the command. The
supervisor first reports the process to the reaper, and then sends the line. If the supervisor dies before that, the
shell reads the end of its input and exits. So the command never runs before the reaper knows the process. A process
that the nursery has forked waits in the same way.
"""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import leasehold
from leasehold.private_files import PRIVATE_UMASK, open_private
from leasehold.process_identity import ProcessIdentity, end_group, find_start
from leasehold.stack.nursery import Forked, Nursery

_GATE: Final = 'read -r _ || exit 1; exec "$@" </dev/null'
_REAPER: Final = Path(__file__).with_name("reaper.py")
_RUN: Final = "import runpy, sys; sys.path.append(sys.argv[1]); runpy.run_path(sys.argv[2], run_name='__main__')"
"""Python code that runs the reaper's file. It adds the folder of our packages to the end of the import path, so that
they cannot hide modules of the standard library.
"""


def make_gated(command: Sequence[str]) -> list[str]:
    """Return the command line of a gate: a shell that waits for a line on its input and then becomes `command`, or
    exits if its input ends.
    """
    return ["/bin/sh", "-c", _GATE, command[0], *command]


def open_gate(process: subprocess.Popen[bytes]) -> None:
    """Send a gated process the line that lets it run its command. If the process was already killed, do nothing."""
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.write(b"go\n")
            process.stdin.flush()
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.stdin = None


@dataclass(frozen=True)
class Program:
    """A program of a stack: its name, which is also the name of its log, its command, and additions to its
    environment.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


class Reaper:
    """A separate process that ends the stack's processes after the supervisor has ended, even if SIGKILL ended the
    supervisor.

    The reaper keeps `descriptors` open, so that the lock of the stack is held until the last process has ended. It is
    started from its file, because starting it as a module would first import the whole application.
    """

    def __init__(self, descriptors: Sequence[int] = ()) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - our own file
            [sys.executable, "-I", "-S", "-c", _RUN, str(_REAPER.parents[2]), str(_REAPER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=tuple(descriptors),
        )

    @property
    def pid(self) -> int:
        """The id of the reaper's process."""
        return self._process.pid

    def watch(self, pid: int) -> None:
        """Let the reaper end this process and its group when the supervisor dies.

        The process must be a child whose exit status the supervisor has not read yet (`wait`). Until that read, the
        system gives the id `pid` to no other process. So the start time that is read here is that of the child.
        """
        self._send(f"+{pid} {find_start(pid)}\n")

    def forget(self, pid: int) -> None:
        """Let the reaper stop watching a process that has ended, with all processes of its group."""
        self._send(f"-{pid}\n")

    def dismiss(self) -> None:
        """End the reaper. Call this after all processes of the stack have ended."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        self._process.wait()

    def _send(self, line: str) -> None:
        # A failed write is not an error: a killed reaper matters only if the supervisor is killed too.
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.write(line.encode())
                self._process.stdin.flush()


class Child:
    """A running program of the stack, in a session of its own, so that Ctrl-C in the terminal reaches only the
    supervisor.
    """

    def __init__(self, program: Program, log: Path, folder: Path, reaper: Reaper, nursery: Nursery | None) -> None:
        self.program, self._reaper = program, reaper
        forked = nursery.fork(program.command, program.environment, log) if nursery else None
        self._process = forked or self._open(program, log, folder)
        self.identity = ProcessIdentity(self.pid, find_start(self.pid))
        reaper.watch(self.pid)
        if isinstance(self._process, Forked):
            self._process.begin()
        else:
            open_gate(self._process)

    @staticmethod
    def _open(program: Program, log: Path, folder: Path) -> subprocess.Popen[bytes]:
        with open(log, "ab", opener=open_private) as output:
            return subprocess.Popen(  # noqa: S603 - the Procfile's and our own commands
                make_gated(program.command),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=folder,
                env={**os.environ, **program.environment},
                umask=PRIVATE_UMASK,
            )

    @property
    def pid(self) -> int:
        """The id of the process, and of the process group that it leads."""
        return self._process.pid

    def poll(self) -> int | None:
        """Return the exit status of the process; None while the process runs."""
        return self._process.poll()

    def terminate(self) -> None:
        """Send SIGTERM to the process, but not to its group, because the process ends its own children. Do nothing if
        it has ended.
        """
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the process for up to `seconds`. Return whether it has ended."""
        try:
            self._process.wait(max(seconds, 0.0))
        except subprocess.TimeoutExpired:
            return False
        return True

    def clear(self) -> None:
        """Kill the remaining processes of this process's group, and wait for the end of this process. Then remove this
        process from the list of processes that the reaper ends when the supervisor dies.
        """
        end_group(self.identity)
        self._process.wait()
        if isinstance(self._process, Forked):
            self._process.release()
        self._reaper.forget(self.pid)


class ProcfileError(Exception):
    """Raised if the Procfile is missing, or if one of its lines is not `name: command`."""


def find_procfile() -> Path:
    """Return the path of the Procfile: in a checkout the one next to the package, else the copy inside the installed
    package.
    """
    package = Path(leasehold.__file__).parent
    for candidate in (package.parent / "Procfile", package / "Procfile"):
        if candidate.is_file():
            return candidate
    raise ProcfileError("this installation has no Procfile: install the package leasehold again")


def read_procfile(text: str) -> list[Program]:
    """Return the programs of a Procfile in order. The command `python` is replaced by the interpreter of
    this process.
    """
    programs = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, colon, command = line.partition(":")
        words = shlex.split(command)
        if not colon or not name.strip() or not words:
            raise ProcfileError(f"Procfile, line {number}: expected `name: command`, got {line!r}")
        if words[0] in {"python", "python3"}:
            words[0] = sys.executable
        programs.append(Program(name.strip(), tuple(words)))
    return programs


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
