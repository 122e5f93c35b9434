"""A whole stack on this machine, as a context manager: `with Stack(folder) as stack: stack.client().reserve(...)`. Its
folder `.leasehold` has its lock, the file run.json and the logs. Another process prepares it, see
leasehold/stack/preparation.py.
"""

import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit
from urllib.request import Request

from leasehold.client.discovery import FOLDER, LOCK_FILE, RUN_FILE
from leasehold.errors import UntrustedFolder
from leasehold.private_files import PRIVATE_UMASK, make_private_folder, open_private
from leasehold.process_identity import identify
from leasehold.stack.configuration import (
    CONSOLE,
    EMULATOR,
    REDIS,
    SECRET_KEY_VARIABLE,
    TOKEN_VARIABLE,
    StackConfiguration,
    StackError,
    configure,
    find_console_url,
    has_console,
)
from leasehold.stack.nursery import Nursery
from leasehold.stack.process_logs import find_last_warning, list_logs, read_last_line
from leasehold.stack.programs import ProcfileError, Program, Reaper, Supervisor, find_procfile, read_procfile
from leasehold.stack.readiness import Check, find_server, serves
from leasehold.web.token_file import write_token
from scheduler.model.rules import list_image_sources, read_rules
from scheduler.model.validation import Fault, InvalidInputError
from scheduler.operations.market import has_requirements
from scheduler.protocol.loopback import open_local
from scheduler.protocol.names import QUEUE_NAMES
from workers.logs import mask_text

if TYPE_CHECKING:
    from leasehold.client.client import Client
    from scheduler.ports import Store


class AlreadyRunningError(Exception):
    """Raised if a stack runs in this folder: its supervisor (the process that started it), or its reaper (the process
    that ends the others after the supervisor), holds the lock of the folder.
    """


class StackFolder:
    """The folder in which one stack keeps its files. The lock of the folder must be taken before any other use."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.logs = path / "logs"
        self._lock: int | None = None

    @property
    def run_file(self) -> Path:
        return self.path / RUN_FILE

    @property
    def lock_descriptor(self) -> int:
        """The descriptor of the lock file. The reaper (the process that ends the stack after its supervisor) inherits
        it, so that the folder stays locked if the supervisor is killed.
        """
        if self._lock is None:
            raise AlreadyRunningError(f"{self.path} is not locked by this process")
        return self._lock

    def lock(self) -> None:
        """Take the lock of the folder, and remove the rights of other users to the folder. Raises AlreadyRunningError
        if a stack runs in the folder, OSError if the folder cannot be written, and UntrustedFolder if a part of it
        belongs to another user.
        """
        make_private_folder(self.path)
        self.logs.mkdir(mode=0o700, exist_ok=True)
        with open(self.path / ".gitignore", "w", encoding="utf-8", opener=open_private) as file:
            file.write("*\n")
        descriptor = open_private(str(self.path / LOCK_FILE), os.O_RDWR | os.O_CREAT)
        for _ in range(10):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                # A command that checks whether a stack runs takes the lock for an instant.
                time.sleep(0.05)
            else:
                self._lock = descriptor
                # The file of a stack whose supervisor was killed.
                self.run_file.unlink(missing_ok=True)
                return
        os.close(descriptor)
        raise AlreadyRunningError(f"a stack runs in {self.path} already")

    def write(self, document: dict[str, Any]) -> None:
        """Replace run.json by `document` in one step. Only the owner can read the file, because URLs may contain
        passwords.
        """
        new = self.run_file.with_suffix(".new")
        with open(new, "w", encoding="utf-8", opener=open_private) as file:
            json.dump(document, file, indent=2)
        new.replace(self.run_file)

    def unlock(self) -> None:
        """Delete run.json and release the lock. If this object does not hold the lock, do nothing, because run.json
        belongs to another stack.
        """
        if self._lock is None:
            return
        self.run_file.unlink(missing_ok=True)
        os.close(self._lock)
        self._lock = None


class Preparation:
    """Starts the process that prepares a stack, and takes its reports. `environment`: that of the stack's programs."""

    def __init__(self, environment: Mapping[str, str], folder: Path, log: Path) -> None:
        self._log = log
        with open(log, "ab", opener=open_private) as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "leasehold.stack.preparation"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
                cwd=folder,
                env={**os.environ, **environment},
                umask=PRIVATE_UMASK,
                text=True,
            )
        self._reports: dict[str, dict[str, Any]] = {}
        self._has_ended = False
        self._reader = threading.Thread(target=self._read, name="preparation", daemon=True)
        self._reader.start()

    def order_rules(self, rules: Mapping[str, Any] | None, *, machines_are_gone: bool) -> None:
        """Let the process apply the rules, since Redis has started, and wait for the workers."""
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.write(json.dumps({"rules": rules, "machines_are_gone": machines_are_gone}) + "\n")
                self._process.stdin.flush()

    def is_done(self, part: str) -> bool:
        """Return whether the process has reported this part. Raises InvalidInputError for a wrong configuration or
        content of the database, StackError for another error and if the process has ended before.
        """
        if part in self._reports:
            return True
        if failed := self._reports.get(""):
            if faults := failed.get("faults"):
                raise InvalidInputError([Fault(**each) for each in faults])
            raise StackError(failed["error"])
        if self._has_ended and part not in self._reports:
            raise StackError(f"the stack cannot be prepared: {read_last_line(self._log) or 'the process was ended'}")
        return False

    def read_report(self, part: str) -> dict[str, Any]:
        """Return what the process reported with this part, which is done."""
        return self._reports[part]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            report = json.loads(line)
            self._reports[report["part"]] = report
        self._has_ended = True


