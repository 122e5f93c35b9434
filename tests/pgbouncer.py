"""A PgBouncer for tests in transaction pooling, from the system's package; a test is skipped if it is missing."""

import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final, Self

import pytest

from leasehold.stack.configuration import find_free_port
from testbed.guarding import Guarded
from testbed.postgresql_server import USER, PostgresServer, as_other_user, hand_over

PROGRAM: Final = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
NO_PROGRAM: Final = "no PgBouncer here (Debian: `apt install --no-install-recommends pgbouncer`)"
START_SECONDS: Final = 20.0
_CONFIGURATION: Final = """
[databases]
* = host=127.0.0.1 port={target} user={user} password={password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {size}
max_client_conn = 500
ignore_startup_parameters = {ignored}
"""


class PgBouncer:
    """A pooler in front of `server`, as a context. `size`: connections to the server. `ignored`: the startup parameters
    that it drops without an error. `target`: the server's port; default: its own.
    """

    def __init__(self, server: PostgresServer, *, size: int = 3, ignored: str = "", target: int | None = None) -> None:
        if PROGRAM is None:
            pytest.skip(NO_PROGRAM)
        self._server, self._folder = server, Path(tempfile.mkdtemp(prefix="leasehold-pgbouncer-"))
        self.port = find_free_port()
        file, self._log = self._folder / "pgbouncer.ini", self._folder / "log"
        target = target or server.port
        values = {"target": target, "user": USER, "password": server.password, "port": self.port}
        file.write_text(_CONFIGURATION.format(**values, size=size, ignored=ignored))
        hand_over(self._folder, file)
        with self._log.open("wb") as stated:
            self._process = Guarded([PROGRAM, file], stdout=stated, stderr=stated, cwd="/", **as_other_user())

    def __enter__(self) -> Self:
        deadline = time.monotonic() + START_SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                # Polling: it does not report when it listens.
                time.sleep(0.02)
            else:
                return self
        self.__exit__()
        raise ConnectionError(f"PgBouncer did not start: {self._log.read_text()}")

    def __exit__(self, *_error: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def url(self, database: str) -> str:
        """Return the URL of a database of the server by way of the pooler."""
        return self._server.url(database).replace(f":{self._server.port}/", f":{self.port}/")
