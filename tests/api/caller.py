"""A program that sends HTTP requests to the API."""

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from scheduler.protocol.http_routes import API


@dataclass(frozen=True)
class Reply:
    """A response with its JSON; None if it has none."""

    status: int
    headers: http.client.HTTPMessage
    content: Any

    @property
    def faults(self) -> list[tuple[str, str]]:
        """Return (path, expected) of each fault."""
        return [(each["path"], each["expected"]) for each in self.content["errors"]]


@dataclass(frozen=True)
class Caller:
    """Sends requests with these headers to the server on this port."""

    port: int
    headers: Mapping[str, str]

    def get(self, path: str, **headers: str) -> Reply:
        return self.send("GET", path, None, headers)

    def post(self, path: str, body: object = None, **headers: str) -> Reply:
        return self.send("POST", path, body, headers)

    def send(self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None) -> Reply:
        """Send a request. A body that is no bytes is sent as JSON. Underscores in names of headers become dashes."""
        own = {name.replace("_", "-"): value for name, value in (headers or {}).items()}
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        kind = {} if content is None else {"Content-Type": "application/json"}
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=40)) as connection:
            connection.request(method, f"{API}{path}", content, {**self.headers, **kind, **own})
            response = connection.getresponse()
            text = response.read()
        is_json = "json" in response.headers.get("Content-Type", "")
        return Reply(response.status, response.headers, json.loads(text) if is_json else None)

    @contextmanager
    def stream(self, path: str, **headers: str) -> Iterator[Iterator[tuple[str | None, str, Any]]]:
        """Open a stream of server-sent events; yield an iterator of (id, name, data)."""
        own = {name.replace("_", "-"): value for name, value in headers.items()}
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=40)) as connection:
            connection.request("GET", f"{API}{path}", headers={**self.headers, "Accept": "text/event-stream", **own})
            response = connection.getresponse()
            assert response.status == 200, response.read()
            with response:
                yield _read_events(response)


def _read_events(response: http.client.HTTPResponse) -> Iterator[tuple[str | None, str, Any]]:
    fields: dict[str, str] = {}
    while line := response.readline().decode():
        if line == "\n":
            if "data" in fields:
                yield fields.get("id"), fields["event"], json.loads(fields["data"])
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.rstrip("\n").partition(": ")
            fields[name] = value