START_SECONDS: Final = 90.0
"""Seconds that the start of a stack may take, until all its parts answer."""
MOST_DEATHS: Final = 3
"""The start of a stack fails if one of its programs had to be restarted this number of times."""
_POLL_SECONDS: Final = 0.05

Progress = Callable[[str, str], object]
"""A function that is called with the name of a part of the stack and "started" or "ready"."""


class Stack:
    """Starts all parts of a stack on this machine, keeps them running, and stops them. The processes of the stack do
    not outlive this process.

    `directory`: the working directory of the processes, in which `.leasehold` is kept. `rules` replaces the rules of
    the configuration file. `environment` is added to the environment of each process (`{"LEASEHOLD_TICKS__INTERVAL":
    "1"}`). `emulator` sets delays of the emulator (`{"boot_seconds": 2}`). A stack can be started once.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        config: Path | None = None,
        rules: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        emulator: Mapping[str, float] | None = None,
        on_progress: Progress = lambda _name, _state: None,
    ) -> None:
        self.directory = (directory or Path.cwd()).absolute()
        self.folder = StackFolder(self.directory / FOLDER)
        self._given: dict[str, Any] = {
            "config": config,
            "rules": rules,
            "environment": environment,
            "emulator": emulator,
        }
        self._on_progress = on_progress
        self._configuration: StackConfiguration | None = None
        self._reaper: Reaper | None = None
        self._supervisor: Supervisor | None = None
        self._preparation: Preparation | None = None
        self.systems: tuple[str, ...] = ()
        """The systems of the pools of the rules, once the stack runs."""
        self._programs: dict[str, Program] = {}
        self._phase = "starting"
        self._started_at = 0.0
        self._stopped = threading.Event()
        self._life = threading.Lock()
        """Lock for changes of the stack's parts, because `start` and `stop` may run in different threads."""
        self._writing = threading.Lock()
        """Lock for the file run.json, which the thread that watches the processes writes, too."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def configuration(self) -> StackConfiguration:
        """The settings, URLs, environment and programs of the started stack. Raises StackError before the start."""
        if self._configuration is None:
            raise StackError("the stack was not started")
        return self._configuration

    @property
    def url(self) -> str:
        return self.configuration.broker_url

    @property
    def database_url(self) -> str:
        return self.configuration.database_url

    @property
    def emulator_url(self) -> str | None:
        """The URL of the stack's EC2 emulator; None if AWS is configured."""
        return self.configuration.emulator_url

    def read_emulator(self, page: str, order: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return one page of the emulator's control API, like "state" (docs/reference/emulator.md). `order`: the body
        of a page that changes something, like "interrupt". Raises OSError if the emulator does not answer.
        """
        login = b64encode(f"leasehold:{self.configuration.environment[SECRET_KEY_VARIABLE]}".encode()).decode()
        body = None if order is None else json.dumps(order).encode()
        request = Request(f"{self.emulator_url}/_leasehold/{page}", body, {"Authorization": f"Basic {login}"})  # noqa: S310 - our own emulator
        with open_local(request, 10) as answer:
            document: dict[str, Any] = json.load(answer)
        return document

    @property
    def urls(self) -> dict[str, str]:
        """The web addresses of the stack's parts by name: `flower`, `metrics`, `console` if its extra is installed, and
        `emulator` if the stack runs one.
        """
        return self.configuration.urls

    @property
    def console_url(self) -> str | None:
        """The address that opens the console, with its secret token; None if the extra `console` is not installed."""
        return find_console_url(self.urls, self.configuration.environment)

    def pids(self) -> dict[str, int]:
        """Return the ids of the stack's running processes, by the name of the program; {} before the start."""
        return self._supervisor.pids() if self._supervisor else {}

    def restarts(self) -> dict[str, int]:
        """Return how often each program of the stack was restarted after it ended, by its name."""
        return self._supervisor.restarts() if self._supervisor else {}

    def client(self, **options: Any) -> "Client":
        """Return a client of this stack, with `options` of Client. The caller closes the client."""
        from leasehold.client.client import Client  # noqa: PLC0415 - `leasehold up` needs none

        settings = self.configuration.settings
        return Client(self.url, view_url=settings.view_url, prefix=settings.view.prefix, **options)

    def open_store(self) -> "Store":
        """Open the stack's database for reading. Changes need a request to the stack."""
        from scheduler.store.opening import open_store  # noqa: PLC0415 - as above

        return open_store(self.database_url)

    def start(self, timeout: float = START_SECONDS) -> None:
        """Start all parts of the stack, and return when all of them answer.

        Raises StackError if that fails or takes longer than `timeout` seconds, InvalidInputError for a wrong
        configuration. The stack is stopped before the error is raised.
        """
        with self._life:
            self._refuse_when_stopped()
            try:
                self.folder.lock()
                for log in self.folder.logs.glob("*.log"):
                    log.unlink()
            except AlreadyRunningError as error:
                raise StackError(f"{error}: `leasehold down` stops it") from None
            except UntrustedFolder as error:
                raise StackError(str(error)) from None
            except OSError as error:
                raise StackError(f"{self.folder.path} cannot be used: {error.strerror}") from None
        try:
            self._start(timeout)
        except BaseException:
            # Also on Ctrl-C: otherwise a part of the stack would continue to run.
            self.stop()
            raise

    def stop(self) -> None:
        """Stop all processes of the stack, which takes some seconds, and release its folder. A second call does
        nothing.
        """
        with self._life:
            if self._stopped.is_set():
                return
            self._stopped.set()
        self._phase = "stopping"
        if self._supervisor is not None:
            with suppress(OSError):
                self._write()
            self._supervisor.end_all(last=[REDIS])
        if self._preparation is not None:
            self._preparation.close()
        if self._reaper is not None:
            self._reaper.dismiss()
        self.folder.unlock()

    def _start(self, timeout: float) -> None:
        until = time.monotonic() + timeout
        self._started_at = time.time()
        self._configuration = configure(self.directory, self.folder.path, **self._given)
        with self._life:
            self._refuse_when_stopped()
            self._reaper = Reaper([self.folder.lock_descriptor])
            environment, logs = self._make_environment(), self.folder.logs
            preparation = self._preparation = Preparation(environment, self.directory, logs / "preparation.log")
            # On macOS system libraries may fail after a fork.
            has_nursery = sys.platform == "linux"
            nursery = Nursery(environment, self.directory, logs / "nursery.log") if has_nursery else None
            self._supervisor = Supervisor(self.directory, self.folder.logs, self._reaper, self._write, nursery)
            self._supervisor.begin()
        found = self._configuration
        for program in found.programs:
            self._launch(program)
        if has_console() and TOKEN_VARIABLE in found.environment:
            write_token(Path(found.environment[TOKEN_VARIABLE]))
        self._await({"the database": lambda: self._is_prepared("the database")}, until)
        try:
            programs = read_procfile(find_procfile().read_text(encoding="utf-8"))
        except (ProcfileError, OSError) as error:
            raise StackError(str(error)) from None
        for program in programs:
            if program.name == CONSOLE and not has_console():
                continue
            # --local: Flower may run without a password only here, where it listens on a local address.
            is_local = program.name in {"flower", CONSOLE}
            self._launch(replace(program, command=(*program.command, "--local")) if is_local else program)
        self._write()
        has_redis = {REDIS: lambda: self._is_own(REDIS) and self._is_prepared(REDIS)}
        self._await({**has_redis, **self._list_cloud_checks()}, until)
        preparation.order_rules(found.rules, machines_are_gone=found.emulator_url is not None)
        self._await({"the rules": lambda: self._is_prepared("the rules")}, until)
        report = preparation.read_report("the rules")
        self.systems = tuple(report["systems"])
        for source, reason in report["failed"].items():
            self._on_progress(source, f"not found yet ({reason})")
        self._await(self._list_checks(), until)
        preparation.close()
        self._phase = "running"
        self._write()

    def _launch(self, program: Program) -> None:
        self._programs[program.name] = program
        if self._supervisor is not None:
            environment = {**self._make_environment(), **program.environment}
            if not self._supervisor.start(replace(program, environment=environment)):
                self._refuse_when_stopped()
            self._on_progress(program.name, "started")

    def _make_environment(self) -> dict[str, str]:
        return {
            **self.configuration.environment,
            # A tasks.py in the folder must not hide the package `tasks`.
            "PYTHONSAFEPATH": "1",
            "PYTHONUNBUFFERED": "1",
        }

    def _is_prepared(self, part: str) -> bool:
        return self._preparation is not None and self._preparation.is_done(part)

    def _list_checks(self) -> dict[str, Check]:
        """Return the checks that must succeed before the stack counts as running, by the name of the checked part."""
        checks: dict[str, Check] = {
            part: lambda part=part: self._is_prepared(part)  # type: ignore[misc]
            for part in (*QUEUE_NAMES, "view")
        }
        checks["flower"] = lambda: self._is_own("flower")
        checks["metrics"] = lambda: self._is_own("metrics")
        if has_console():
            checks[CONSOLE] = lambda: self._is_own(CONSOLE) and serves(f"{self.urls[CONSOLE]}healthz")
        emulator = self.emulator_url
        if emulator is not None:
            checks[EMULATOR] = lambda: self._is_own(EMULATOR) and serves(f"{emulator}/_leasehold/health")
        return checks

    def _is_own(self, name: str) -> bool:
        """Return whether the server at the address of this program is the program. If another process of this host has
        taken the port of a web page since the port was chosen, start the program on another port.
        """
        found, pid = self.configuration, self.pids().get(name)
        if name in {REDIS, EMULATOR}:
            if name not in self._programs:
                return True
            parts = urlsplit(found.broker_url if name == REDIS else found.emulator_url or "")
            return find_server(parts.hostname or "", parts.port or 0, pid) == "own"
        host = getattr(found.settings, name).host
        server = find_server(host, int(found.environment[f"LEASEHOLD_{name.upper()}__PORT"]), pid)
        if server == "other":
            for moved in self.configuration.move(name):
                if self._supervisor is not None and moved in self._programs:
                    self._supervisor.end([moved])
                    self._launch(self._programs[moved])
            self._write()
        return server == "own"

    def _list_cloud_checks(self) -> dict[str, Check]:
        """Return the check of the emulator, if the rules need its types and prices, or its images; else none."""
        emulator, rules = self.emulator_url, self.configuration.rules
        read = read_rules(dict(rules or {}))
        if emulator is None or not (has_requirements(read) or list_image_sources(read)):
            return {}
        return {EMULATOR: lambda: self._is_own(EMULATOR) and serves(f"{emulator}/_leasehold/health")}

    def _await(self, checks: Mapping[str, Check], until: float) -> None:
        """Wait until each of `checks` has succeeded once. Raises StackError at the monotonic time `until`, if a program
        ends too often, and if the stack is stopped.
        """
        open_checks = dict(checks)
        while True:
            for name in [name for name, is_ready in open_checks.items() if is_ready()]:
                del open_checks[name]
                self._on_progress(name, "ready")
            if not open_checks:
                return
            for name in open_checks:
                if self.restarts().get(name, 0) >= MOST_DEATHS:
                    last = read_last_line(self.folder.logs / f"{name}.log") or "its log is empty"
                    raise StackError(
                        f"the process {name} ended again and again before it was ready: {last}", self._list_warnings()
                    )
            if time.monotonic() >= until:
                raise StackError(
                    f"not ready in time: {', '.join(open_checks)} (see `leasehold logs`, {self.folder.logs})",
                    self._list_warnings(),
                )
            # An event and not `sleep`, because a signal handler that stops the stack has to end this wait.
            self._stopped.wait(_POLL_SECONDS)
            self._refuse_when_stopped()

    def _refuse_when_stopped(self) -> None:
        if self._stopped.is_set():
            raise StackError("the stack was stopped while it started")

    def _list_warnings(self) -> list[str]:
        """Return lines for people: the name of each process whose log has a warning or an error, and its last warning
        or error.
        """
        found = {name: find_last_warning(log) for name, log in list_logs(self.folder.logs).items()}
        return [f"{name}: {mask_text(line)}" for name, line in found.items() if line is not None]

    def _write(self) -> None:
        """Write the file run.json, in which commands find the phase, the processes and the addresses of this stack."""
        with self._writing:
            found, pids = self.configuration, self.pids()
            processes = {"supervisor": identify(os.getpid())}
            if self._reaper is not None:
                pids["guardian"] = self._reaper.pid
                processes["guardian"] = identify(self._reaper.pid)
            processes |= self._supervisor.identities() if self._supervisor else {}
            self.folder.write(
                {
                    "pid": os.getpid(),
                    "phase": self._phase,
                    "broker_url": found.broker_url,
                    "database_url": found.database_url,
                    "environment": {
                        name: value for name, value in found.environment.items() if name.startswith("LEASEHOLD_")
                    },
                    "urls": found.urls,
                    "pids": pids,
                    "started_at": self._started_at,
                    "processes": {name: asdict(each) for name, each in processes.items()},
                }
            )
