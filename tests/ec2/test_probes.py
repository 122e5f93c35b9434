"""Probes against real sockets and processes; each ends in time, and none raises."""

import socket
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import msgspec
import pytest

from scheduler.model.rules import Rules
from scheduler.model.slots import Machine, Slot
from tests.ec2.conftest import some_rules
from workers.probes import Probes, fill_command

SLOT = Slot(id="linux-1", pool="linux")
MACHINE = Machine(id="i-1", state="running", address="127.0.0.1", healthy=True)


def ready(probe: dict[str, Any], **machine: object) -> bool:
    rules = some_rules(probe={"timeout": 5, **probe})
    return Probes().is_ready(SLOT, msgspec.structs.replace(MACHINE, **machine), rules)


class _Site(BaseHTTPRequestHandler):
    released = Event()

    def do_GET(self) -> None:
        if self.path == "/drip":
            # Byte by byte: each single read is in time, but the answer takes too long.
            for byte in b"HTTP/1.1 200 OK\r\n" * 100:
                self.wfile.write(bytes([byte]))
                if self.released.wait(0.05):
                    return
        status = {"/ready": 204, "/moved": 302}.get(self.path, 503)
        self.send_response(status)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Log nothing."""

    def handle(self) -> None:
        try:
            super().handle()
        except ConnectionError:
            return


@pytest.fixture(scope="module")
def site() -> Iterator[int]:
    """Yield the port of a site: `/ready`, `/moved`, `/drip` (slow); other paths are errors."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Site)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    _Site.released.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def closed() -> int:
    """Return a port on which no process listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


@pytest.fixture
def silent() -> Iterator[int]:
    """Yield a port that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize(("healthy", "expected"), [(True, True), (False, False), (None, False)])
def test_none_goes_by_the_status_checks(healthy: bool | None, expected: bool) -> None:
    assert ready({"kind": "none"}, healthy=healthy) is expected


@pytest.mark.parametrize("state", ["pending", "stopping", "terminated"])
def test_only_a_running_machine_is_ready(state: str) -> None:
    assert not ready({"kind": "none"}, state=state)
    assert not ready({"kind": "command", "command": ["true"]}, state=state)


def test_a_machine_of_an_unknown_pool_is_not_ready() -> None:
    assert not Probes().is_ready(SLOT, MACHINE, Rules())


def test_tcp_is_ready_when_the_port_takes_a_connection(silent: int, closed: int) -> None:
    assert ready({"kind": "tcp", "port": silent})
    assert not ready({"kind": "tcp", "port": closed})


@pytest.mark.parametrize("kind", ["tcp", "http"])
@pytest.mark.parametrize(
    ("address", "port"), [(None, 80), ("", 1), ("host.invalid", 80), ("a" * 300, 80), ("no\nhost", 80)]
)
def test_what_cannot_be_reached_is_not_ready(kind: str, address: str | None, port: int) -> None:
    assert not ready({"kind": kind, "port": port, "timeout": 1}, address=address)


@pytest.mark.parametrize(("path", "expected"), [("/ready", True), ("/moved", False), ("/", False), ("/a b\n", False)])
def test_http_is_ready_when_the_answer_is_2xx(site: int, path: str, expected: bool) -> None:
    assert ready({"kind": "http", "port": site, "path": path}) is expected


def test_http_without_an_answer_is_not_ready(silent: int, closed: int) -> None:
    assert not ready({"kind": "http", "port": silent, "timeout": 0.2})
    assert not ready({"kind": "http", "port": closed})


def test_http_that_drips_ends_in_time(site: int) -> None:
    began = time.monotonic()
    assert not ready({"kind": "http", "port": site, "path": "/drip", "timeout": 0.3})
    assert time.monotonic() - began < 3


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["true"], True),
        (["false"], False),
        # there is no shell: this is the name of a missing file
        (["true; true"], False),
        (["/no/such/command"], False),
        ([sys.executable, "-c", "import sys; sys.exit(sys.argv[1:] != ['127.0.0.1', 'i-1'])"], False),
        (
            [
                sys.executable,
                "-c",
                "import sys; sys.exit(sys.argv[1:] != ['127.0.0.1', 'on i-1 {x}'])",
                "{address}",
                "on {instance_id} {x}",
            ],
            True,
        ),
    ],
)
def test_a_command_is_ready_when_it_ends_with_0(command: list[str], expected: bool) -> None:
    assert ready({"kind": "command", "command": command}) is expected


def test_a_command_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    script = f"sleep 60 & echo $! > {note}; wait"
    assert not ready({"kind": "command", "command": ["sh", "-c", script], "timeout": 0.5})
    child = Path(f"/proc/{note.read_text().strip()}/stat")
    deadline = time.monotonic() + 10
    while child.exists() and child.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline


def test_a_machine_without_an_address_leaves_it_empty() -> None:
    machine = msgspec.structs.replace(MACHINE, address=None)
    assert fill_command(["{address}", "{instance_id}", "{{address}}"], machine, None) == ["", "i-1", "{}"]
