"""The checks that the main process of an intake worker makes before its pool gets a request.

The queue is a list in a real Redis.
"""

import base64
import json
from typing import Any

import pytest
import redis

from scheduler.view.memory import MemoryMeter
from tasks.admission import ARRIVAL, HANGING_SECONDS, KNOWN_SECONDS, LEASES_PATIENCE, Admission, Arrival, read_arrival
from tasks.queues import MOST_SEARCHES

NOW = 1_800_000_000.0
DEEP = 20_000
"""Requests in the queue; more than the workers can answer within the patience of any sender."""


class Gate:
    """An admission with a clock that a test sets."""

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
        """Replace the queue by `count` other messages."""
        self.redis.delete("reservations")
        if count:
            self.redis.rpush("reservations", *["x"] * count)

    def take(self, verb: str, message: str = "m1", **changes: Any) -> bool:
        """Return whether the admission passes this request to the pool."""
        return self.admission.admit(self.arrival(verb, message, **changes))

    def arrival(self, verb: str, message: str, **changes: Any) -> Arrival:
        """Return the request as the worker reads it from the queue."""
        document = {"request": "q1", "reply_to": "leasehold:reply:q1", "slot": "s1"} | changes.pop("document", {})
        headers = {"sent_at": self.now, "patience": 30.0} | changes
        return read(a_message(verb, document, **{"id": message, ARRIVAL: message, **headers}))

    def answer(self, message: str = "m1", result: str = "'accepted'") -> None:
        """Report that the pool has finished the message with this result."""
        self.admission.note_left(message)
        self.admission.note_result(message, result)

    def read_answers(self, address: str = "leasehold:reply:q1") -> list[dict[str, Any]]:
        return [json.loads(each) for each in self.redis.lrange(address, 0, -1)]

    def read_count(self, name: str, **labels: str) -> float:
        """Return the value of a counter, after one more request has written the pending counts."""
        self.now += 1
        self.take("submit", "flush", document={"request": f"flush-{self.now}", "reply_to": "leasehold:reply:flush"})
        return self.meter.counts[name, tuple(sorted(labels.items()))]


def a_message(verb: str, document: dict[str, Any], named: bool = False, **headers: Any) -> dict[str, Any]:
    """Return a message as Celery writes it to the queue."""
    body: list[Any] = [[], {"document": document}, None] if named else [[document], {}, None]
    return {
        "body": base64.b64encode(json.dumps(body).encode()).decode(),
        "headers": {"task": f"leasehold.reservations.{verb}", ARRIVAL: headers.get("id"), **headers},
        "properties": {"body_encoding": "base64"},
    }


def read(message: dict[str, Any]) -> Arrival:
    return read_arrival(message, base64.b64decode(message["body"]))


@pytest.fixture
def gate(redis_client: redis.Redis) -> Gate:
    """An admission whose queue is empty."""
    return Gate(redis_client)


def test_a_copy_of_a_running_request_is_not_executed(gate: Gate) -> None:
    assert gate.take("submit", "m1")
    assert not gate.take("submit", "m2")
    assert gate.read_count("leasehold_skipped_requests_total", reason="copy") == 1


def test_a_copy_sent_before_the_answer_is_not_executed(gate: Gate) -> None:
    gate.take("submit", "m1")
    gate.now += 3
    gate.answer("m1")
    assert not gate.take("submit", "m2", sent_at=gate.now - 1)


def test_a_copy_sent_after_the_answer_is_answered_again(gate: Gate) -> None:
    """The sender has not received the first answer."""
    gate.take("submit", "m1")
    gate.answer("m1")
    assert gate.take("submit", "m2", sent_at=gate.now + 1)


@pytest.mark.parametrize("result", ["'store_unavailable'", "'refused'", "'too_slow'", None])
def test_a_copy_of_a_request_without_an_answer_is_executed(gate: Gate, result: str | None) -> None:
    """None: the process of the pool was killed, so there is no result."""
    gate.take("submit", "m1", sent_at=gate.now - 5)
    gate.admission.note_left("m1")
    if result is not None:
        gate.admission.note_result("m1", result)
    assert gate.take("submit", "m2", sent_at=gate.now - 3)


def test_a_worker_holds_a_limited_number_of_searches(gate: Gate) -> None:
    for number in range(MOST_SEARCHES):
        assert gate.take("explain", f"m{number}", document={"request": f"q{number}"})
    assert not gate.take("explain", "more", document={"request": "more", "reply_to": "leasehold:reply:more"})
    assert [each["ok"] for each in gate.read_answers("leasehold:reply:more")] == [False]
    assert gate.take("query", "other", document={"request": "other"})
    gate.answer("m0")
    assert gate.take("explain", "again", document={"request": "again"})


SIGNED = {"principal": "alice", "signature": "0" * 64}
"""The headers of a message that claims to be signed."""


def test_a_running_message_that_claims_a_signature_makes_no_other_message_a_copy(gate: Gate) -> None:
    """The main process does not verify signatures: the running message may be forged, and the other one genuine."""
    assert gate.take("submit", "forged", **SIGNED)
    assert gate.take("submit", "genuine", **SIGNED)
    gate.answer("forged", "'refused'")
    gate.answer("genuine", "'accepted'")
    assert not gate.take("submit", "late", **SIGNED, sent_at=gate.now - 1)


def test_a_message_that_claims_the_id_of_an_accepted_one_is_not_taken_as_answered(gate: Gate) -> None:
    """A sender can write any id and body. A later message is a copy only of a message that the pool accepted."""
    other = {"document": {"request": "q2"}}
    assert gate.take("submit", "m1", id="same", **SIGNED)
    assert gate.take("submit", "m2", id="same", **SIGNED, **other)
    gate.answer("m1")
    gate.answer("m2", "'refused'")
    assert gate.take("submit", "m3", id="genuine", **SIGNED, **other, sent_at=gate.now - 1)


