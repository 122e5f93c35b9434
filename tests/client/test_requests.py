"""Requests and their answers: lost messages, copies, refusals, and errors when no answer arrives."""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from typing import Any, Self

import pytest
import redis
from redis.asyncio.connection import AbstractConnection

from leasehold import Client, NotAnswered, Overloaded, Refused, Unavailable
from leasehold.client.redis.transport import RequestTransport
from scheduler.ports import check_reply_address
from testbed.processes import wait_for
from tests.client.intake import Document, FakeIntake, a_row, accept


def test_a_reservation_is_accepted_when_reserve_returns(intake: FakeIntake, client: Client) -> None:
    intake.publish(a_row("r1"))
    row = client.reserve(id="r1", system="x86_64-linux", resources={"cpus": 2})
    assert (row.id, row.phase, row.request.system) == ("r1", "pending", "x86_64-linux")
    verb, document = intake.seen[0]
    assert verb == "submit"
    assert {key: document[key] for key in ("id", "system", "resources")} == {
        "id": "r1",
        "system": "x86_64-linux",
        "resources": {"cpus": 2},
    }


def test_reserve_generates_an_id_when_none_is_given(client: Client) -> None:
    names = {client.reserve(system="s").id for _ in range(3)}
    assert len(names) == 3


def test_a_reservation_that_the_view_lacks_is_returned_from_the_answer(client: Client) -> None:
    assert client.reserve(id="r1", system="s").phase == "pending"


def test_reserve_returns_the_wait_of_a_request_that_never_fits(intake: FakeIntake, client: Client) -> None:
    wait = {"code": "never_fits", "detail": "no slot or offering of s could hold main, even empty"}
    intake.handler = lambda verb, document: accept(verb, document) | {"waiting": wait}
    waiting = client.reserve(id="r1", system="s").waiting
    assert str(waiting) == "never_fits: no slot or offering of s could hold main, even empty"
    intake.publish(a_row("r1"))
    assert client.reserve(id="r1", system="s").waiting == waiting
    intake.publish(a_row("r1", phase="leased", version=2))
    assert client.reserve(id="r1", system="s").waiting is None


def test_the_answer_contains_notes_about_parts_of_the_request_without_effect(
    intake: FakeIntake, client: Client
) -> None:
    note = {"path": "account", "text": "the queue `fifo` does not read it"}
    intake.handler = lambda verb, document: accept(verb, document) | {"notes": [note]}
    (found,) = client.reserve(id="r1", system="s", account="ci").notes
    assert (found.path, str(found)) == ("account", "account: the queue `fifo` does not read it")
    intake.publish(a_row())
    assert client.reserve(id="r1", system="s", account="ci").notes == (found,)
    assert client.priority("r1", 9).notes == (found,)
    intake.handler = accept
    assert client.reserve(id="r1", system="s").notes == ()


def test_a_lost_message_is_sent_again_under_the_same_request_id(intake: FakeIntake, client: Client) -> None:
    numbers = count()
    intake.handler = lambda verb, document: None if next(numbers) < 2 else accept(verb, document)
    assert client.reserve(id="r1", system="s").id == "r1"
    assert len({document["request"] for _, document in intake.seen}) == 1
    assert len(intake.seen) >= 3


class QuietQueue:
    """A queue that no worker reads, and a client with one request in it."""

    def __init__(self, url: str, redis_client: redis.Redis) -> None:
        self.redis, self._client = redis_client, Client(url)
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self.error: Exception | None = None

    def _ask(self) -> None:
        try:
            self._client.reserve(id="r1", system="s", timeout=120)
        except Unavailable as error:
            self.error = error

    def __enter__(self) -> Self:
        self._thread.start()
        wait_for(self.count, "the first copy")
        return self

    def __exit__(self, *_error: object) -> None:
        self._client.close()
        self._thread.join()

    def count(self) -> int:
        """Return the number of copies in the queue."""
        return self.redis.llen("reservations")

    def note_taken(self, sent_at: float) -> None:
        """Publish the sending time of the message that a worker took last, as a worker does."""
        self.redis.set("leasehold:queue:taken", sent_at)


