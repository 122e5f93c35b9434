"""A console that runs in a thread of the tests, and a small browser without scripts."""

import http.client
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import uvicorn

from leasehold.console.__main__ import make_server
from leasehold.stack.configuration import find_free_port
from leasehold.web.token_file import write_token
from scheduler.model.view import Row
from scheduler.ports import Store, StoredPrincipal
from scheduler.store.opening import open_store
from scheduler.view.connection import make_redis
from scheduler.view.redis_view_cache import RedisViewCache
from testbed.processes import wait_for
from workers.settings import Settings, read_settings

WRONG_KEY = "wrong-key-wrong-key-wrong-key-wrong-key"


@dataclass(frozen=True)
class Answer:
    """The answer to one request."""

    status: int
    headers: http.client.HTTPMessage
    text: str

    @property
    def location(self) -> str:
        """Return the address of a redirect."""
        return self.headers.get("location", "")


@dataclass
class Browser:
    """Sends requests to one server and keeps its cookies."""

    host: str
    port: int
    cookies: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)

    def get(self, path: str, **headers: str) -> Answer:
        """Send a GET like a navigation of a browser."""
        return self.send("GET", path, headers={"Accept": "text/html", **_names(headers)})

    def post(self, path: str, fields: Mapping[str, Any] | None = None, **headers: str) -> Answer:
        """Send a form of this site."""
        body = urlencode(fields or {}, doseq=True).encode()
        usual = {"Content-Type": "application/x-www-form-urlencoded", "Origin": f"http://{self.host}:{self.port}"}
        return self.send("POST", path, body, {**usual, **_names(headers)})

    def send(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answer:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=20)
        sent = {**self.headers, **(headers or {})}
        if self.cookies:
            sent.setdefault("Cookie", "; ".join(f"{name}={value}" for name, value in self.cookies.items()))
        try:
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        for line in answer.headers.get_all("set-cookie", []):
            for name, morsel in SimpleCookie(line).items():
                self.cookies[name] = morsel.value
                if not morsel.value:
                    del self.cookies[name]
        return Answer(answer.status, answer.headers, text)

    def csrf(self, page: str = "/about") -> str:
        found = re.search(r'data-csrf="([0-9a-f]*)"', self.get(page).text)
        assert found is not None
        return found[1]


def _names(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


@dataclass
class Console:
    """A running console with its settings, store and view cache."""

    settings: Settings
    store: Store
    server: uvicorn.Server
    view_cache: RedisViewCache
    token: str

    def browser(self, **headers: str) -> Browser:
        """Return a browser without cookies."""
        return Browser("127.0.0.1", self.settings.console.port, headers=_names(headers))

    def entered(self) -> Browser:
        """Return a browser that has opened the address with the token."""
        browser = self.browser()
        answer = browser.get(f"{self.settings.console.prefix}/?token={self.token}")
        assert answer.status == 303, answer
        return browser

    def publish(self, *rows: Row) -> None:
        """Write rows to the view in Redis."""
        assert self.view_cache.publish(rows)

    def add(self, principal: StoredPrincipal) -> None:
        """Add or replace a principal, as `leasehold principal` does."""
        with self.store.transaction() as transaction:
            transaction.load_principals()
            transaction.save_principals([principal])

    def remove(self, name: str) -> None:
        with self.store.transaction() as transaction:
            transaction.load_principals()
            transaction.delete_principals([name])

    @property
    def app(self) -> Any:
        """The web application."""
        return self.server.config.app


def settings_for(redis_url: str, database_url: str, token_file: Path, **sections: Mapping[str, Any]) -> Settings:
    """Return settings of a console on a free port."""
    console = {"port": find_free_port(), "token_file": str(token_file), **sections.pop("console", {})}
    return read_settings(
        {"broker": {"url": redis_url}, "database": {"url": database_url}, "console": console, **sections}
    )


@contextmanager
def serve(settings: Settings, *, rows: tuple[Row, ...] = ()) -> Iterator[Console]:
    """Run a console with these settings and a view of these rows until the end of the block."""
    path = Path(settings.console.token_file or "")
    token = write_token(path)
    store, client = open_store(settings.database_url), make_redis(settings.view_url or "")
    cache = RedisViewCache(client)
    cache.rebuild(rows)
    server = make_server(settings, store)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        wait_for(lambda: server.started and _is_valid(server), "the console")
        yield Console(settings, store, server, cache, token)
    finally:
        # A request that waits for its answer keeps no test waiting.
        server.config.timeout_graceful_shutdown = 0
        server.should_exit = True
        thread.join(timeout=20)
        client.close()
        store.close()


def _is_valid(server: uvicorn.Server) -> bool:
    app: Any = server.config.app
    return bool(app.state.backend.feed.status.is_valid)
