"""The connection of a host's agent to its guard: start the guard if none runs, send requests, receive events."""

import contextlib
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from leasehold.private_files import make_private_folder
from leasehold.work import guard

START_SECONDS: Final = 20.0
"""Time limit for the start of a guard, and for the end of what a killed one has left."""
_PAUSE_SECONDS: Final = 0.05
_PASSES: Final = 20
"""Searches for processes of commands before a guard is killed. One that resists SIGKILL is left to the keeper."""
_ANSWER_SECONDS: Final = 5.0
_READ: Final = 65_536
_LONGEST_PATH: Final = 100
"""Longest path of a socket in bytes that every system accepts."""
_OPTIONS: Final = ("-X", "utf8", "-I", "-S")
"""The guard loads no packages, and its encoding is UTF-8 whatever the locale is."""


class GuardLost(Exception):  # noqa: N818 - an event: the guard has ended, or cannot be started
    """Raised if there is no connection to a guard. The message states why."""


class GuardSilent(GuardLost):
    """Raised if a guard accepts connections and does not answer, for example because it is stopped."""


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """An event of the guard."""


class Started(Event, frozen=True, tag="started"):
    """A command runs."""

    id: str
    pid: int
    begun: int | None = None


class Ended(Event, frozen=True, kw_only=True):
    """A command has ended, and all that it started, with the end of its output (`tail`) and the number of bytes."""

    id: str
    tail: str = ""
    bytes: int = 0
    dropped: int = 0
    """Bytes of the output that could not be written to its files."""


class NotStarted(Ended, frozen=True, tag="not_started"):
    """A command could not be started. `cause`: "deadline" or "kill" if the command itself is not to blame."""

    error: str
    cause: str | None = None


class Exited(Ended, frozen=True, tag="exited"):
    """A command has ended with an exit code or by a signal."""

    code: int | None = None
    signal: int | None = None
    left: int = 0
    """The number of its processes that resist SIGKILL."""
    oom: bool = False
    cause: str | None = None
    """Why the guard has ended it: "deadline", "stop", "kill"; None: it has not."""


class Printed(Event, frozen=True, tag="output"):
    """A running command has printed something."""

    id: str
    tail: str
    bytes: int


class Known(Event, frozen=True, tag="known"):
    """A command that the guard has. It is also the answer to a repeated request to start the command."""

    id: str
    pid: int = 0
    begun: int | None = None
    started: bool = False
    tail: str = ""
    bytes: int = 0
    dropped: int = 0
    outcome: Exited | NotStarted | None = None


class Listed(Event, frozen=True, tag="list"):
    """All commands of the guard. `pid`: the process id of the guard."""

    version: int
    pid: int
    commands: tuple[dict[str, Any], ...] = ()

    def read(self) -> list[Known]:
        return [msgspec.convert({"event": "known", **each}, Known) for each in self.commands]


class Pong(Event, frozen=True, tag="pong"):
    """The answer to a ping with this number."""

    number: int


class UnknownCommand(Event, frozen=True, tag="unknown"):
    """A request named a command that the guard does not have."""

    id: str


class RefusedRequest(Event, frozen=True, tag="refused"):
    """The guard could not read a request."""

    error: str


GuardEvent = Started | NotStarted | Exited | Printed | Known | Listed | Pong | UnknownCommand | RefusedRequest
_decoder: Final = msgspec.json.Decoder(GuardEvent)


