"""Slow, silent and very many connections do not keep the server from others."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from typing import Any

import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from leasehold.stack.configuration import find_free_port
from leasehold.web.http_protocol import BoundedProtocol, Doors
from testbed.processes import wait_for

MOST = 40
OF_ONE_PEER = 10
WHOLE = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
LARGE = 64 * 1024 * 1024


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    """Read the body, and answer; the answer to /large does not fit into the buffers of a connection."""
    if scope["type"] == "http":
        await Request(scope, receive).body()
        text = "x" * LARGE if scope["path"] == "/large" else "ok"
        await PlainTextResponse(text)(scope, receive, send)


class Server:
    """A server in a thread, whose connections one peer may fill up to a quarter."""

    def __init__(self, doors: Doors) -> None:
        self.port = find_free_port()
        http: Any = partial(BoundedProtocol, doors)
        config = uvicorn.Config(
            answer,
            port=self.port,
            http=http,
            ws="none",
            lifespan="off",
            log_config=None,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=1,
        )
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)

    def connect(self, sent: bytes = b"") -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=20)
        connection.sendall(sent)
        return connection


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("HEAD_SECONDS", "BODY_SECONDS", "STUCK_SECONDS", "SWEEP_SECONDS"):
        monkeypatch.setattr(f"leasehold.web.http_protocol.{name}", 0.1)
    yield from run(Doors(MOST))


@pytest.fixture
def patient(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server with the usual times. The parameter: whether the peer is a trusted proxy."""
    yield from run(Doors(MOST, lambda _peer: getattr(request, "param", False)))


def run(doors: Doors) -> Iterator[Server]:
    running = Server(doors)
    running.thread.start()
    wait_for(lambda: running.server.started, "the server")
    yield running
    running.server.should_exit = True
    running.thread.join(20)


def is_closed(connection: socket.socket) -> bool:
    """Return whether the server closes the connection, after the answers that it sends before."""
    with closing(connection), suppress(ConnectionError):
        while connection.recv(65536):
            pass
    return True


def is_answered(connection: socket.socket) -> bool:
    """Send a request, and return whether the whole answer comes."""
    connection.sendall(WHOLE)
    answer = b""
    while not answer.endswith(b"ok") and (part := connection.recv(65536)):
        answer += part
    return answer.endswith(b"ok")


SLOW = {
    "nothing": b"",
    "a half head": WHOLE[:20],
    "the half head of a second request": WHOLE + WHOLE[:20],
    "a half body": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc",
}


@pytest.mark.parametrize("sent", SLOW.values(), ids=SLOW)
def test_a_connection_that_never_sends_its_request_whole_is_closed(server: Server, sent: bytes) -> None:
    assert is_closed(server.connect(sent))


def test_a_connection_whose_client_takes_nothing_of_the_answer_is_closed(server: Server) -> None:
    with closing(server.connect(WHOLE.replace(b"GET /", b"GET /large"))) as connection:
        opened = server.server.server_state.connections
        wait_for(lambda: opened, "the begin of the connection")
        wait_for(lambda: not opened, "the end of the connection")
        with suppress(ConnectionError):
            assert sum(len(each) for each in iter(lambda: connection.recv(1 << 20), b"")) < LARGE


def test_a_connection_stays_open_between_its_requests(patient: Server) -> None:
    with closing(patient.connect()) as connection:
        for _ in range(2):
            assert is_answered(connection)
            (served,) = patient.server.server_state.connections
            assert not served.is_late(float("1e12"))  # type: ignore[union-attr] # a BoundedProtocol


def test_silent_connections_keep_no_request_out(patient: Server) -> None:
    """The oldest of them is closed for each new connection."""
    silent = [patient.connect() for _ in range(3 * OF_ONE_PEER)]
    with closing(patient.connect()) as connection:
        assert is_answered(connection)
    assert all(map(is_closed, silent[: 2 * OF_ONE_PEER + 1]))
    for each in silent:
        each.close()


@pytest.mark.parametrize("patient", [True], indirect=True)
def test_the_connections_of_a_trusted_proxy_come_from_many_callers(patient: Server) -> None:
    silent = [patient.connect() for _ in range(2 * MOST)]
    with closing(patient.connect()) as connection:
        assert is_answered(connection)
    assert len(patient.server.server_state.connections) > 2 * MOST - 1
    for each in silent:
        each.close()