def test_an_unsigned_message_is_no_copy_of_a_signed_one(gate: Gate) -> None:
    assert gate.take("submit", "m1", principal="None")
    gate.answer("m1")
    assert gate.take("submit", "m2", sent_at=gate.now - 1)


def test_a_copy_is_executed_when_the_process_of_the_first_hangs(gate: Gate) -> None:
    gate.take("submit", "m1")
    gate.now += HANGING_SECONDS
    assert gate.take("submit", "m2")
    assert not gate.take("submit", "m3")


def test_an_answered_request_is_forgotten_with_its_answer(gate: Gate) -> None:
    gate.take("submit", "m1")
    gate.answer("m1")
    gate.now += KNOWN_SECONDS
    assert gate.take("submit", "m2", sent_at=NOW - 1)


@pytest.mark.parametrize(
    "other",
    [
        # The same id with another content, as any other sender could write it.
        {"document": {"slot": "s2"}},
        {"principal": "bob"},
        {"document": {"reply_to": "leasehold:reply:q2"}},
    ],
)
def test_only_the_same_request_of_the_same_sender_is_a_copy(gate: Gate, other: dict[str, Any]) -> None:
    gate.take("submit", "m1")
    assert gate.take("submit", "m2", **other)


def test_two_requests_without_an_id_are_never_copies(gate: Gate) -> None:
    """Each of them gets the id of its message."""
    assert gate.take("submit", "m1", document={"request": None})
    assert gate.take("submit", "m2", document={"request": None})


def test_a_request_in_a_long_queue_is_answered_with_a_time_to_retry(gate: Gate) -> None:
    gate.fill()
    assert not gate.take("leases")
    (answer,) = gate.read_answers()
    assert (answer["ok"], answer["retry_after"]) == (False, 30.0)
    assert [error["path"] for error in answer["errors"]] == ["."]
    assert 0 < gate.redis.ttl("leasehold:reply:q1") <= 60
    assert gate.read_count("leasehold_shed_requests_total", verb="leases") == 1


def test_a_postponed_request_is_executed_when_it_is_sent_again(gate: Gate) -> None:
    gate.fill()
    assert not gate.take("submit", "m1")
    gate.fill(0)
    gate.now += 30
    assert gate.take("submit", "m2")


@pytest.mark.parametrize(
    ("verb", "depth", "is_taken"),
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
def test_the_least_important_verbs_are_postponed_first(gate: Gate, verb: str, depth: int, is_taken: bool) -> None:
    gate.fill(depth)
    assert gate.take(verb) is is_taken


@pytest.mark.parametrize("changes", [{"patience": None}, {"document": {"reply_to": None}}, {"patience": "long"}])
def test_a_request_without_patience_or_reply_address_is_not_postponed(gate: Gate, changes: dict[str, Any]) -> None:
    gate.fill()
    assert gate.take("submit", **changes)
    assert gate.read_answers() == []


def test_nothing_is_written_to_an_invalid_reply_address(gate: Gate) -> None:
    gate.fill()
    assert gate.take("submit", document={"reply_to": "leasehold:leader"})
    assert not gate.redis.exists("leasehold:leader")


@pytest.mark.parametrize(
    ("verb", "age", "patience", "is_taken"),
    [
        ("query", 31.0, 30.0, False),
        ("query", 3600.0, None, True),
        # An agent of an earlier version sends `leases` again every few seconds.
        ("leases", LEASES_PATIENCE + 1, None, False),
        ("leases", LEASES_PATIENCE - 1, None, True),
        # A request for a change is always carried out, because its sender may rely on it.
        ("submit", 3600.0, None, True),
        ("renew", 31.0, 30.0, True),
    ],
)
def test_an_expired_query_is_not_answered_while_the_queue_is_long(
    gate: Gate, verb: str, age: float, patience: float | None, is_taken: bool
) -> None:
    gate.fill(1000)
    assert gate.take(verb, sent_at=gate.now - age, patience=patience) is is_taken
    assert gate.read_answers() == []


def test_an_expired_query_is_answered_while_the_queue_is_short(gate: Gate) -> None:
    """The clock of the sender may be wrong, so the age alone does not count."""
    assert gate.take("query", sent_at=gate.now - 3600, patience=30.0)


def test_the_admission_publishes_the_sending_time_of_the_last_message(gate: Gate) -> None:
    gate.take("submit", sent_at=NOW - 5)
    assert float(gate.redis.get("leasehold:queue:taken") or 0) == NOW - 5
    gate.now += 1
    # The time of a sender with a fast clock is limited to the present.
    gate.take("submit", "m2", sent_at=NOW + 3600, document={"request": "q2"})
    assert float(gate.redis.get("leasehold:queue:taken") or 0) == NOW + 1


def test_all_workers_add_to_one_count(gate: Gate, redis_client: redis.Redis) -> None:
    other = Gate(redis_client)
    for number in range(3):
        for each in (gate, other):
            each.now += 1
            each.take("submit", f"m{number}", document={"request": f"{id(each)}-{number}"})
    # Each worker adds its count at its next look, so the last request of each is not included yet.
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
def test_a_body_without_a_document_is_passed_to_the_task(gate: Gate, body: list[Any]) -> None:
    message = a_message("submit", {}, id="m1")
    message["body"] = base64.b64encode(json.dumps(body).encode()).decode()
    assert gate.admission.admit(read(message))
