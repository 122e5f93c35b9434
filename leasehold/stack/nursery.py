"""The nursery of a stack: one process that imports what the Python programs of the stack need, and forks them.

The programs share the memory of the imports, and start without importing. Each is a process with a session, a log and a
command line of its own, as if it had been started by its command. The nursery itself opens no connection and starts no
thread. If it ends, or cannot start a program, the program is started by its command. It is used on Linux only: on macOS
system libraries may fail after a fork.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import queue
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from leasehold.private_files import PRIVATE_UMASK, open_private

PROGRAMS: Final = {
    "tasks.worker": (
        "billiard.heap",
        "billiard.popen_fork",
        "billiard.sharedctypes",
        "billiard.synchronize",
        "celery.app.control",
        "celery.app.events",
        "celery.app.log",
        "celery.apps.worker",
        "celery.concurrency.prefork",
        "celery.concurrency.thread",
        "celery.worker.autoscale",
        "celery.worker.components",
        "celery.worker.consumer",
        "celery.worker.consumer.delayed_delivery",
        "celery.worker.loops",
        "celery.worker.strategy",
        "importlib.readers",
        "kombu.matcher",
        "kombu.pidbox",
        "scheduler.store.cluster_file",
        "tasks.alive",
        "tasks.consumer",
        "tasks.gathered",
        "tasks.gatherer",
        "tasks.threads",
        "tasks.transport",
        "workers.work_watch",
    ),
    "tasks.clock": ("celery.apps.beat", "tasks.beat"),
    "tasks.foresight": ("scheduler.foresight", "scheduler.operations.foresight", "tasks.alive", "workers.work_watch"),
    "tasks.monitor": ("flower.command", "flower.utils.broker", "flower.views.monitor"),
    "leasehold.console": (
        "leasehold.api.app",
        "leasehold.console.app",
        "leasehold.web.http_protocol",
        "uvicorn.lifespan.on",
        "uvicorn.loops.asyncio",
    ),
    "workers.exporter": ("scheduler.operations.membership", "workers.clock_watch", "workers.metrics"),
}
"""The modules that a nursery can run as programs, and what they import. A module that is missing here is imported by
each process. The programs themselves run as `__main__`.
"""
_ENDED: Final = -signal.SIGKILL
_STACK_MODULE: Final = "leasehold.stack.nursery"
_ARG_START: Final = 45
"""Index of the address of the command line among the fields of /proc/PID/stat that follow the name."""


class Forked:
    """A process that the nursery has forked, with the part of the interface of Popen that a supervisor needs."""

    stdin = None

    def __init__(self, nursery: "Nursery", pid: int) -> None:
        self._nursery, self.pid = nursery, pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status of the process; None while it runs."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the end of the process. Raises TimeoutExpired after `timeout` seconds."""
        if not self._nursery.await_end(self, timeout):
            raise subprocess.TimeoutExpired(_STACK_MODULE, timeout or 0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send the signal. The process keeps its id until `release`, also after its end."""
        os.kill(self.pid, number)

    def begin(self) -> None:
        """Let the process run its program."""
        self._nursery.send({"begin": self.pid})

    def release(self) -> None:
        """Let the kernel give the id of the ended process to another one."""
        self._nursery.send({"release": self.pid})


class Nursery:
    """The supervisor's end of a nursery. `environment`: variables of the nursery and of all programs that it forks.
    `module`: what the nursery runs, which imports and then calls `serve`; `programs`: the modules that it can fork.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        folder: Path,
        log: Path,
        *,
        module: str = _STACK_MODULE,
        programs: Collection[str] = frozenset(PROGRAMS),
    ) -> None:
        self._environment, self._programs = dict(environment), programs
        mine, its = socket.socketpair()
        with its, open(log, "ab", opener=open_private) as output:
            self.process = subprocess.Popen(  # noqa: S603 - our own module
                # The spaces make room for the command lines of the programs.
                [sys.executable, "-m", module, str(its.fileno()), " " * 64],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                cwd=folder,
                env={**os.environ, **environment},
                pass_fds=(its.fileno(),),
                umask=PRIVATE_UMASK,
            )
        self._socket, self._lines = mine, mine.makefile("r", encoding="utf-8")
        self._children: dict[int, Forked] = {}
        self._changed = threading.Condition()
        self._is_closed = False
        self._forked: queue.SimpleQueue[Forked | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="nursery", daemon=True)
        self._reader.start()

    def fork(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> Forked | None:
        """Return a new process that waits for `begin` and then runs `command`. Return None if the nursery cannot fork
        it: it is not one of its programs, or needs another environment, or the nursery has ended.
        """
        match command:
            case [sys.executable, "-m", module, *_]:
                is_known = module in self._programs
            case _:
                is_known = False
        if self._is_closed or not is_known or dict(environment) != self._environment:
            return None
        self.send({"command": list(command), "log": str(log)})
        try:
            return self._forked.get(timeout=30.0)
        except queue.Empty:
            self.process.kill()
            return None

    def send(self, order: Mapping[str, Any]) -> None:
        """Send an order to the nursery; do nothing if it has ended."""
        with contextlib.suppress(OSError):
            self._socket.sendall(json.dumps(order).encode() + b"\n")

    def await_end(self, child: Forked, timeout: float | None) -> bool:
        """Wait until this process has ended, for up to `timeout` seconds. Return whether it has."""
        with self._changed:
            return self._changed.wait_for(lambda: child.returncode is not None, timeout)

    def close(self) -> None:
        """End the nursery, not its children."""
        self.process.terminate()
        self.process.wait()
        # The end of the nursery ends its reports.
        self._reader.join()
        self._lines.close()
        self._socket.close()

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            for line in self._lines:
                report = json.loads(line)
                pid = report["pid"]
                with self._changed:
                    if "status" in report:
                        self._children.pop(pid).returncode = report["status"]
                        self._changed.notify_all()
                    else:
                        self._children[pid] = Forked(self, pid)
                        self._forked.put(self._children[pid])
        with self._changed:
            self._is_closed = True
            # They may run, but this process no longer learns of their end: it ends them, and starts them again.
            for child in self._children.values():
                child.returncode = _ENDED
            self._changed.notify_all()
        self._forked.put(None)


class _Gates:
    """The nursery's end: forks processes, lets them begin, and reports their ends."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._gates: dict[int, int] = {}
        self._running: set[int] = set()

    def serve(self) -> "tuple[str, ...] | None":
        """Carry out orders until their sender closes. Return None then, and in a forked process its command."""
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        rest = b""
        while True:
            ready, _, _ = select.select([self._line.fileno(), woken], [], [])
            if woken in ready:
                os.read(woken, 4096)
                self._report_ends()
            if self._line.fileno() in ready:
                received = self._line.recv(65536)
                if not received:
                    return None
                *lines, rest = (rest + received).split(b"\n")
                for order in map(json.loads, lines):
                    if "command" in order and (command := self._fork(order["command"], order["log"])):
                        for each in (woken, wake):
                            os.close(each)
                        return command
                    self._settle(order)

    def _settle(self, order: Mapping[str, Any]) -> None:
        if pid := order.get("begin"):
            if gate := self._gates.pop(pid, None):
                with contextlib.suppress(BrokenPipeError):
                    os.write(gate, b"\n")
                os.close(gate)
        elif pid := order.get("release"):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)

    def _report_ends(self) -> None:
        for pid in list(self._running):
            # The process stays a zombie, which keeps its id, until the supervisor has ended the rest of its group.
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:
                self._running.discard(pid)
                status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
                self._send({"pid": pid, "status": status})

    def _fork(self, command: Sequence[str], log: str) -> tuple[str, ...] | None:
        waiting, gate = os.pipe()
        pid = os.fork()
        if pid:
            os.close(waiting)
            self._gates[pid] = gate
            self._running.add(pid)
            self._send({"pid": pid})
            return None
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        for each in (gate, *self._gates.values()):
            os.close(each)
        self._line.close()
        output = open_private(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        show_command(command)
        begins = os.read(waiting, 1)
        os.close(waiting)
        # Without the line the supervisor has ended, before the reaper knew this process.
        return tuple(command) if begins else os._exit(1)

    def _send(self, report: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self._line.sendall(json.dumps(report).encode() + b"\n")


def show_command(command: Sequence[str]) -> None:
    """Let the system show this command line for this process, in place of that of the nursery."""
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    start, end = int(fields[_ARG_START]), int(fields[_ARG_START + 1])
    text = b"\0".join(map(os.fsencode, command))
    if start and len(text) < end - start:
        ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


def _import_all() -> None:
    from tasks.app import app  # noqa: PLC0415 - not in the supervisor

    app.services.import_adapters()
    app.loader.import_default_modules()
    for names in PROGRAMS.values():
        # An extra such as the console's may be missing, and other versions of a library may lack a module.
        for name in names:
            with contextlib.suppress(ModuleNotFoundError):
                importlib.import_module(name)
    from workers.ec2 import fleet, images, interruptions, market  # noqa: F401, PLC0415 - as above
    from workers.ec2.clients import READ_SECONDS, Ec2Access, open_client  # noqa: PLC0415 - as above

    # A client connects at its first call. These read botocore's descriptions, which all clients share.
    access = Ec2Access(region="us-east-1", access_key_id="none", secret_access_key="none")  # noqa: S106 - no secret
    for service in ("ec2", "sqs"):
        open_client(service, access, READ_SECONDS)


def serve(descriptor: int, import_all: Callable[[], None]) -> None:
    """Import, and fork the programs that are ordered at this socket. A forked process runs its program in this call."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()
    with socket.socket(fileno=descriptor) as line:
        line.set_inheritable(False)
        import_all()
        gc.collect()
        # The collector of a forked process would write into each object of the imports, and so copy it.
        gc.freeze()
        command = _Gates(line).serve()
    if command is None:
        return
    gc.enable()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = [*command[1:2], *command[3:]]
    runpy.run_module(command[2], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    serve(int(sys.argv[1]), _import_all)
