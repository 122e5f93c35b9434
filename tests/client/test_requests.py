"""Requests and their answers: lost ones, copies, refusals, and what is said when nobody answers."""

import json
import os
import threading
from itertools import count
from typing import Any

import pytest

from leasehold import Client, NotAnswered, Refused, Unavailable
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


def test_an_id_is_made_up_when_none_is_given(client: Client) -> None:
    names = {client.reserve(system="s").id for _ in range(3)}
    assert len(names) == 3


def test_what_the_view_does_not_have_yet_is_told_from_the_answer(client: Client) -> None:
    assert client.reserve(id="r1", system="s").phase == "pending"


def test_what_nothing_could_hold_is_told_at_once(intake: FakeIntake, client: Client) -> None:
    told = {"code": "never_fits", "detail": "no slot or offering of s could hold main, even empty"}
    intake.handler = lambda verb, document: accept(verb, document) | {"waiting": told}
    waiting = client.reserve(id="r1", system="s").waiting
    assert str(waiting) == "never_fits: no slot or offering of s could hold main, even empty"
    intake.publish(a_row("r1"))
    assert client.reserve(id="r1", system="s").waiting == waiting
    intake.publish(a_row("r1", phase="leased", version=2))
    assert client.reserve(id="r1", system="s").waiting is None


def test_what_a_request_does_not_do_comes_with_its_answer(intake: FakeIntake, client: Client) -> None:
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


def test_silence_ends_with_the_timeout_and_says_what_it_waited_for(intake: FakeIntake, client: Client) -> None:
    intake.handler = lambda _verb, _document: None
    with pytest.raises(NotAnswered, match=r"no answer to submit of r1 for 2 s") as caught:
        client.reserve(id="r1", system="s", timeout=2)
    assert isinstance(caught.value, TimeoutError)
    assert len(intake.seen) > 1


def test_without_a_redis_the_client_says_so_when_its_time_is_over() -> None:
    with Client("redis://user:hush@127.0.0.1:1/0") as client, pytest.raises(Unavailable) as caught:
        client.reserve(id="r1", system="s", timeout=0.2)
    assert "127.0.0.1:1" in str(caught.value)
    assert "hush" not in str(caught.value)


def test_a_url_that_is_none_is_refused_at_once() -> None:
    with pytest.raises(Unavailable, match="no URL of a Redis"):
        Client("nonsense")


def test_many_are_answered_by_index_good_and_bad(intake: FakeIntake, client: Client) -> None:
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


def test_none_is_asked_for_nothing(client: Client, intake: FakeIntake) -> None:
    assert client.reserve_many([]) == ()
    assert intake.seen == []


@pytest.mark.parametrize(
    ("verb", "keywords", "sent"),
    [
        ("renew", {"token": 7}, {"token": 7}),
        ("confirm", {"token": 7, "slot": "linux-1"}, {"token": 7, "slot": "linux-1"}),
        ("release", {"token": 7}, {"token": 7}),
        # The producer's own word needs no token.
        ("cancel", {"reason": "not needed"}, {"reason": "not needed"}),
        ("priority", {"priority": 5}, {"priority": 5}),
        ("fail", {"token": 7, "component": "main"}, {"token": 7, "component": "main"}),
        ("surrender", {"token": 7}, {"token": 7}),
        ("decline", {"token": 7}, {"token": 7}),
        ("suspend", {"token": 7}, {"token": 7}),
        ("resume", {}, {}),
    ],
)
def test_each_word_travels_under_its_own_name(
    verb: str, keywords: dict[str, Any], sent: dict[str, Any], intake: FakeIntake, client: Client
) -> None:
    assert getattr(client, verb)("r1", **keywords).ok
    said, document = intake.seen[0]
    assert said == verb
    assert {key: value for key, value in document.items() if key not in {"request", "reply_to"}} == {
        "reservation": "r1",
        **sent,
    }


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


def test_a_forked_child_uses_connections_of_its_own(intake: FakeIntake, blocking_client: Client) -> None:
    blocking_client.reserve(id="parent", system="s")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        # No exception may get out of the child: it would run the tests a second time.
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


def test_a_producers_own_broker_setting_diverts_nothing(
    intake: FakeIntake, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://127.0.0.1:1/0")
    assert client.reserve(id="r1", system="s").id == "r1"


def test_a_flushed_redis_loses_no_request(intake: FakeIntake, client: Client) -> None:
    client.reserve(id="r1", system="s")
    client._wire.redis.flushall()
    assert client.reserve(id="r2", system="s").id == "r2"


def test_the_message_is_plain_json_that_flower_can_show(redis_url: str) -> None:
    with Client(redis_url) as client:
        client._wire.send("release", {"reservation": "r1", "token": 3, "request": "q", "reply_to": "a"})
        envelope = json.loads(client._wire.redis.lindex("reservations", 0))  # type: ignore[arg-type]
    assert envelope["content-type"] == "application/json"
    assert envelope["headers"]["task"] == "leasehold.reservations.release"
    assert envelope["headers"]["argsrepr"] == "r1"


def test_notices_and_words_about_accounts_carry_what_was_said(intake: FakeIntake, client: Client) -> None:
    intake.handler = lambda verb, document: (
        accept(verb, document) | ({"account": "ci", "balance": [1.5, 0, 0, 0, 0]} if "account" in document else {})
    )
    client.confirm("r1", 7, slot="linux-1", as_of=5.0)
    client.absent("r1", as_of=0.0)
    client.idle("linux-1", labels={})
    answer = client.account("ci", charge_rate=[2, 1], disable_free_tasks=False, balance=(3, 0, -1))
    client.reset_account("ci")
    client.forget_account("ci")
    said = [
        (verb, {key: value for key, value in document.items() if key not in {"request", "reply_to"}})
        for verb, document in intake.seen
    ]
    assert said == [
        ("confirm", {"reservation": "r1", "token": 7, "slot": "linux-1", "as_of": 5.0}),
        ("absent", {"reservation": "r1", "as_of": 0.0}),
        ("idle", {"slot": "linux-1", "labels": {}}),
        ("account", {"account": "ci", "charge_rate": [2, 1], "disable_free_tasks": False, "balance": [3, 0, -1]}),
        ("reset_account", {"account": "ci"}),
        ("forget_account", {"account": "ci"}),
    ]
    assert (answer.account, answer.balance) == ("ci", (1.5, 0, 0, 0, 0))