@pytest.fixture
def quiet_queue(redis_url: str, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Iterator[QuietQueue]:
    """A queue whose client checks every 0.02 s whether to send a copy."""
    monkeypatch.setattr("leasehold.client.redis.exchange.RESEND_SECONDS", 0.02)
    redis_client.set("leasehold:queue:taken", 1.0)
    with QuietQueue(redis_url, redis_client) as queue:
        yield queue


def test_a_copy_is_sent_only_after_a_worker_took_the_first_message(quiet_queue: QuietQueue) -> None:
    """The client checks repeatedly; each check in this test finds an earlier copy in the queue."""
    checks = count_commands(quiet_queue.redis, "llen")
    wait_for(lambda: count_commands(quiet_queue.redis, "llen") > checks + 10, "ten checks")
    assert quiet_queue.count() == 1
    quiet_queue.note_taken(9e9)
    wait_for(lambda: quiet_queue.count() > 1, "a copy")


def test_a_lost_first_message_is_replaced_while_other_messages_wait(quiet_queue: QuietQueue) -> None:
    """After a flush of Redis and a message of another client, no key contains what workers took last."""
    quiet_queue.redis.flushdb()
    quiet_queue.redis.rpush("reservations", "another message")
    wait_for(lambda: quiet_queue.count() > 1, "a copy")


def test_a_lost_first_message_is_replaced_when_the_queue_is_empty(quiet_queue: QuietQueue) -> None:
    quiet_queue.redis.delete("reservations")
    wait_for(quiet_queue.count, "a copy")


def test_copies_are_held_back_for_a_limited_time(quiet_queue: QuietQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the sender may be fast, so that no message ever seems to be taken after its request."""
    monkeypatch.setattr("leasehold.client.redis.exchange.LONGEST_HOLD_SECONDS", 0.0)
    quiet_queue.redis.delete("reservations")
    quiet_queue.note_taken(1.0)
    quiet_queue.redis.rpush("reservations", "another message")
    wait_for(lambda: quiet_queue.count() > 2, "copies")


def test_a_message_states_how_long_its_sender_waits(quiet_queue: QuietQueue) -> None:
    (message,) = quiet_queue.redis.lrange("reservations", 0, 0)
    headers = json.loads(message)["headers"]
    assert 0 < headers["patience"] <= 120
    assert headers["sent_at"] > 0


SHED: Document = {
    "ok": False,
    "retry_after": 0.05,
    "errors": [{"index": 0, "path": ".", "expected": "a queue that is answered within 1 s", "got": "about 3 s"}],
}


def test_a_refusal_with_a_time_is_followed_by_the_same_request(intake: FakeIntake, client: Client) -> None:
    numbers = count()
    intake.handler = lambda verb, document: SHED if next(numbers) < 2 else accept(verb, document)
    assert client.reserve(id="r1", system="s").id == "r1"
    assert len({document["request"] for _, document in intake.seen}) == 1
    assert len(intake.seen) >= 3


def test_a_service_that_is_overloaded_for_longer_than_the_timeout_is_named(intake: FakeIntake, client: Client) -> None:
    intake.handler = lambda _verb, _document: SHED
    with pytest.raises(NotAnswered, match=r"no answer to submit of r1 for 1 s: the service is overloaded and asked "):
        client.reserve(id="r1", system="s", timeout=1)


def test_a_copy_that_may_still_be_carried_out_is_not_overload(intake: FakeIntake, client: Client) -> None:
    numbers = count()
    intake.handler = lambda _verb, _document: None if next(numbers) else SHED
    with pytest.raises(NotAnswered) as caught:
        client.reserve(id="r1", system="s", timeout=1)
    assert not isinstance(caught.value, Overloaded)
    assert len(intake.seen) > 1


def test_a_refusal_without_a_time_is_final(intake: FakeIntake, client: Client) -> None:
    intake.handler = lambda _verb, _document: {**SHED, "retry_after": None}
    with pytest.raises(Refused, match="within 1 s"):
        client.reserve(id="r1", system="s", timeout=1)


def count_commands(redis_client: redis.Redis, name: str) -> int:
    found: dict[str, Any] = redis_client.info("commandstats")
    return int(found.get(f"cmdstat_{name}", {}).get("calls", 0))


def test_a_second_copy_of_an_answer_answers_no_other_request(intake: FakeIntake, client: Client) -> None:
    intake.answers_each = 3
    assert [client.reserve(id=f"r{number}", system="s").id for number in range(5)] == [
        f"r{number}" for number in range(5)
    ]


def test_a_refusal_names_each_fault(intake: FakeIntake, client: Client) -> None:
    fault = {"index": 0, "path": "resources.cpus", "expected": "a number >= 0", "got": '"two"'}
    intake.handler = lambda _verb, _document: {"ok": False, "errors": [fault]}
    with pytest.raises(Refused, match=r'^resources\.cpus: expected a number >= 0, got "two"$') as caught:
        client.reserve(system="s")
    assert caught.value.errors[0].path == "resources.cpus"


def test_a_request_without_an_answer_ends_with_its_timeout_and_names_the_request(
    intake: FakeIntake, client: Client
) -> None:
    intake.handler = lambda _verb, _document: None
    with pytest.raises(NotAnswered, match=r"no answer to submit of r1 for 2 s") as caught:
        client.reserve(id="r1", system="s", timeout=2)
    assert isinstance(caught.value, TimeoutError)
    assert len(intake.seen) > 1


def test_without_redis_a_request_ends_with_its_timeout_and_names_the_address() -> None:
    with Client("redis://user:hush@127.0.0.1:1/0") as client, pytest.raises(Unavailable) as caught:
        client.reserve(id="r1", system="s", timeout=0.2)
    assert "127.0.0.1:1" in str(caught.value)
    assert "hush" not in str(caught.value)


def test_an_invalid_url_is_refused_at_once() -> None:
    with pytest.raises(Unavailable, match="no URL of a Redis"):
        Client("nonsense")


def test_reserve_many_returns_the_answers_in_the_order_of_the_items(intake: FakeIntake, client: Client) -> None:
    def pick(verb: str, document: Document) -> Document:
        fault = {"index": 0, "path": "system", "expected": "a name", "got": "nothing"}
        results = [
            accept(verb, item) if "system" in item else {"ok": False, "errors": [fault]} for item in document["items"]
        ]
        return {"ok": all(each["ok"] for each in results), "results": results}

    intake.handler = pick
    items: list[Any] = [{"id": f"r{number}", "system": "s"} for number in range(2500)]
    del items[1200]["system"]
    answers = client.reserve_many(iter(items))
    assert [answer.ok for answer in answers] == [number != 1200 for number in range(2500)]
    assert answers[1200].errors[0].index == 1200
    assert [answer.reservation for answer in answers if answer.ok] == [item["id"] for item in items if "system" in item]
    # A request that is not answered soon enough is sent again, so count the requests and not the messages.
    assert len({document["request"] for _verb, document in intake.seen}) == 3


def test_a_batch_that_is_refused_as_a_whole_is_refused_for_each_of_its_items(
    intake: FakeIntake, client: Client
) -> None:
    fault = {"index": 0, "path": "items", "expected": "fewer", "got": "2"}
    intake.handler = lambda _verb, _document: {"ok": False, "errors": [fault]}
    answers = client.reserve_many([{"system": "s"}, {"system": "s"}])
    assert [(answer.ok, answer.errors[0].index) for answer in answers] == [(False, 0), (False, 1)]


@pytest.mark.parametrize("verb", ["renew", "release"])
def test_many_leases_of_a_holder_travel_in_one_message(verb: str, intake: FakeIntake, client: Client) -> None:
    def pick(_verb: str, document: Document) -> Document:
        fault = {"index": 0, "path": "token", "expected": "the current token", "got": "7"}
        results = [
            {"ok": False, "errors": [fault]} if item.get("token") == 7 else {"ok": True, **item}
            for item in document["items"]
        ]
        return {"ok": False, "results": results}

    intake.handler = pick
    tokens = {f"r{number}": number for number in range(1500)} | {"pending": None}
    answers = getattr(client, f"{verb}_many")(tokens)
    assert [answer.reservation for answer in answers if answer.ok] == [name for name in tokens if name != "r7"]
    assert [(index, answer.errors[0].index) for index, answer in enumerate(answers) if not answer.ok] == [(7, 7)]
    sent = {document["request"]: (verb_sent, document["items"]) for verb_sent, document in intake.seen}
    assert [(name, len(items)) for name, items in sent.values()] == [(verb, 1000), (verb, 501)]
    assert [*sent.values()][1][1][-1] == {"reservation": "pending"}


def test_reserve_many_of_no_items_sends_nothing(client: Client, intake: FakeIntake) -> None:
    assert client.reserve_many([]) == ()
    assert intake.seen == []


@pytest.mark.parametrize(
    ("verb", "keywords", "sent"),
    [
        ("renew", {"token": 7}, {"token": 7}),
        ("confirm", {"token": 7, "slot": "linux-1"}, {"token": 7, "slot": "linux-1"}),
        ("release", {"token": 7}, {"token": 7}),
        # A producer cancels its own reservation without a token.
        ("cancel", {"reason": "not needed"}, {"reason": "not needed"}),
        ("priority", {"priority": 5}, {"priority": 5}),
        ("fail", {"token": 7, "component": "main"}, {"token": 7, "component": "main"}),
        ("surrender", {"token": 7}, {"token": 7}),
        ("surrender", {"token": 7, "component": "more", "want": 0}, {"token": 7, "component": "more", "want": 0}),
        ("decline", {"token": 7}, {"token": 7}),
        ("suspend", {"token": 7}, {"token": 7}),
        ("resume", {}, {}),
    ],
)
def test_each_command_is_sent_under_its_own_verb(
    verb: str, keywords: dict[str, Any], sent: dict[str, Any], intake: FakeIntake, client: Client
) -> None:
    assert getattr(client, verb)("r1", **keywords).ok
    sent_verb, document = intake.seen[0]
    assert sent_verb == verb
    assert {key: value for key, value in document.items() if key not in {"request", "reply_to"}} == {
        "reservation": "r1",
        **sent,
    }


def test_an_iterator_of_the_caller_runs_in_the_callers_thread(intake: FakeIntake, blocking_client: Client) -> None:
    """It may call the client, and use what belongs to its thread."""
    threads = set()

    def name() -> Iterator[str]:
        for each in ("r1", "r2"):
            threads.add(threading.get_ident())
            blocking_client.get(each)
            yield each

    found = blocking_client.reserve_many({"id": each, "system": "s"} for each in name())
    blocking_client.etas(name())
    assert [each.reservation for each in found] == ["r1", "r2"]
    assert threads == {threading.get_ident()}


def test_threads_share_a_client(intake: FakeIntake, client: Client) -> None:
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda n=n: found.append(client.reserve(id=f"r{n}", system="s").id)) for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted(f"r{n}" for n in range(8))


@pytest.mark.parametrize("request_id", ["build 7", "a/b", "é", "x" * 200])
def test_the_address_of_an_answer_is_allowed_for_each_id_of_a_request(
    intake: FakeIntake, redis_only_client: Client, request_id: str
) -> None:
    redis_only_client.ask("cancel", {"reservation": "r1"}, request=request_id)
    ((_, document),) = intake.seen
    assert document["request"] == request_id
    check_reply_address(document["reply_to"], "leasehold:")


def test_a_forked_child_uses_connections_of_its_own(intake: FakeIntake, blocking_client: Client) -> None:
    blocking_client.reserve(id="parent", system="s")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        # No exception may leave the child: pytest would continue in it and run the tests a second time.
        try:
            os.write(writer, blocking_client.reserve(id="child", system="s").id.encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        assert answer.read() == "child"
    os.waitpid(child, 0)
    assert blocking_client.reserve(id="parent-again", system="s").id == "parent-again"


def test_closing_ends_the_wait_for_an_answer(intake: FakeIntake, client: Client) -> None:
    intake.handler = lambda _verb, _document: threading.Timer(0.05, client.close).start()
    with pytest.raises(Unavailable, match="closed"):
        client.reserve(id="r1", system="s")


def test_a_producers_own_broker_setting_has_no_effect(
    intake: FakeIntake, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://127.0.0.1:1/0")
    assert client.reserve(id="r1", system="s").id == "r1"


def test_a_flushed_redis_loses_no_request(intake: FakeIntake, client: Client) -> None:
    client.reserve(id="r1", system="s")
    intake._redis.flushall()
    assert client.reserve(id="r2", system="s").id == "r2"


def test_the_message_is_plain_json_that_flower_can_show(redis_url: str, redis_client: redis.Redis) -> None:
    with closing(RequestTransport(redis_url)) as wire:
        wire.send("release", {"reservation": "r1", "token": 3, "request": "q", "reply_to": "a"})
        envelope = json.loads(redis_client.lindex("reservations", 0))  # type: ignore[arg-type]
    assert envelope["content-type"] == "application/json"
    assert envelope["headers"]["task"] == "leasehold.reservations.release"
    assert envelope["headers"]["argsrepr"] == "r1"


def test_reports_and_account_commands_carry_their_arguments(intake: FakeIntake, client: Client) -> None:
    intake.handler = lambda verb, document: (
        accept(verb, document) | ({"account": "ci", "balance": [1.5, 0, 0, 0, 0]} if "account" in document else {})
    )
    client.confirm("r1", 7, slot="linux-1", as_of=5.0)
    client.absent("r1", as_of=0.0)
    client.idle("linux-1", labels={})
    answer = client.account("ci", charge_rate=[2, 1], disable_free_tasks=False, balance=(3, 0, -1))
    client.reset_account("ci")
    client.forget_account("ci")
    requests = [
        (verb, {key: value for key, value in document.items() if key not in {"request", "reply_to"}})
        for verb, document in intake.seen
    ]
    assert requests == [
        ("confirm", {"reservation": "r1", "token": 7, "slot": "linux-1", "as_of": 5.0}),
        ("absent", {"reservation": "r1", "as_of": 0.0}),
        ("idle", {"slot": "linux-1", "labels": {}}),
        ("account", {"account": "ci", "charge_rate": [2, 1], "disable_free_tasks": False, "balance": [3, 0, -1]}),
        ("reset_account", {"account": "ci"}),
        ("forget_account", {"account": "ci"}),
    ]
    assert (answer.account, answer.balance) == ("ci", (1.5, 0, 0, 0, 0))


def test_a_submission_and_its_row_take_one_round_trip(intake: FakeIntake, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    send: Any = AbstractConnection.send_packed_command

    def note(*arguments: Any, **options: Any) -> Any:
        sent.append(arguments)
        return send(*arguments, **options)

    intake.publish(a_row("r1"))
    with Client(intake.url) as client:
        client.reserve(id="r1", system="s")
        monkeypatch.setattr(AbstractConnection, "send_packed_command", note)
        assert client.reserve(id="r1", system="s").request.system == "x86_64-linux"
    assert len(sent) == 1
