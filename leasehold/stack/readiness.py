"""Checks whether a part of an embedded stack works. A part works if it answers."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal
from urllib.error import URLError

from scheduler.protocol.loopback import open_local

Check = Callable[[], bool]
Server = Literal["own", "other", "none"]
_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENS: Final = "0A"
"""The state of a listening socket in these tables of Linux."""


def listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False


def find_server(host: str, port: int, pid: int | None) -> Server:
    """Return which process accepts connections on this host and port: "own" if it is the process with this id."""
    for _ in range(2):
        if pid is not None and _is_listener(pid, port):
            return "own"
        # The process may have begun to listen since the look at its sockets, so that they are looked at once more.
        if not listens(host, port):
            return "none"
    return "other"


def _is_listener(pid: int, port: int) -> bool:
    """Return whether this process listens on a TCP port. Where the system does not show that, any process counts."""
    tables = [table for table in _TABLES if table.exists()]
    if not tables:
        return listens("127.0.0.1", port)
    rows = [line.split() for table in tables for line in table.read_text(encoding="ascii").splitlines()[1:]]
    wanted = {f"socket:[{row[9]}]" for row in rows if row[3] == _LISTENS and int(row[1].rpartition(":")[2], 16) == port}
    try:
        files = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False
    return any(_read_link(file) in wanted for file in files)


def _read_link(file: Path) -> str:
    try:
        return str(file.readlink())
    except OSError:
        # The process has closed the file meanwhile.
        return ""


def serves(url: str) -> bool:
    """Return whether a web server answers a request for `url` with status 200."""
    try:
        with open_local(url, 2) as answer:
            return bool(answer.status == 200)  # noqa: PLR2004 - HTTP status OK
    except (URLError, OSError):
        return False
