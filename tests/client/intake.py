"""A stand-in for the stack: reads the broker's list itself, answers as a test says, and keeps a real view."""

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
"""(verb, document) -> the answer; None: this message is lost."""


def accept(verb: str, document: Document) -> Document:
    """What the intake answers when all is well and nothing is leased yet."""
    if "items" in document:
        return {"ok": True, "results": [accept(verb, item) for item in document["items"]]}
    if verb == "query":
        return {"ok": True, "reservations": []}
    name = document.get("id") or document.get("reservation")
    return {"ok": True, "reservation": name, "phase": "pending", "expires_at": None, "token": None}


class FakeIntake:
    """Takes the messages of the queue `reservations` one by one, in a thread of its own."""

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
        """The verbs that came, in order."""
        return [verb for verb, _ in self.seen]

    def publish(self, *rows: Row) -> None:
        """Lay rows over the view and hint to those who wait."""
        self.view_cache.publish(rows)
        for row in rows:
            if isinstance(row, Reservation):
                self._redis.publish(f"leasehold:notice:{row.id}", b"{}")

    def publish_silently(self, *rows: Row) -> None:
        """The same without the hint: a notice that got lost."""
        self.view_cache.publish(rows)

    def count_listeners(self, name: str) -> int:
        """How many wait for notices about this reservation."""
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
    """A stand-in for the stack on the shared Redis."""
    stand_in = FakeIntake(redis_url)
    yield stand_in
    stand_in.stop()


@pytest.fixture
def client(intake: FakeIntake, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client of it that sends again quickly."""
    monkeypatch.setattr("leasehold.client.exchange.RESEND_SECONDS", 0.1)
    with Client(intake.url, timeout=5) as made:
        yield made


@pytest.fixture(params=["blocking", "asyncio"])
def either_client(
    intake: FakeIntake, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Client]:
    """Both kinds of client, one after the other: one suite holds for both."""
    monkeypatch.setattr("leasehold.client.exchange.RESEND_SECONDS", 0.1)
    if request.param == "blocking":
        with Client(intake.url, timeout=5) as made:
            yield made
    else:
        with open_blocking(intake.url, timeout=5) as facade:
            yield cast("Client", facade)


def a_row(name: str = "r1", *, version: int = 1, **changes: Any) -> Reservation:
    """A reservation as it comes from the store: with a version and a mark of time."""
    return a_reservation(name, version=version, marked_at=changes.pop("marked_at", 1_800_000_000.0), **changes)
