"""The guard: a small process that starts the commands of a host's leases, keeps their output, and ends them in time.

It is the parent of all commands. It ends a command at its deadline by itself, also if the agent is dead or stopped; the
agent moves the deadline while it reaches the scheduler. Everything that a command started ends with it: its session,
and on Linux also processes that left the session, because an orphan becomes a child of the guard. The guard has a
parent of its own, the keeper, which ends the commands if the guard is killed.

The file is run by its path, and imports only the standard library, so that the process stays small. Requests and events
are lines of JSON on a Unix socket, see `Guard._carry_out` and `Command`.
"""

import contextlib
import errno
import fcntl
import json
import os
import resource
import select
import signal
import socket
import sys
import time
import warnings  # noqa: F401 - os.execvp imports it in a child, whose user may not read the library of this Python
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

VERSION: Final = 1
"""Version of the requests and events."""
SOCKET: Final = "guard.socket"
LOCK: Final = "guard.lock"
LOG: Final = "guard.log"
OUTPUT: Final = "output"
"""Name of the file with the newer part of a command's output."""
OLDER_OUTPUT: Final = "output.1"
OUTCOME: Final = "outcome.json"
TAG: Final = "LEASEHOLD_TAG"
"""Environment variable with an unguessable text, by which the processes of a command are found."""
MOST_OUTPUT: Final = 16 * 1024 * 1024
"""Size in bytes of each of the two files with the output of a command."""
MOST_TAIL: Final = 8192
TICK_SECONDS: Final = 1.0
"""Longest pause of the guard while commands run. The pause is measured by a clock that stops while the machine sleeps,
and the deadlines are not.
"""
PASS_SECONDS: Final = 0.02
LONGEST_PASS_SECONDS: Final = 0.5
"""The first and the longest pause between two searches for processes that an ended command has left."""
AFTER_SECONDS: Final = 20.0
"""Longest time for the program that is run after a command, in seconds."""
LEFT_SECONDS: Final = 10.0
"""Seconds after which the end of a command is reported although processes of it resist SIGKILL."""
_MOST_ENDED: Final = 10_000
"""Ended commands that are remembered for orphans of running ones."""
_READ: Final = 65_536
_FOREVER: Final = float("inf")
_MOST_LINE: Final = 4 * 1024 * 1024
_MOST_UNSENT: Final = 1024 * 1024
"""Bytes of unsent events at which no further output is reported. Events of other kinds are always sent."""
_MOST_READS: Final = 64
"""Reads of the rest of an ended command's output, each of at most _READ bytes; a pipe holds at most 1 MiB."""
_NO_TEXT: Final = dict.fromkeys([0, *range(0xDC80, 0xDD00)], "?")
"""NUL, and the characters to which Python decodes bytes that are not UTF-8."""
_FILE_MODE: Final = 0o600
_PROC: Final = "/proc"
_IS_LINUX: Final = sys.platform == "linux"
_SEES_PROCESSES: Final = os.path.exists(f"{_PROC}/self/stat")
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_FAILED: Final = 127
_TICKS: Final = os.sysconf("SC_CLK_TCK")
"""Kernel ticks a second."""


def _find_prctl() -> Callable[[int, int], int] | None:
    """Return prctl(2); None on a system that has none."""
    if not _IS_LINUX:
        return None
    try:
        import ctypes  # noqa: PLC0415 - some builds of Python have none

        call = ctypes.CDLL(None, use_errno=True).prctl
    except (ImportError, OSError, AttributeError):
        return None

    def prctl(option: int, value: int) -> int:
        return int(call(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)))

    return prctl


