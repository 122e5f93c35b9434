"""What an intake worker's main process does with a request before its pool gets it; the queue is a real Redis list."""

import base64
import json
from typing import Any

import pytest
import redis

from scheduler.view.memory import MemoryMeter
from tasks.admission import ARRIVAL, HANGING_SECONDS, KNOWN_SECONDS, LEASES_PATIENCE, Admission, Arrival, read_arrival

NOW = 1_800_000_000.0
DEEP = 20_000
"""Requests that wait: more than anybody waits for."""


class Gate:
    """An admission with clocks that stand still."""

    def __init__(self, client: redis.Redis) -> None:
        self.redis, self.meter, self.now = client, MemoryMeter(), NOW
        self.admission = Admission(
            client,
            client,
            self.meter,
            "leasehold:",
            concurrency=2,
            longest=1.0,
            clock=lambda: self.now,
            monotonic=lambda: self.now,
        )

    def fill(self, count: int = DEEP) -> None:
        """So many other messages wait."""
        self.redis.delete("reservations")
        if count:
            self.redis.rpush("reservations", *["x"] * count)

    def take(self, verb: str, message: str = "m1", **changes: Any) -> bool:
        """Whether this request goes to the pool."""
        return self.admission.admit(self.arrival(verb, message, **changes))

    def arrival(self, verb: str, message: str, **changes: Any) -> Arrival:
        """As it comes from the queue."""
        document = {"request": "q1", "reply_to": "leasehold:reply:q1", "slot": "s1"} | changes.pop("document", {})
        headers = {"sent_at": self.now, "patience": 30.0} | changes
        return read(a_message(verb, document, **{"id": message, ARRIVAL: message, **headers}))

    def answer(self, message: str = "m1", result: str = "'accepted'") -> None:
        """The pool is done with it."""
        self.admission.note_left(message)
        self.admission.note_result(message, result)

    def read_answers(self, address: str = "leasehold:reply:q1") -> list[dict[str, Any]]:
        """What was answered."""
        return [json.loads(each) for each in self.redis.lrange(address, 0, -1)]

    def counted(self, name: str, **labels: str) -> float:
        """A counter, after all that was counted was written."""
        self.now += 1
        self.take("submit", "flush", document={"request": f"flush-{self.now}", "reply_to": "leasehold:reply:flush"})
        return self.meter.counts[name, tuple(sorted(labels.items()))]


def a_message(verb: str, document: dict[str, Any], named: bool = False, **headers: Any) -> dict[str, Any]:
    """As it stands in the queue."""
    body: list[Any] = [[], {"document": document}, None] if named else [[document], {}, None]
    return {
        "body": base64.b64encode(json.dumps(body).encode()).decode(),
        "headers": {"task": f"leasehold.reservations.{verb}", ARRIVAL: headers.get("id"), **headers},
        "properties": {"body_encoding": "base64"},
    }


def read(message: dict[str, Any]) -> Arrival:
    """What the worker reads of it."""
    return read_arrival(message, base64.b64decode(message["body"]))


@pytest.fixture
def gate(redis_client: redis.Redis) -> Gate:
    """Nothing waits."""
    return Gate(redis_client)


def test_a_copy_of_a_request_that_runs_is_not_carried_out(gate: Gate) -> None:
    assert gate.take("submit", "m1")
    assert not gate.take("submit", "m2")
    assert gate.counted("leasehold_skipped_requests_total", reason="copy") == 1


def test_a_copy_that_was_sent_before_the_answer_is_not_carried_out(gate: Gate) -> None:
    gate.take("submit", "m1")
    gate.now += 3
    gate.answer("m1")
    assert not gate.take("submit", "m2", sent_at=gate.now - 1)


def test_a_copy_that_was_sent_after_the_answer_is_answered_again(gate: Gate) -> None:
    """Its sender has not got the answer."""
    gate.take("submit", "m1")
    gate.answer("m1")
    assert gate.take("submit", "m2", sent_at=gate.now + 1)


