"""A fake of the stack: it reads the queue from Redis itself, answers with a test's handler and keeps a real view."""

import base64
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, cast

import pytest
import redis

from leasehold import Client
from scheduler.model.forecasts import Forecast, Foreseen, Quality
from scheduler.model.reservations import Reservation
from scheduler.model.view import Row
from scheduler.ports import StoredPrincipal
from scheduler.protocol.signing import format_key_line, make_key
from scheduler.protocol.verbs import Role
from scheduler.view.connection import make_redis
from scheduler.view.forecasts import RedisForecasts
from scheduler.view.redis_view_cache import RedisViewCache
from testbed.processes import wait_for
from tests.builders import a_reservation
from tests.client.facade import BlockingClient, open_blocking
from tests.console.served import Console, serve, settings_for

Document = dict[str, Any]
Handler = Callable[[str, Document], Document | None]
"""(verb, document) -> answer; None: the message is lost and gets no answer."""


RULED_POOLS = {name: {"system": f"{name}-system"} for name in ("linux", "arm", "empty")}
"""The pools of the rules in force."""


def accept(verb: str, document: Document) -> Document:
    """Return the answer to an accepted request: each reservation is pending."""
    if "items" in document:
        return {"ok": True, "results": [accept(verb, item) for item in document["items"]]}
    if verb == "query":
        return {"ok": True, "reservations": []}
    if verb == "rules":
        return {"ok": True, "version": 1, "document": {"pools": RULED_POOLS}}
    name = document.get("id") or document.get("reservation")
    return {"ok": True, "reservation": name, "phase": "pending", "expires_at": None, "token": None}


class FakeIntake:
    """Takes the messages of the queue `reservations` one by one, in its own thread."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.handler: Handler = accept
        self.seen: list[tuple[str, Document]] = []
        self.answers_each = 1
        """How many copies of each answer are sent."""
        self._redis = make_redis(url)
        self.view_cache = RedisViewCache(make_redis(url))
        self.view_cache.rebuild([])
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def verbs(self) -> list[str]:
        """Return the verbs of the messages received so far, in order."""
        return [verb for verb, _ in self.seen]

    def publish(self, *rows: Row) -> None:
        """Write rows to the view and publish a notice for each reservation."""
        self.view_cache.publish(rows)
        for row in rows:
            if isinstance(row, Reservation):
                self._redis.publish(f"leasehold:notice:{row.id}", b"{}")

    def foresee(self, **forecasts: Forecast) -> None:
        """Publish these forecasts by reservation, as the process `foresight` does."""
        quality = Quality(
            name="all", count=60, coverage=0.8, width=90.0, loss=7.0, calibration=((0.1, 0.2), (0.9, 0.8))
        )
        found = Foreseen(as_of=100.0, forecasts=forecasts, qualities=(quality,), plays=32, seconds=2.0)
        RedisForecasts(self._redis).publish(found, b"")

    def publish_silently(self, *rows: Row) -> None:
        """Write rows to the view without a notice, as if the notice were lost."""
        self.view_cache.publish(rows)

    def count_listeners(self, name: str) -> int:
        """Return the number of clients that are subscribed to the notices of this reservation."""
        ((_, count),) = self._redis.pubsub_numsub(f"leasehold:notice:{name}")
        return int(count)

    def stop(self) -> None:
        """End the thread, which would else wait until Redis ends its blocking read, 0.2 s in each test."""
        self._stop.set()
        with suppress(redis.RedisError):
            self._redis.rpush("reservations", b"")
        self._thread.join()
        self._redis.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                taken = self._redis.brpop(["reservations"], timeout=0.1)
            except redis.RedisError:
                self._stop.wait(0.05)
                continue
            if taken is not None and not self._stop.is_set():
                self._take(json.loads(taken[1]))

    def _take(self, envelope: Document) -> None:
        verb = envelope["headers"]["task"].removeprefix("leasehold.reservations.")
        (document,), _, _ = json.loads(base64.b64decode(envelope["body"]))
        self.seen.append((verb, document))
        answer = self.handler(verb, document)
        if answer is not None:
            for _ in range(self.answers_each):
                self._redis.rpush(document["reply_to"], json.dumps(answer))
            self._redis.expire(document["reply_to"], 60)


@pytest.fixture
def intake(redis_url: str) -> Iterator[FakeIntake]:
    fake = FakeIntake(redis_url)
    yield fake
    fake.stop()


REDIS, HTTP = "redis", "http"
"""The ways of a client to the stack."""


class Access:
    """How the clients of one test reach the fake stack: directly through Redis, or through a real HTTP server."""

    def __init__(self, url: str, console: Console | None = None) -> None:
        self._console = console
        self.url = url if console is None else f"http://127.0.0.1:{console.settings.console.port}"
        self.token = "" if console is None else console.token

    def open(self, **options: Any) -> Client:
        """Return a blocking client; the caller closes it."""
        return Client(self.url, **{"timeout": 5, **self._find_login(options), **options})

    def open_facade(self) -> AbstractContextManager[BlockingClient]:
        return open_blocking(self.url, timeout=5, token=self.token or None)

    def add_principal(self, name: str, role: Role = "producer") -> str:
        """Add a principal to the server; return the content of its key file."""
        key = make_key()
        if self._console is not None:
            self._console.add(StoredPrincipal(name=name, role=role, key=key, created_at=0.0))
            principals = self._console.app.state.gate.principals
            # The server reads the principals at most once a second.
            wait_for(lambda: name in principals.read().principals, "the principal")
        return format_key_line(name, key, "a-cluster")

    def _find_login(self, options: Document) -> Document:
        return {} if options.keys() & {"key", "key_file"} or not self.token else {"token": self.token}


@pytest.fixture
def http_access(intake: FakeIntake, sqlite_url: str, tmp_path: Path) -> Iterator[Access]:
    """The HTTP API, served by uvicorn in a thread, in front of the fake stack."""
    with serve(settings_for(intake.url, sqlite_url, tmp_path / "console-token")) as console:
        yield Access(intake.url, console)


@pytest.fixture
def client(intake: FakeIntake, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client of the fake stack through Redis; it resends an unanswered request after 0.1 s."""
    monkeypatch.setattr("leasehold.client.redis.exchange.RESEND_SECONDS", 0.1)
    with Client(intake.url, timeout=5) as made:
        yield made


@pytest.fixture(params=[REDIS, HTTP])
def blocking_client(
    intake: FakeIntake, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Client]:
    """The blocking client: each test runs once through Redis and once through HTTP."""
    monkeypatch.setattr("leasehold.client.redis.exchange.RESEND_SECONDS", 0.1)
    access = Access(intake.url) if request.param == REDIS else request.getfixturevalue("http_access")
    with access.open() as made:
        yield made


@pytest.fixture(params=["blocking", "asyncio", "blocking over http", "asyncio over http"])
def either_client(
    intake: FakeIntake, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Client]:
    """The blocking and the asyncio client, through Redis and through HTTP: each test runs once with each of them."""
    monkeypatch.setattr("leasehold.client.redis.exchange.RESEND_SECONDS", 0.1)
    kind, _, way = request.param.partition(" over ")
    access = request.getfixturevalue("http_access") if way else Access(intake.url)
    if kind == "blocking":
        with access.open() as made:
            yield made
    else:
        with access.open_facade() as facade:
            yield cast("Client", facade)


def a_row(name: str = "r1", *, version: int = 1, **changes: Any) -> Reservation:
    """A reservation as the store writes it: with a row version and `marked_at`."""
    return a_reservation(name, version=version, marked_at=changes.pop("marked_at", 1_800_000_000.0), **changes)
