"""Requests of a LoopClient, the client of the HTTP server: its answers, rows, time limits and connections."""

import asyncio
import base64
import json
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import redis

from leasehold.client.loop_client import LoopClient
from leasehold.client.ports import Answered
from leasehold.client.redis.lines import MOST_LINES
from leasehold.errors import NotAnswered, Overloaded
from scheduler.protocol.signing import format_key_line, make_key
from scheduler.view.connection import make_redis
from testbed.processes import wait_for
from tests.builders import a_reservation
from tests.client.intake import Document, FakeIntake, accept

SUBMIT = {"id": "r1", "system": "s"}


def run(url: str, act: Callable[[LoopClient], Coroutine[Any, Any, Any]], **options: Any) -> Any:
    """Run `act` with a client in an event loop of its own."""

    async def main() -> Any:
        async with LoopClient(url, **options) as client:
            return await act(client)

    return asyncio.run(main())


def ask(client: LoopClient, seconds: float = 5.0, *, has_row: bool = False) -> Coroutine[Any, Any, Answered]:
    """Return a submission of SUBMIT."""
    return client.exchange("submit", SUBMIT, seconds, "request-1", has_row=has_row)


def list_request_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("leasehold-request")]


def test_an_answer_that_comes_soon_needs_no_thread_and_brings_the_row(intake: FakeIntake) -> None:
    intake.publish(a_reservation("r1"))

    async def act(client: LoopClient) -> None:
        for _ in range(3):
            found = await ask(client, has_row=True)
            assert found.answer["ok"]
            assert found.joined is not None
            assert found.joined.row is not None
            assert found.joined.row.id == "r1"
        assert list_request_threads() == []

    run(intake.url, act)
    assert intake.verbs() == ["submit"] * 3


def test_a_message_is_the_one_that_a_thread_sends(redis_url: str, redis_client: redis.Redis) -> None:
    async def act(client: LoopClient) -> None:
        with pytest.raises(NotAnswered):
            await ask(client, 0.3)
        with pytest.raises(NotAnswered):
            await client.ask("submit", SUBMIT, timeout=0.3, request="request-1")

    run(redis_url, act)
    other, ours = (json.loads(each) for each in redis_client.lrange("reservations", 0, -1))
    for envelope in (other, ours):
        for names in (("headers", "id"), ("headers", "root_id"), ("headers", "sent_at"), ("headers", "patience")):
            assert envelope[names[0]].pop(names[1])
        for name in ("delivery_tag", "correlation_id", "reply_to"):
            envelope["properties"].pop(name, None)
        envelope["body"] = json.loads(base64.b64decode(envelope["body"]))
    assert ours == other


def test_a_message_is_signed(redis_url: str, redis_client: redis.Redis) -> None:
    async def act(client: LoopClient) -> None:
        with pytest.raises(NotAnswered):
            await ask(client, 0.2)

    run(redis_url, act, key=format_key_line("ci", make_key(), "a-cluster"))
    (message,) = redis_client.lrange("reservations", 0, -1)
    assert {"principal", "signature", "signed_at", "cluster"} <= json.loads(message)["headers"].keys()


def test_a_lost_message_is_sent_again_under_the_same_id(intake: FakeIntake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasehold.client.redis.exchange.RESEND_SECONDS", 0.1)
    intake.handler = lambda verb, document: accept(verb, document) if len(intake.seen) > 2 else None
    found = run(intake.url, ask)
    assert found.answer["ok"]
    assert [document["request"] for _, document in intake.seen] == ["request-1"] * 3


def test_no_copy_is_sent_while_the_message_waits_in_the_queue(
    redis_url: str, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasehold.client.redis.exchange.RESEND_SECONDS", 0.1)
    # A worker took an older message last, so this one still waits.
    redis_client.set("leasehold:queue:taken", time.time() - 3600)
    with pytest.raises(NotAnswered):
        run(redis_url, lambda client: ask(client, 1.0))
    assert redis_client.llen("reservations") == 1


def test_an_overloaded_worker_gets_the_request_again_after_the_time_it_names(intake: FakeIntake) -> None:
    times: list[float] = []

    def shed_once(verb: str, document: Document) -> Document:
        times.append(time.monotonic())
        return {"ok": False, "retry_after": 0.3} if len(times) == 1 else accept(verb, document)

    intake.handler = shed_once
    assert run(intake.url, ask).answer["ok"]
    assert len(times) == 2
    assert times[1] - times[0] >= 0.3


def test_overload_for_longer_than_the_timeout_is_named(intake: FakeIntake) -> None:
    intake.handler = lambda _verb, _document: {"ok": False, "retry_after": 60}
    with pytest.raises(Overloaded, match="overloaded"):
        run(intake.url, lambda client: ask(client, 0.5))
    assert len(intake.seen) == 1


def test_a_lost_connection_loses_no_request(intake: FakeIntake) -> None:
    async def act(client: LoopClient) -> None:
        assert (await ask(client)).answer["ok"]
        make_redis(intake.url).client_kill_filter(_type="normal", skipme=True)
        assert (await ask(client)).answer["ok"]

    run(intake.url, act)


def test_any_number_of_requests_at_once_have_a_few_connections_and_a_closed_client_none(
    intake: FakeIntake, redis_url: str, redis_client: redis.Redis
) -> None:
    names = [f"r{number}" for number in range(3 * MOST_LINES)]
    held: list[dict[str, Any]] = []
    counts: list[int] = []

    def count() -> int:
        # Other tests use the same Redis.
        return sum(each["name"] == "of-this-test" for each in redis_client.client_list())

    def answer_when_all_have_come(verb: str, document: dict[str, Any]) -> dict[str, Any] | None:
        held.append(document)
        if len(held) < len(names):
            return None
        counts.append(count())
        for each in held[:-1]:
            redis_client.rpush(each["reply_to"], json.dumps(accept(verb, each)))
        return accept(verb, document)

    async def act(client: LoopClient) -> list[Answered]:
        sent = (client.exchange("submit", {"id": name}, 30.0, None, has_row=False) for name in names)
        return await asyncio.gather(*sent)

    intake.handler = answer_when_all_have_come
    found = run(f"{redis_url}?client_name=of-this-test", act)
    assert [each.answer["reservation"] for each in found] == names
    assert 2 <= counts[0] <= MOST_LINES + 1
    wait_for(lambda: count() == 0, "the end of the connections")