@pytest.mark.parametrize("result", ["'store_unavailable'", "'refused'", "'too_slow'", None])
def test_what_was_not_answered_is_carried_out_again(gate: Gate, result: str | None) -> None:
    """None: its process was killed, and there is no result."""
    gate.take("submit", "m1", sent_at=gate.now - 5)
    gate.admission.note_left("m1")
    if result is not None:
        gate.admission.note_result("m1", result)
    assert gate.take("submit", "m2", sent_at=gate.now - 3)


SIGNED = {"principal": "alice", "signature": "0" * 64}
"""The headers of a message that claims to be signed."""


def test_a_running_message_that_claims_a_signature_makes_no_other_message_a_copy(gate: Gate) -> None:
    """The main process verifies nothing: the running message may be forged, and the other one real."""
    assert gate.take("submit", "forged", **SIGNED)
    assert gate.take("submit", "real", **SIGNED)
    gate.answer("forged", "'refused'")
    gate.answer("real", "'accepted'")
    assert not gate.take("submit", "late", **SIGNED, sent_at=gate.now - 1)


def test_a_message_that_claims_the_id_of_an_accepted_one_is_not_taken_as_answered(gate: Gate) -> None:
    """Ids and bodies are what their senders wrote: only what the pool answered makes later messages copies."""
    other = {"document": {"request": "q2"}}
    assert gate.take("submit", "m1", id="same", **SIGNED)
    assert gate.take("submit", "m2", id="same", **SIGNED, **other)
    gate.answer("m1")
    gate.answer("m2", "'refused'")
    assert gate.take("submit", "m3", id="real", **SIGNED, **other, sent_at=gate.now - 1)


def test_an_unsigned_message_is_no_copy_of_a_signed_one(gate: Gate) -> None:
    assert gate.take("submit", "m1", principal="None")
    gate.answer("m1")
    assert gate.take("submit", "m2", sent_at=gate.now - 1)


def test_a_process_that_hangs_keeps_no_request_from_the_others(gate: Gate) -> None:
    gate.take("submit", "m1")
    gate.now += HANGING_SECONDS
    assert gate.take("submit", "m2")
    assert not gate.take("submit", "m3")


def test_an_answered_request_is_forgotten_when_its_answer_is(gate: Gate) -> None:
    gate.take("submit", "m1")
    gate.answer("m1")
    gate.now += KNOWN_SECONDS
    assert gate.take("submit", "m2", sent_at=NOW - 1)


@pytest.mark.parametrize(
    "other",
    [
        # Another content under the same id, as any other sender could write it.
        {"document": {"slot": "s2"}},
        {"principal": "somebody"},
        {"document": {"reply_to": "leasehold:reply:q2"}},
    ],
)
def test_only_the_same_request_of_the_same_sender_is_a_copy(gate: Gate, other: dict[str, Any]) -> None:
    gate.take("submit", "m1")
    assert gate.take("submit", "m2", **other)


def test_two_requests_without_an_id_are_never_copies(gate: Gate) -> None:
    """Their ids are those of their messages."""
    assert gate.take("submit", "m1", document={"request": None})
    assert gate.take("submit", "m2", document={"request": None})


def test_a_deep_queue_is_answered_come_again(gate: Gate) -> None:
    gate.fill()
    assert not gate.take("leases")
    (answer,) = gate.read_answers()
    assert (answer["ok"], answer["retry_after"]) == (False, 30.0)
    assert [error["path"] for error in answer["errors"]] == ["."]
    assert 0 < gate.redis.ttl("leasehold:reply:q1") <= 60
    assert gate.counted("leasehold_shed_requests_total", verb="leases") == 1


def test_what_was_put_off_is_carried_out_when_it_comes_again(gate: Gate) -> None:
    gate.fill()
    assert not gate.take("submit", "m1")
    gate.fill(0)
    gate.now += 30
    assert gate.take("submit", "m2")


