"""Slow clients of the console and the HTTP API: silent connections, half requests, streams that are not read, and
requests that no worker can read. They have the key of a reader.
"""

import json
import random
import socket
import time
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from typing import Any, Final, Protocol

from leasehold.web.http_protocol import find_most_connections
from scheduler.ports import StoredPrincipal
from scheduler.protocol.http_routes import API

NAME: Final = "slow"
MOST: Final[Mapping[str, int]] = {"silent": 1100, "half heads": 200, "half bodies": 200, "unread": 40, "malformed": 300}
"""Kind of connection -> the most that one fault opens."""
CONNECT_SECONDS: Final = 2.0
ANSWER_SECONDS: Final = 30.0
"""Longest wait after the faults until the console answers: it may have been killed."""


class Place(Protocol):
    """The console of a run: its port, and the reader whose key the slow clients have."""

    console_port: int
    reader: StoredPrincipal


class SlowClients:
    """Opens connections to the console, and keeps them until `close`."""

    def __init__(self, hosts: Place, dice: random.Random) -> None:
        # Each connection is an open file of this process, too.
        find_most_connections()
        self._hosts, self._dice = hosts, dice
        self._open: list[socket.socket] = []

    def open(self) -> str:
        """Open connections of a random kind, and return a description of them."""
        kind = self._dice.choice(list(MOST))
        count = self._dice.randint(1, MOST[kind])
        sent = self._make(kind)
        for _ in range(count):
            connection = socket.create_connection(("127.0.0.1", self._hosts.console_port), CONNECT_SECONDS)
            self._open.append(connection)
            # The console may have closed it already.
            with suppress(ConnectionError):
                connection.sendall(sent)
        return f"{count} connections: {kind}"

    def close(self) -> None:
        connections, self._open = self._open, []
        for each in connections:
            each.close()

    def _make(self, kind: str) -> bytes:
        makers: Mapping[str, Callable[[], bytes]] = {
            "silent": lambda: b"",
            "half heads": lambda: self._request("GET", "/status")[:-2],
            "half bodies": lambda: self._request("POST", "/reservations/query", "x" * 100)[:-50],
            "unread": lambda: self._request("GET", self._dice.choice(["/stream", "/openapi.json"])),
            "malformed": lambda: self._request("POST", "/reservations/query", make_malformed()),
        }
        return makers[kind]()

    def _request(self, method: str, path: str, body: str = "") -> bytes:
        login = b64encode(f"{self._hosts.reader.name}:{self._hosts.reader.key}".encode()).decode()
        lines = [
            f"{method} {API}{path} HTTP/1.1",
            f"Host: 127.0.0.1:{self._hosts.console_port}",
            f"Authorization: Basic {login}",
            *([f"Content-Type: application/json\r\nContent-Length: {len(body)}"] if body else []),
            "\r\n",
        ]
        return ("\r\n".join(lines) + body).encode()


def make_malformed() -> str:
    """Return the JSON of a query that is nested more deeply than a worker reads."""
    deep: list[Any] = []
    for _ in range(40):
        deep = [deep]
    return json.dumps({"ids": ["a"], "more": deep})


def find_silence(hosts: Place) -> Iterator[str]:
    """Yield a violation if the console does not answer after the faults."""
    until, address = time.monotonic() + ANSWER_SECONDS, f"http://127.0.0.1:{hosts.console_port}/healthz"
    while True:
        try:
            with closing(urllib.request.urlopen(address, timeout=CONNECT_SECONDS)) as answer:
                answer.read()
            return
        except OSError as error:
            if time.monotonic() >= until:
                yield f"the console does not answer {ANSWER_SECONDS:g} s after the faults: {error}"
                return
        time.sleep(0.2)
