"""A fake of the stack: it reads the queue from Redis itself, answers with a test's handler and keeps a real view."""

import base64
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import redis

from leasehold import Client
from scheduler.model.reservations import Reservation
from scheduler.model.view import Row
from scheduler.view.connection import make_redis
from scheduler.view.redis_view_cache import RedisViewCache
from tests.builders import a_reservation
from tests.client.facade import open_blocking

Document = dict[str, Any]
Handler = Callable[[str, Document], Document | None]
"""(verb, document) -> answer; None: the message is lost and gets no answer."""


def accept(verb: str, document: Document) -> Document:
    """Return the answer to an accepted request: each reservation is pending."""
    if "items" in document:
        return {"ok": True, "results": [accept(verb, item) for item in document["items"]]}
    if verb == "query":
        return {"ok": True, "reservations": []}
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

    def publish_silently(self, *rows: Row) -> None:
        """Write rows to the view without a notice, as if the notice were lost."""
        self.view_cache.publish(rows)

    def count_listeners(self, name: str) -> int:
        """Return the number of clients that are subscribed to the notices of this reservation."""
        ((_, count),) = self._redis.pubsub_numsub(f"leasehold:notice:{name}")
        return int(count)

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join()
        self._redis.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                taken = self._redis.brpop(["reservations"], timeout=0.1)
            except redis.RedisError:
                self._stop.wait(0.05)
                continue
            if taken is not None:
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
    """A fake stack on the shared Redis."""
    fake = FakeIntake(redis_url)
    yield fake
    fake.stop()


@pytest.fixture
def client(intake: FakeIntake, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client of the fake stack; it resends an unanswered request after 0.1 s."""
    monkeypatch.setattr("leasehold.client.exchange.RESEND_SECONDS", 0.1)
    with Client(intake.url, timeout=5) as made:
        yield made


@pytest.fixture(params=["blocking", "asyncio"])
def either_client(
    intake: FakeIntake, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Client]:
    """The blocking and the asyncio client: each test runs once with each of them."""
    monkeypatch.setattr("leasehold.client.exchange.RESEND_SECONDS", 0.1)
    if request.param == "blocking":
        with Client(intake.url, timeout=5) as made:
            yield made
    else:
        with open_blocking(intake.url, timeout=5) as facade:
            yield cast("Client", facade)


def a_row(name: str = "r1", *, version: int = 1, **changes: Any) -> Reservation:
    """A reservation as the store writes it: with a row version and `marked_at`."""
    return a_reservation(name, version=version, marked_at=changes.pop("marked_at", 1_800_000_000.0), **changes)