@pytest.mark.parametrize(
    ("verb", "depth", "goes"),
    [
        ("leases", 100, True),
        ("leases", 400, False),
        ("register", 400, False),
        ("submit", 400, True),
        ("submit", 2000, False),
        ("renew", 2000, True),
        ("renew", 5000, False),
    ],
)
def test_the_least_important_are_put_off_first(gate: Gate, verb: str, depth: int, goes: bool) -> None:
    gate.fill(depth)
    assert gate.take(verb) is goes


@pytest.mark.parametrize("changes", [{"patience": None}, {"document": {"reply_to": None}}, {"patience": "long"}])
def test_a_sender_that_could_not_understand_is_not_put_off(gate: Gate, changes: dict[str, Any]) -> None:
    gate.fill()
    assert gate.take("submit", **changes)
    assert gate.read_answers() == []


def test_an_address_of_another_form_gets_nothing(gate: Gate) -> None:
    gate.fill()
    assert gate.take("submit", document={"reply_to": "leasehold:leader"})
    assert not gate.redis.exists("leasehold:leader")


@pytest.mark.parametrize(
    ("verb", "age", "patience", "goes"),
    [
        ("query", 31.0, 30.0, False),
        ("query", 3600.0, None, True),
        # An agent of an earlier version asks again every few seconds.
        ("leases", LEASES_PATIENCE + 1, None, False),
        ("leases", LEASES_PATIENCE - 1, None, True),
        # Whoever asked for a change may rely on it.
        ("submit", 3600.0, None, True),
        ("renew", 31.0, 30.0, True),
    ],
)
def test_a_question_that_nothing_waits_for_is_not_answered_while_many_wait(
    gate: Gate, verb: str, age: float, patience: float | None, goes: bool
) -> None:
    gate.fill(1000)
    assert gate.take(verb, sent_at=gate.now - age, patience=patience) is goes
    assert gate.read_answers() == []


def test_an_old_question_is_answered_while_few_wait(gate: Gate) -> None:
    """The clock of its sender may be wrong."""
    assert gate.take("query", sent_at=gate.now - 3600, patience=30.0)


def test_it_publishes_how_far_the_queue_was_taken(gate: Gate) -> None:
    gate.take("submit", sent_at=NOW - 5)
    assert float(gate.redis.get("leasehold:queue:taken") or 0) == NOW - 5
    gate.now += 1
    # Not what a sender's clock says, if it is ahead.
    gate.take("submit", "m2", sent_at=NOW + 3600, document={"request": "q2"})
    assert float(gate.redis.get("leasehold:queue:taken") or 0) == NOW + 1


def test_all_workers_count_together(gate: Gate, redis_client: redis.Redis) -> None:
    other = Gate(redis_client)
    for number in range(3):
        for each in (gate, other):
            each.now += 1
            each.take("submit", f"m{number}", document={"request": f"{id(each)}-{number}"})
    # What each took since its last look is not in it yet.
    assert int(redis_client.get("leasehold:queue:count") or 0) == 4


def test_without_redis_everything_goes_to_the_pool() -> None:
    nowhere = redis.Redis(port=1)
    gate = Gate(nowhere)
    assert gate.take("submit")


def test_every_form_of_a_request_is_read() -> None:
    document = {"request": "q1", "reply_to": "leasehold:reply:q1"}
    plain, named = (
        read(a_message("submit", document, id="m1")),
        read(a_message("submit", document, named=True, id="m1")),
    )
    fields = a_message("submit", {}, id="m1")
    fields["body"] = base64.b64encode(json.dumps([[], document, None]).encode()).decode()
    for arrival in (plain, named, read(fields)):
        assert (arrival.verb, arrival.reply_to, arrival.key is None) == ("submit", "leasehold:reply:q1", False)


@pytest.mark.parametrize("body", [[[7], {}, None], [["x"], {}, None], [[], {}, None], [[{"request": 7}], {}, None]])
def test_what_is_no_document_is_left_to_the_task(gate: Gate, body: list[Any]) -> None:
    message = a_message("submit", {}, id="m1")
    message["body"] = base64.b64encode(json.dumps(body).encode()).decode()
    assert gate.admission.admit(read(message))