class GuardClient:
    """The connection to the guard of the folder `folder`. One thread uses it; `wake` may be called by any thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._socket: socket.socket | None = None
        self._received = b""
        self._early: list[GuardEvent] = []
        """Events that have arrived with the list of commands, and after it."""
        self._wake, self._waker = os.pipe()
        for descriptor in (self._wake, self._waker):
            os.set_blocking(descriptor, False)

    @property
    def is_connected(self) -> bool:
        return self._socket is not None

    def connect(self) -> Listed:
        """Connect to the guard, and start one if none runs. Return its commands. Raises GuardLost."""
        self.disconnect()
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                self._socket, self._received = self._open(), b""
                return self._await_list()
            except GuardSilent:
                self.disconnect()
                raise
            except (OSError, GuardLost) as error:
                self.disconnect()
                if time.monotonic() > until:
                    raise GuardLost(f"no guard can be reached in {self._folder}: {error}") from None
            if not self._start(until):
                # Another guard has the lock: it starts, or the rest of a killed one is being ended.
                time.sleep(_PAUSE_SECONDS)

    def _start(self, until: float) -> bool:
        """Start a guard. Return whether one was started; one that starts twice at a time is started once."""
        make_private_folder(self._folder)
        before = self._find_socket()
        command = [sys.executable, *_OPTIONS, guard.__file__, str(self._folder.absolute())]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LEASEHOLD_")}
        left = max(until - time.monotonic(), 1.0)
        try:
            done = subprocess.run(  # noqa: S603 - our own program
                command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=left, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise GuardLost(f"the guard cannot be started: {error}") from None
        if done.returncode:
            words = done.stderr.decode(errors="replace").strip().splitlines() or [f"status {done.returncode}"]
            raise GuardLost(f"the guard cannot be started: {words[-1]}")
        return self._find_socket() != before

    def _find_socket(self) -> int | None:
        with contextlib.suppress(OSError):
            return (self._folder / guard.SOCKET).stat().st_ino
        return None

    def _open(self) -> socket.socket:
        path = self._folder.absolute() / guard.SOCKET
        opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            opened.settimeout(_ANSWER_SECONDS)
            with _shorten(path) as short:
                opened.connect(short)
        except OSError:
            opened.close()
            raise
        return opened

    def _await_list(self) -> Listed:
        self.send({"do": "list"})
        until = time.monotonic() + _ANSWER_SECONDS
        while (left := until - time.monotonic()) > 0:
            events = self.wait(left)
            for index, each in enumerate(events):
                if isinstance(each, Listed):
                    if each.version != guard.VERSION:
                        raise GuardLost(f"the guard of {self._folder} has version {each.version}, not {guard.VERSION}")
                    self._early = events[index + 1 :]
                    return each
        raise GuardSilent("the guard does not answer")

    def send(self, request: Mapping[str, Any]) -> None:
        """Send a request. Raises GuardLost."""
        if self._socket is None:
            raise GuardLost("no guard is connected")
        try:
            self._socket.sendall(msgspec.json.encode(request) + b"\n")
        except OSError as error:
            self.disconnect()
            raise GuardLost(f"the guard takes no requests: {error}") from None

    def wait(self, seconds: float) -> list[GuardEvent]:
        """Wait for events, for `seconds` at most or until `wake` is called. Raises GuardLost if the guard has ended."""
        if self._early:
            early, self._early = self._early, []
            return early
        watched: list[int | socket.socket] = [self._wake, *([] if self._socket is None else [self._socket])]
        ready, _, _ = select.select(watched, [], [], max(seconds, 0.0))
        if self._wake in ready:
            with contextlib.suppress(BlockingIOError):
                while os.read(self._wake, _READ):
                    pass
        if self._socket is None or self._socket not in ready:
            return []
        try:
            data = self._socket.recv(_READ)
        except OSError:
            data = b""
        if not data:
            self.disconnect()
            raise GuardLost("the guard has ended")
        *lines, self._received = (self._received + data).split(b"\n")
        return [_decoder.decode(line) for line in lines]

    def kill_guard(self) -> None:
        """Kill the guard, which does not answer, with all of its commands."""
        self.disconnect()
        with contextlib.suppress(OSError, ValueError):
            pid, started = map(int, (self._folder / guard.LOCK).read_text(encoding="utf-8").split())
            if (found := guard.find_process(pid)) and found.started == started:
                # While the guard is there, orphans of its commands stay below it. Its keeper may be dead.
                for _ in range(_PASSES):
                    if not guard.kill_descendants(pid):
                        break
                    time.sleep(_PAUSE_SECONDS)
                guard.kill(found)

    def wake(self) -> None:
        """End the present `wait`, or the next one."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._waker, b"x")

    def disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket, self._early = None, []

    def close(self) -> None:
        self.disconnect()
        os.close(self._wake)
        os.close(self._waker)


@contextlib.contextmanager
def _shorten(path: Path) -> Iterator[str]:
    """Yield a path of this socket that is short enough for the system."""
    if len(os.fsencode(path)) <= _LONGEST_PATH or sys.platform != "linux":
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