def read_boot_clock() -> float:
    """Return the seconds since an instant of this boot, on a clock that runs while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Process(NamedTuple):
    """A running process. `started`: its start time in kernel ticks since boot."""

    pid: int
    parent: int
    group: int
    session: int
    started: int


def list_processes() -> dict[int, Process]:
    """Return the processes of this machine by their ids, without zombies; {} on a system without /proc."""
    found = {}
    with contextlib.suppress(OSError):
        for name in os.listdir(_PROC):
            if name.isdecimal() and (process := find_process(int(name))):
                found[process.pid] = process
    return found


def find_process(pid: int) -> Process | None:
    """Return a process; None if it has ended."""
    words = _read(f"{_PROC}/{pid}/stat").rpartition(b")")[2].split()
    # A process whose first thread alone has ended looks like a zombie, with other threads.
    if len(words) < 20 or (words[0] in {b"Z", b"X"} and int(words[17]) <= 1):  # noqa: PLR2004 - see proc(5)
        return None
    return Process(pid, int(words[1]), int(words[2]), int(words[3]), int(words[19]))


def has_tag(pid: int, tag: str) -> bool:
    """Return whether a process was started with this tag in its environment."""
    return f"\0{TAG}={tag}\0".encode() in b"\0" + _read(f"{_PROC}/{pid}/environ")


def kill(process: Process) -> None:
    """Send SIGKILL to exactly this process."""
    with contextlib.suppress(OSError):
        descriptor = _open_descriptor(process.pid)
        try:
            now = find_process(process.pid)
            if now is None or now.started != process.started:
                return
            if descriptor is None:
                os.kill(process.pid, signal.SIGKILL)
            else:
                # The id may go to another process after the check; the descriptor does not.
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            if descriptor is not None:
                os.close(descriptor)


def _open_descriptor(pid: int) -> int | None:
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError:
        return None


def kill_group(group: int) -> bool:
    """Send SIGKILL to a process group. Return whether it had processes."""
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        # macOS refuses signals to a group that has only a zombie left.
        return False
    return True


def _read(path: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        parts = []
        while part := os.read(descriptor, _READ):
            parts.append(part)
        return b"".join(parts)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def kill_cgroup(folder: str) -> bool:
    """Kill all processes of a cgroup and of the cgroups in it. Return whether it had processes."""
    if b"populated 1" not in _read(f"{folder}/cgroup.events"):
        return False
    try:
        _write(f"{folder}/cgroup.kill", "1")
    except OSError:
        # Kernels before 5.14 have no such file.
        for place, _, files in os.walk(folder):
            for word in _read(f"{place}/cgroup.procs").split() if "cgroup.procs" in files else ():
                with contextlib.suppress(OSError):
                    os.kill(int(word), signal.SIGKILL)
    return True


def remove_cgroup(folder: str) -> None:
    """Remove a cgroup that has no processes, with the cgroups in it."""
    for place, _, _ in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(place)


class Output:
    """The output of one command: two files of bounded size in `folder`, and its end in memory. A part that cannot be
    written, for example because the disk is full, is dropped and counted.
    """

    def __init__(self, folder: str, most: int) -> None:
        self._folder, self._most = folder, most
        self._file: int | None = None
        self._size = 0
        self._end = b""
        self.bytes = self.dropped = 0
        self.reported = 0
        """The number of bytes at the last report to the agent."""

    @property
    def tail(self) -> str:
        """The end of the output as text of at most MOST_TAIL bytes in UTF-8, which databases can store. It has as many
        bytes as the output, so that a reader of a part of it counts rightly: a byte that is no text becomes "?".
        """
        end = self._end[-MOST_TAIL:]
        if len(self._end) > MOST_TAIL:
            # The first character may be cut.
            start = next((at for at, byte in enumerate(end[:4]) if byte & 0xC0 != 0x80), 0)  # noqa: PLR2004 - UTF-8
            end = end[start:]
        return end.decode("utf-8", "surrogateescape").translate(_NO_TEXT)

    def write(self, data: bytes) -> None:
        self.bytes += len(data)
        self._end = (self._end + data[-MOST_TAIL - 1 :])[-MOST_TAIL - 1 :]
        written = 0
        with contextlib.suppress(OSError):
            while written < len(data):
                if self._file is None or self._size >= self._most:
                    self._open()
                count = os.write(self._file or 0, data[written : written + self._most - self._size])
                written += count
                self._size += count
        self.dropped += len(data) - written

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> None:
        path = f"{self._folder}/{OUTPUT}"
        if self._file is not None:
            self.close()
            os.replace(path, f"{self._folder}/{OLDER_OUTPUT}")
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _FILE_MODE)
        self._size = 0


class NotStarted(Exception):  # noqa: N818 - an outcome
    """Raised if a command cannot be started. The message states why."""


class Command:
    """One command. Its fields come from the request `start`:

    `id`; `argv`, `env`, `cwd`, `user`; `folder`: where its output and its outcome are kept; `cgroup`: the cgroup that
    is made for it, None: none; `deadline`: the time on the boot clock at which it ends, None: none; `most_output`;
    `after`: the arguments of a program that is run when nothing of the command is left, for example to remove a
    container, None: none.
    """

    def __init__(self, request: Mapping[str, Any]) -> None:
        self.id: str = request["id"]
        self.argv: list[str] = request["argv"]
        self.env: dict[str, str] = request["env"]
        self.cwd: str | None = request.get("cwd")
        self.user: str | None = request.get("user")
        self.folder: str = request["folder"]
        self.cgroup: str | None = request.get("cgroup")
        self.deadline: float | None = request.get("deadline")
        self.after: list[str] | None = request.get("after")
        self.after_pid = 0
        self.after_until = 0.0
        self.tag = self.env.get(TAG, "")
        self.output = Output(self.folder, request.get("most_output", MOST_OUTPUT))
        self.pid = 0
        self.begun: int | None = None
        """Start time of the process, see `Process.started`."""
        self.pipe: int | None = None
        self.trouble: int | None = None
        """The pipe through which the child reports why it could not start; it is closed when the command runs."""
        self.error = b""
        self.is_started = False
        self.stop_signal: int | None = None
        """The signal that asks it to end; None: it was not asked."""
        self.kill_at: float | None = None
        self.cause: str | None = None
        """Why the guard has ended the command: "deadline", "stop", "kill"; None: it has not."""
        self.status: int | None = None
        """The status as of `os.waitstatus_to_exitcode`."""
        self.ending_since: float | None = None
        self.pass_at = 0.0
        self.pause = PASS_SECONDS
        self.is_reaped = False
        self.outcome: dict[str, Any] | None = None

    @property
    def is_over(self) -> bool:
        return self.outcome is not None

    @property
    def is_alive(self) -> bool:
        """Whether its main process has not ended yet, as far as is known."""
        return self.status is None and not self.is_over

    def find_timer(self) -> float | None:
        """Return the next time on the boot clock at which the guard has to do something for the command."""
        if self.is_over:
            return None
        times = [self.deadline, self.kill_at, self.pass_at if self.ending_since is not None else None]
        return min((each for each in times if each is not None), default=None)

    def describe(self) -> dict[str, Any]:
        found = {"id": self.id, "pid": self.pid, "begun": self.begun, "started": self.is_started}
        found |= {"tail": self.output.tail, "bytes": self.output.bytes, "dropped": self.output.dropped}
        return found | {"outcome": self.outcome}


class Starter:
    """Starts commands as children of this process. `umask` and `files`: the mode mask and the limit of open files that
    this process had at its start, which the commands get.
    """

    def __init__(self, umask: int, files: tuple[int, int]) -> None:
        self._umask, self._files = umask, files
        self._prctl = _find_prctl()

    def adopt_orphans(self) -> bool:
        """Let orphaned descendants of this process become its children. Return whether the system can do that."""
        return self._prctl is not None and self._prctl(_PR_SET_CHILD_SUBREAPER, 1) == 0

    def start(self, command: Command) -> None:
        """Start a command. An error that the child meets is reported through `command.trouble`. Raises OSError."""
        if command.cgroup is not None:
            os.makedirs(command.cgroup, exist_ok=True)
            # The delegated folder may have no controller of memory.
            with contextlib.suppress(OSError):
                _write(f"{os.path.dirname(command.cgroup)}/cgroup.subtree_control", "+memory")
        parent = os.getpid()
        command.pipe, output = os.pipe()
        command.trouble, trouble = os.pipe()
        try:
            command.pid = os.fork()
        except OSError:
            for descriptor in (command.pipe, output, command.trouble, trouble):
                os.close(descriptor)
            command.pipe = command.trouble = None
            raise
        if command.pid == 0:
            self._become(command, parent, output, trouble)
        # They may contain secrets, and take memory.
        command.argv, command.env = [], {}
        os.close(output)
        os.close(trouble)
        os.set_blocking(command.pipe, False)
        os.set_blocking(command.trouble, False)
        process = find_process(command.pid)
        command.begun = process.started if process else None

    def _become(self, command: Command, parent: int, output: int, trouble: int) -> None:
        """Replace this child process by the command. Never returns."""
        try:
            self._begin_session()
            if command.cgroup is not None:
                self._do("the cgroup cannot be joined", _write, f"{command.cgroup}/cgroup.procs", "0")
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            resource.setrlimit(resource.RLIMIT_NOFILE, self._files)
            os.umask(self._umask)
            environment = dict(command.env)
            if command.user is not None:
                self._take_user(command.user, environment)
            if self._prctl is not None:
                # After the change of the user, which clears it.
                self._prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() != parent:
                    os._exit(_FAILED)
            folder = command.cwd or environment.get("HOME") or "/"
            self._do(f"the folder {folder} cannot be entered", os.chdir, folder)
            self._do(
                f"the program {command.argv[0]} cannot be started",
                os.execvpe,
                command.argv[0],
                command.argv,
                environment,
            )
        except BaseException as error:  # noqa: BLE001 - the child must not go on as a second guard
            text = str(error) if isinstance(error, NotStarted) else f"the command cannot be started: {error}"
            with contextlib.suppress(OSError):
                os.write(trouble, text.encode("utf-8", "replace"))
        os._exit(_FAILED)

    @staticmethod
    def _begin_session() -> None:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for name in ("SIGPIPE", "SIGXFSZ", "SIGXFZ", "SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGCHLD"):
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def run(self, argv: list[str]) -> int:
        """Start a program without output, and return its process id."""
        if (pid := os.fork()) == 0:
            with contextlib.suppress(BaseException):
                self._begin_session()
                null = os.open(os.devnull, os.O_RDWR)
                for descriptor in (0, 1, 2):
                    os.dup2(null, descriptor)
                os.execvp(argv[0], argv)  # noqa: S606 - running it is the purpose
            os._exit(_FAILED)
        return pid

    @staticmethod
    def _do(what: str, action: Callable[..., object], *arguments: object) -> None:
        try:
            action(*arguments)
        except OSError as error:
            raise NotStarted(f"{what}: {error.strerror}") from None

    def _take_user(self, name: str, environment: dict[str, str]) -> None:
        """Change to another user of this machine, with all of its groups."""
        import pwd  # noqa: PLC0415 - only in a child: the lookup may load libraries and may take long

        try:
            user = pwd.getpwnam(name)
        except KeyError:
            raise NotStarted(f"the user {name} does not exist on this host") from None
        environment.setdefault("HOME", user.pw_dir)
        environment.setdefault("USER", name)
        environment.setdefault("LOGNAME", name)
        if user.pw_uid == os.geteuid() == os.getuid():
            return
        hint = "" if os.geteuid() == 0 else " (the agent does not run as root)"
        try:
            os.initgroups(name, user.pw_gid)
            os.setgid(user.pw_gid)
            os.setuid(user.pw_uid)
        except OSError as error:
            raise NotStarted(f"the user {name} cannot be taken: {error.strerror}{hint}") from None


class Kinship:
    """Finds the processes of each command among the descendants of this process."""

    def __init__(self, adopts: bool) -> None:  # noqa: FBT001 - whether orphans become children of this process
        self._adopts = adopts
        self._owners: dict[tuple[int, int], str] = {}
        """The owner of each process at the last search, by id and start time: an orphan keeps its owner."""
        self._me = os.getpid()
        self._ended: list[tuple[int, int]] = []
        """When each command that has ended had begun and ended, in kernel ticks since boot; for those of which an
        orphan of a running command may be as well.
        """

    def note_end(self, command: Command, running: Iterable[Command]) -> None:
        """Take a command that has ended. `running`: the other commands."""
        first = min((each.begun for each in running if each.begun is not None), default=None)
        if command.begun is not None and first is not None:
            # A process that began before all running commands is an orphan of none of them.
            self._ended = [each for each in self._ended[-_MOST_ENDED:] if each[1] >= first]
            self._ended.append((command.begun, int(read_boot_clock() * _TICKS) + 1))

    def list_children(self) -> list[int] | None:
        """Return the ids of the children of this process, with zombies; None if the system does not list them."""
        path = f"{_PROC}/self/task/{self._me}/children"
        words = _read(path).split()
        return [int(word) for word in words] if words or os.path.exists(path) else None

    def has_orphans(self, commands: Sequence[Command]) -> bool:
        """Return whether a child of this process, or a zombie of one, is no main process of these commands; True if
        that is not known.

        When a main process has ended, the first processes that are left of its command are children of this process.
        The list of them is complete, because only this process, which has one thread, removes children from it.
        """
        children = self.list_children() if self._adopts else None
        if children is None:
            return True
        known = {each.pid for each in commands if not each.is_reaped} | {each.after_pid for each in commands}
        return not known.issuperset(children)

    def search(self, commands: Sequence[Command]) -> tuple[dict[str, list[Process]], list[Process]]:
        """Return (1) the processes of each command by its id, and (2) the strays: descendants of this process that
        belong to none of the commands.
        """
        processes = list_processes()
        mains = {each.pid: each for each in commands if each.pid and not each.is_reaped}
        programs = {each.after_pid for each in commands}
        members: dict[str, list[Process]] = {each.id: [] for each in commands}
        strays = []
        owners: dict[tuple[int, int], str] = {}
        for process in processes.values():
            line = [process]
            while line[-1].parent != self._me and line[-1].parent in processes and len(line) < 10_000:  # noqa: PLR2004
                line.append(processes[line[-1].parent])
            is_mine = line[-1].parent == self._me
            owner = self._find_owner(line, mains, commands) if is_mine or not self._adopts else None
            if owner is not None:
                owners[process.pid, process.started] = owner.id
                members[owner.id].append(process)
            elif is_mine and line[-1].pid not in programs:
                strays.append(process)
        self._owners = owners
        return members, strays

    def _find_owner(
        self, line: Sequence[Process], mains: Mapping[int, Command], commands: Sequence[Command]
    ) -> Command | None:
        top = line[-1]
        for each in line:
            if each.pid in mains and each.parent == self._me:
                return mains[each.pid]
        for each in line:
            for leader in (each.session, each.group):
                if leader in mains:
                    return mains[leader]
        for each in line:
            known = self._owners.get((each.pid, each.started))
            if found := next((command for command in commands if command.id == known), None):
                return found
        if found := self._find_by_tag((line[0], top), commands):
            return found
        if not self._adopts:
            return None
        # It may have changed its environment: it belongs to the only command that ran when it began.
        older = [each for each in commands if each.begun is not None and each.begun <= top.started]
        is_of_ended = any(begun <= top.started <= ended for begun, ended in self._ended)
        return older[0] if len(older) == 1 and not is_of_ended else None

    @staticmethod
    def _find_by_tag(line: Iterable[Process], commands: Sequence[Command]) -> Command | None:
        for each in line:
            environment = b"\0" + _read(f"{_PROC}/{each.pid}/environ")
            for command in commands:
                if command.tag and f"\0{TAG}={command.tag}\0".encode() in environment:
                    return command
        return None


class Guard:
    """The guard's loop: requests of the agent, output and ends of the commands, deadlines."""

    def __init__(self, listener: socket.socket, starter: Starter) -> None:
        self._listener, self._starter = listener, starter
        self._commands: dict[str, Command] = {}
        self._agent: socket.socket | None = None
        self._received = b""
        self._unsent = b""
        self._is_blocked = False
        self._is_ending = False
        self._has_served = False
        self._has_news = True
        """Whether a request was carried out, or a process has ended, since the last look at the commands."""
        self._adopts = starter.adopt_orphans()
        self._kinship = Kinship(self._adopts)
        self._looked_at = 0.0
        self._has_unsearched = False
        """Whether there are orphans for whose command no search was made yet."""
        self._assigned: set[int] = set()
        """Orphans that are children of this process and belong to a command."""
        self._reported_at = 0.0
        self._wake, wake = os.pipe()
        for descriptor in (self._wake, wake):
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)
        self._poll.register(self._wake, select.POLLIN)
        self._handlers: dict[int, Callable[[], None]] = {
            listener.fileno(): self._accept,
            self._wake: self._drain_wake,
        }

    def run(self) -> None:
        """Serve until no command runs and no agent is connected, or until a request `end` is carried out."""
        until, due = time.monotonic() + LEFT_SECONDS, 0.0
        while True:
            pause = max(due - read_boot_clock(), 0.0)
            for descriptor, _ in self._poll.poll(None if pause == _FOREVER else int(pause * 1000) + 1):
                if handler := self._handlers.get(descriptor):
                    handler()
            # speed: output alone is no reason to look at all commands.
            if self._has_news or read_boot_clock() >= due:
                self._has_news = False
                self._look([each for each in self._commands.values() if not each.is_over])
                running = [each for each in self._commands.values() if not each.is_over]
                is_left = self._agent is None and (self._has_served or time.monotonic() >= until)
                if not running and (self._is_ending or is_left):
                    self._flush()
                    return
                due = self._find_due(running)
            if self._unsent:
                self._flush()

    def _find_due(self, running: Sequence[Command]) -> float:
        """Return the time on the boot clock at which the guard has to look at the commands again."""
        if not running and self._has_served:
            return self._looked_at + TICK_SECONDS if self._has_unsearched else _FOREVER
        timers = [each.find_timer() for each in running]
        return min(each for each in (read_boot_clock() + TICK_SECONDS, *timers) if each is not None)

    # Requests and events

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            agent, _ = self._listener.accept()
            # The newest agent is served: an older one is dead, or stopped. What it has sent is carried out.
            self._receive()
            self._drop_agent()
            agent.setblocking(False)  # noqa: FBT003 - its only way
            self._agent, self._has_served, self._has_news = agent, True, True
            self._received, self._unsent, self._is_blocked = b"", b"", False
            self._register(agent.fileno(), self._receive)

    def _drop_agent(self) -> None:
        if self._agent is not None:
            self._unregister(self._agent.fileno())
            self._agent.close()
            self._agent, self._has_news = None, True

    def _register(self, descriptor: int, handler: Callable[[], None]) -> None:
        self._handlers[descriptor] = handler
        self._poll.register(descriptor, select.POLLIN)

    def _unregister(self, descriptor: int) -> None:
        del self._handlers[descriptor]
        self._poll.unregister(descriptor)

    def _drain_wake(self) -> None:
        self._has_news = True
        with contextlib.suppress(OSError):
            while os.read(self._wake, _READ):
                pass

    def _receive(self) -> None:
        if self._agent is None:
            return
        try:
            data = self._agent.recv(_READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data or len(self._received) > _MOST_LINE:
            self._drop_agent()
            return
        *lines, self._received = (self._received + data).split(b"\n")
        self._has_news = True
        for line in lines:
            try:
                self._carry_out(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                self._send({"event": "refused", "error": f"{type(error).__name__}: {error}"})

    def _carry_out(self, request: Mapping[str, Any]) -> None:
        match request["do"]:
            case "start":
                self._start(request)
            case "list":
                commands = [each.describe() for each in self._commands.values()]
                self._send({"event": "list", "version": VERSION, "pid": os.getpid(), "commands": commands})
            case "ping":
                self._send({"event": "pong", "number": request["number"]})
            case "end":
                self._is_ending = True
                for each in self._commands.values():
                    self._end(each, "kill")
            case other:
                self._change(other, request)

    def _change(self, what: str, request: Mapping[str, Any]) -> None:
        command = self._commands.get(request["id"])
        if command is None:
            self._send({"event": "unknown", "id": request["id"]})
            return
        match what:
            case "deadline":
                command.deadline = request["deadline"]
            case "stop":
                self._stop(command, request["signal"], request["grace"])
            case "kill":
                self._end(command, "kill")
            case "ack" if command.is_over:
                del self._commands[command.id]
            case _:
                raise ValueError(f"no request of this state: {what}")

    def _send(self, event: Mapping[str, Any]) -> None:
        if self._agent is not None:
            self._unsent += json.dumps(event).encode() + b"\n"

    def _flush(self) -> None:
        if self._agent is None:
            return
        is_blocked = False
        try:
            while self._unsent:
                self._unsent = self._unsent[self._agent.send(self._unsent) :]
        except BlockingIOError:
            is_blocked = True
        except OSError:
            self._drop_agent()
            return
        if is_blocked != self._is_blocked:
            self._is_blocked = is_blocked
            self._poll.modify(self._agent.fileno(), select.POLLIN | (select.POLLOUT if is_blocked else 0))

    # Starts

    def _start(self, request: Mapping[str, Any]) -> None:
        known = self._commands.get(request["id"])
        if known is not None:
            # Nothing runs twice: a repeated request gets the present state.
            self._send({"event": "known", **known.describe()})
            return
        command = Command(request)
        self._commands[command.id] = command
        if self._is_ending or (command.deadline is not None and command.deadline <= read_boot_clock()):
            why = "the guard is ending" if self._is_ending else "the deadline of the lease has passed"
            self._fail(command, why, "kill" if self._is_ending else "deadline")
            return
        try:
            self._starter.start(command)
        except OSError as error:
            self._fail(command, f"the command cannot be started: {error.strerror}")
            return
        if command.pipe is not None:
            self._register(command.pipe, lambda: self._take_output(command))
        if command.trouble is not None:
            self._register(command.trouble, lambda: self._take_trouble(command))

    def _take_trouble(self, command: Command) -> None:
        if command.trouble is None:
            return
        try:
            part = os.read(command.trouble, _READ)
        except BlockingIOError:
            return
        command.error += part
        if part:
            return
        self._unregister(command.trouble)
        os.close(command.trouble)
        command.trouble = None
        if not command.error:
            command.is_started = True
            self._send({"event": "started", "id": command.id, "pid": command.pid, "begun": command.begun})
            self._send_stop(command)

    def _fail(self, command: Command, error: str, cause: str | None = None) -> None:
        self._conclude(command, {"event": "not_started", "id": command.id, "error": error, "cause": cause})

    def _take_output(self, command: Command) -> None:
        if command.pipe is None:
            return
        try:
            data = os.read(command.pipe, _READ)
        except BlockingIOError:
            return
        if data:
            command.output.write(data)
        else:
            self._unregister(command.pipe)
            os.close(command.pipe)
            command.pipe = None

    # Ends

    def _stop(self, command: Command, number: int, grace: float) -> None:
        """Send a signal to the session's first group, and kill the command after `grace` seconds."""
        if not command.is_alive:
            return
        command.cause = command.cause or "stop"
        command.kill_at = min(read_boot_clock() + grace, command.kill_at or float("inf"))
        command.stop_signal = number
        self._send_stop(command)

    @staticmethod
    def _send_stop(command: Command) -> None:
        # Before the start there is no group yet, or it ignores the signal as the guard does.
        if command.is_started and command.stop_signal is not None:
            for each in (command.stop_signal, signal.SIGCONT):
                # A stopped process handles no signal before it continues.
                with contextlib.suppress(OSError):
                    os.killpg(command.pid, each)

    def _end(self, command: Command, cause: str) -> None:
        """Kill a command with everything that it started. The end is reported when nothing is left."""
        if command.is_over or command.ending_since is not None:
            return
        if command.status is None:
            command.cause = command.cause or cause
        command.ending_since = read_boot_clock()
        self._kill(command, ())

    def _kill(self, command: Command, members: Iterable[Process]) -> None:
        if command.cgroup is not None:
            kill_cgroup(command.cgroup)
        # The process id stays that of the command until it is reaped, when nothing else is left.
        if not command.is_reaped:
            kill_group(command.pid)
        for each in members:
            kill(each)

    def _look(self, running: Sequence[Command]) -> None:
        """Do what is due: ends of processes, deadlines, searches for what is left, reports of output."""
        now = read_boot_clock()
        for each in running:
            if not each.is_over:
                self._look_at(each, now)
        self._look_for_strays(now)
        if due := [each for each in running if each.ending_since is not None and each.pass_at <= now]:
            self._finish(due, now)
        if now - self._reported_at >= TICK_SECONDS:
            self._reported_at = now
            for each in running:
                output = each.output
                if not each.is_over and output.bytes != output.reported and len(self._unsent) < _MOST_UNSENT:
                    output.reported = output.bytes
                    self._send({"event": "output", "id": each.id, "tail": output.tail, "bytes": output.bytes})

    def _look_at(self, command: Command, now: float) -> None:
        if command.status is None and command.pid:
            command.status = self._find_status(command)
            if command.status is not None:
                self._end(command, "kill")
                command.pass_at = now
        if command.status is not None:
            return
        if command.deadline is not None and command.deadline <= now:
            self._end(command, "deadline")
        elif command.kill_at is not None and command.kill_at <= now:
            self._end(command, "stop")

    @staticmethod
    def _find_status(command: Command) -> int | None:
        """Return how the main process has ended; None: it runs. Its id stays taken until it is reaped."""
        if hasattr(os, "waitid"):
            found = os.waitid(os.P_PID, command.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None:
                return None
            return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
        pid, status = os.waitpid(command.pid, os.WNOHANG)
        if not pid:
            return None
        command.is_reaped = True
        kill_group(command.pid)
        return os.waitstatus_to_exitcode(status)

    def _look_for_strays(self, now: float) -> None:
        """Reap orphans that this process has adopted, and kill those that belong to no command."""
        if not self._adopts:
            return
        mains = {each.pid for each in self._commands.values() if each.pid and not each.is_reaped}
        children = self._kinship.list_children()
        if children is None:
            # Without the list, a search is made at each tick only.
            if now - self._looked_at < TICK_SECONDS:
                return
            children = [each.pid for each in list_processes().values() if each.parent == os.getpid()]
        adopted = set()
        for pid in children:
            if pid not in mains:
                with contextlib.suppress(ChildProcessError):
                    if os.waitpid(pid, os.WNOHANG) == (0, 0):
                        adopted.add(pid)
        self._assigned &= adopted
        self._has_unsearched = not adopted <= self._assigned
        if self._has_unsearched and now - self._looked_at >= TICK_SECONDS:
            self._looked_at = now
            members, strays = self._search()
            self._assigned |= adopted & {each.pid for found in members.values() for each in found}
            for each in strays:
                kill(each)

    def _finish(self, due: Sequence[Command], now: float) -> None:
        """Kill what is left of ending commands. If nothing is left of one, report its end."""
        # speed: mostly nothing is left, and a search reads all processes of the machine.
        is_quick = all(each.status is not None for each in due) and not self._kinship.has_orphans(self._list_running())
        members = {} if is_quick else self._search()[0]
        for command in due:
            left = members.get(command.id, [])
            is_populated = command.cgroup is not None and kill_cgroup(command.cgroup)
            if not _SEES_PROCESSES:
                is_populated = kill_group(command.pid)
            is_late = command.ending_since is not None and now - command.ending_since >= LEFT_SECONDS
            if command.status is not None and ((not left and not is_populated) or is_late):
                if self._has_run_after(command, now):
                    self._reap(command, len(left))
                    continue
                left = []
            self._kill(command, left)
            command.pass_at = now + command.pause
            command.pause = min(command.pause * 2, LONGEST_PASS_SECONDS)

    def _has_run_after(self, command: Command, now: float) -> bool:
        """Run the program that follows the command. Return whether it has ended."""
        if command.after is None:
            return True
        if not command.after_pid:
            try:
                command.after_pid = self._starter.run(command.after)
            except OSError:
                return True
            command.after_until = now + AFTER_SECONDS
            return False
        if now >= command.after_until:
            with contextlib.suppress(OSError):
                os.killpg(command.after_pid, signal.SIGKILL)
            return True
        try:
            return os.waitpid(command.after_pid, os.WNOHANG) != (0, 0)
        except ChildProcessError:
            return True

    def _search(self) -> tuple[dict[str, list[Process]], list[Process]]:
        return self._kinship.search(self._list_running())

    def _list_running(self) -> list[Command]:
        return [each for each in self._commands.values() if not each.is_over]

    def _reap(self, command: Command, left: int) -> None:
        if not command.is_reaped:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(command.pid, 0)
            command.is_reaped = True
        # No process of the command is left to write more, or it resists SIGKILL.
        for _ in range(_MOST_READS):
            self._take_trouble(command)
            self._take_output(command)
            if command.pipe is None and command.trouble is None:
                break
        status = command.status or 0
        if command.error:
            event: dict[str, Any] = {"event": "not_started", "id": command.id}
            event["error"] = command.error.decode("utf-8", "replace")
        else:
            result = {"code": status} if status >= 0 else {"signal": -status}
            event = {"event": "exited", "id": command.id, **result, "left": left}
            event |= {"oom": self._has_lacked_memory(command), "cause": command.cause}
        self._conclude(command, event)

    @staticmethod
    def _has_lacked_memory(command: Command) -> bool:
        if command.cgroup is None:
            return False
        words = _read(f"{command.cgroup}/memory.events").split()
        return dict(zip(words[::2], words[1::2], strict=False)).get(b"oom_kill", b"0") != b"0"

    def _conclude(self, command: Command, event: Mapping[str, Any]) -> None:
        for descriptor in (command.pipe, command.trouble):
            if descriptor is not None:
                self._unregister(descriptor)
                os.close(descriptor)
        command.pipe = command.trouble = None
        command.output.close()
        if command.cgroup is not None:
            remove_cgroup(command.cgroup)
            with contextlib.suppress(OSError):
                # The one above was made for it too.
                os.rmdir(os.path.dirname(command.cgroup))
        self._kinship.note_end(command, [each for each in self._commands.values() if not each.is_over])
        output = command.output
        command.outcome = {**event, "tail": output.tail, "bytes": output.bytes, "dropped": output.dropped}
        # An agent that starts after the end of this process reads the outcome from the file.
        with contextlib.suppress(OSError):
            draft = f"{command.folder}/.{OUTCOME}"
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _FILE_MODE)
            try:
                os.write(descriptor, json.dumps(command.outcome).encode())
            finally:
                os.close(descriptor)
            os.replace(draft, f"{command.folder}/{OUTCOME}")
        self._send(command.outcome)


def kill_descendants(root: int) -> int:
    """Send SIGKILL to all processes below this one. Return how many there were."""
    processes, killed = list_processes(), 0
    for process in processes.values():
        line, at = {process.pid}, process
        while at.parent in processes and at.parent not in line and at.parent != root:
            at = processes[at.parent]
            line.add(at.pid)
        if at.parent == root:
            kill(process)
            killed += 1
    return killed


def keep(guard: int) -> None:
    """Wait for the end of the guard, then kill the descendants of this process until none is left: the commands, if
    the guard was killed.
    """
    me = os.getpid()
    with contextlib.suppress(ChildProcessError):
        os.waitpid(guard, 0)
        pause = PASS_SECONDS
        while True:
            kill_descendants(me)
            # Raises ChildProcessError if there is no child.
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PASS_SECONDS)


def main(arguments: Sequence[str]) -> int:
    """Start the guard of a folder in the background, unless one runs there. Return when it accepts connections."""
    (folder,) = arguments
    os.chdir(folder)
    umask = os.umask(0o077)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        # Each command has two open files here.
        resource.setrlimit(resource.RLIMIT_NOFILE, (files[1], files[1]))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
    try:
        # The keeper has the lock as well: a new guard starts when nothing of the old one is left.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in {errno.EAGAIN, errno.EACCES}:
            return 0
        raise
    os.ftruncate(lock, 0)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(SOCKET)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(SOCKET)
    listener.listen()
    listener.setblocking(False)  # noqa: FBT003 - its only way
    if os.fork() == 0:
        _detach()
        _serve(listener, lock, Starter(umask, files))
    return 0


def _detach() -> None:
    """Give this process its own session, and a log file in place of its output."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    log = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, _FILE_MODE)
    for source, target in ((null, 0), (null, 1), (log, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(log)


def _serve(listener: socket.socket, lock: int, starter: Starter) -> None:
    """Become the keeper, with the guard as its child. Never returns. The file `lock` gets the identity of the guard."""
    status = 1
    try:
        starter.adopt_orphans()
        guard = os.fork()
        if guard == 0:
            process = find_process(os.getpid())
            os.pwrite(lock, f"{os.getpid()} {process.started if process else 0}\n".encode(), 0)
            Guard(listener, starter).run()
        else:
            listener.close()
            keep(guard)
        status = 0
    except BaseException:  # noqa: BLE001 - this process was forked, and must not return
        sys.excepthook(*sys.exc_info())
    os._exit(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
