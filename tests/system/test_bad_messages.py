"""10,000 bad messages on all five queues: each is refused with a reason, and correct requests are served meanwhile."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, get_args
from uuid import uuid4

import msgspec
import pytest

from scheduler.model.reservations import Reservation
from scheduler.operations.commands.intake import MOST_ITEMS
from scheduler.protocol.names import QUEUE_NAMES, RESERVATIONS
from testbed.processes import wait_for
from testbed.stack import RESEND_SECONDS, Answer, Stack
from tests.system.bad_messages import BadMessage, Generator, Kind

pytestmark = pytest.mark.timeout(300)
MESSAGES = 10_000
LEAST_OF_A_KIND = 100
BATCHES = 20
SEED = 20_261_121
LONG = 120.0
"""Timeout of a batch in seconds; a hundred times what it takes on an idle machine."""
ROUNDS = 5
REFUSALS = {"message.refused", "task.refused", "request.refused", "task.foreign_address"}
MESSAGE_ID = re.compile(r"task_id=(bad-\d+-\d+)\b")
ACTION = re.compile(r"action=([a-z_.]+)")
FAILURE = re.compile(r"\[(?:error|critical) *\]|Traceback|exited prematurely")


def test_each_bad_message_is_refused_and_correct_requests_are_served(stack: Stack) -> None:
    earlier, target = _lease_twice(stack)
    stored = set(_list_stored(stack))
    pids = {queue: stack.processes[queue].pid for queue in QUEUE_NAMES}
    begins = {queue: stack.processes[queue].log.stat().st_size for queue in QUEUE_NAMES}

    slot = target.leases[0].slot
    generator = Generator(SEED, target="target", token=target.token, earlier=earlier.token, pool="warm", slot=slot)
    sent: list[BadMessage] = []
    for number in range(BATCHES):
        batch = generator.make(MESSAGES // BATCHES)
        _send_with_good_request(stack, batch, f"good-{number}")
        sent += batch
    huge = generator.make_huge()
    _send_with_good_request(stack, huge, "good-last")

    kinds = Counter(message.kind for message in sent)
    assert set(kinds) == set(get_args(Kind))
    assert min(kinds.values()) >= LEAST_OF_A_KIND, kinds
    _await_end(stack, *QUEUE_NAMES)
    logs = {queue: _read_from(stack, queue, begins[queue]) for queue in QUEUE_NAMES}
    _check_lines("\n".join(logs.values()), [*sent, *huge])
    good = {*(f"good-{number}" for number in range(BATCHES)), "good-last"}
    assert set(_list_stored(stack)) == stored | good
    assert {queue: stack.processes[queue].pid for queue in QUEUE_NAMES} == pids
    assert stack.find("target").token == target.token
    rows = [*stack.await_phase(sorted(good), "leased"), stack.find("target")]
    releases = [{"reservation": row.id, "token": row.token} for row in rows]
    assert stack.ask("release", {"items": releases})["ok"]


def test_time_limits_in_a_message_do_not_apply_to_its_task(stack: Stack) -> None:
    # A worker needs much longer than these limits to refuse this number of items, and writes nothing.
    address = f"leasehold:reply:{uuid4().hex}"
    request = {"request": uuid4().hex, "reply_to": address, "items": [{"system": 7}] * MOST_ITEMS}
    begin = stack.processes[RESERVATIONS].log.stat().st_size
    stack.send("submit", request, time_limit=0.1, soft_time_limit=0.1)
    found = wait_for(lambda: stack.redis.blpop([address], timeout=RESEND_SECONDS), "the answer", LONG)
    assert len(msgspec.json.decode(found[1])["results"]) == MOST_ITEMS
    assert "time limit" not in _read_from(stack, RESERVATIONS, begin).lower()


def _lease_twice(stack: Stack) -> tuple[Reservation, Reservation]:
    """Lease the target, requeue it and lease it again; return its first and its second row."""
    stack.ask("submit", {"id": "target", "pool": "warm", "ttl": 0})
    (earlier,) = stack.await_phase(["target"], "leased")
    assert stack.ask("suspend", {"reservation": "target", "token": earlier.token})["ok"]
    assert stack.ask("resume", {"reservation": "target"})["ok"]
    (target,) = stack.await_phase(["target"], "leased")
    assert target.token > earlier.token
    return earlier, target


def _list_stored(stack: Stack) -> list[str]:
    return [row.id for row in stack.services.ports.store.find_reservations(limit=100_000)]


def _send_with_good_request(stack: Stack, batch: Sequence[BadMessage], name: str) -> None:
    """Send the batch with a correct request in its middle; wait for all answers and check them."""
    half = len(batch) // 2
    request = {"request": uuid4().hex, "reply_to": f"leasehold:reply:{uuid4().hex}", "id": name, "pool": "warm"}
    _push(stack, batch[:half])
    stack.send("submit", request)
    _push(stack, batch[half:])
    assert _await_answer(stack, request)["ok"]
    _await_refusals(stack, batch)


def _push(stack: Stack, batch: Sequence[BadMessage]) -> None:
    with stack.redis.pipeline(transaction=False) as pipeline:
        for message in batch:
            pipeline.lpush(message.queue, message.text.encode(errors="surrogateescape"))
        pipeline.execute()


def _await_answer(stack: Stack, request: dict[str, str]) -> Answer:
    """Return the answer; resend the request until there is one, as a client does."""

    def look() -> Any:
        found = stack.redis.blpop([request["reply_to"]], timeout=RESEND_SECONDS)
        if not found:
            stack.send("submit", request)
        return found

    _, body = wait_for(look, f"the answer to {request['id']}", LONG)
    answer: Answer = msgspec.json.decode(body)
    return answer


def _await_refusals(stack: Stack, batch: Sequence[BadMessage]) -> None:
    """Check that each message with a reply address gets a refusal with a reason there.

    Messages without an answer are sent again, as a client does: a busy database delays answers, and answers expire.
    """
    waiting = {message.address: message for message in batch if message.account == "answer"}
    for _ in range(ROUNDS):
        _await_end(stack, RESERVATIONS)
        for address, body in _take_answers(stack, list(waiting)).items():
            _check_refusal(waiting.pop(address), body)
        if not waiting:
            return
        _push(stack, list(waiting.values()))
    unanswered = next(iter(waiting.values()))
    pytest.fail(f"{len(waiting)} without an answer, like {unanswered.what}: {unanswered.text[:2000]}")


def _await_end(stack: Stack, *queues: str) -> None:
    """Wait until the workers have taken and finished all bad messages of these queues.

    The queues need not be empty and the workers not idle, because beat continues to send messages.
    """
    for queue in queues:
        stack.await_canary(queue, LONG)
    wait_for(lambda: not _find_running(stack), "the workers to finish the bad messages", LONG)


def _find_running(stack: Stack) -> list[str]:
    """Return the bad messages that a worker has not acknowledged.

    Messages of a worker that an earlier test killed stay in the same key until the visibility timeout.
    """
    tags = [tag.decode() for tag in stack.redis.hkeys("unacked") if isinstance(tag, bytes)]
    return [tag for tag in tags if tag.startswith("bad-")]


def _take_answers(stack: Stack, addresses: Sequence[str]) -> dict[str, bytes]:
    with stack.redis.pipeline(transaction=False) as pipeline:
        for address in addresses:
            pipeline.lpop(address)
        return {address: body for address, body in zip(addresses, pipeline.execute(), strict=True) if body}


def _check_refusal(message: BadMessage, body: bytes) -> None:
    answer = msgspec.json.decode(body)
    assert not answer["ok"], f"{message.what} was accepted: {message.text[:2000]}"
    for result in answer.get("results", [answer]):
        assert not result["ok"]
        assert all(error["path"] and error["expected"] and len(error["got"]) < 200 for error in result["errors"])
        assert result["errors"]


def _read_from(stack: Stack, queue: str, begin: int) -> str:
    with stack.processes[queue].log.open("rb") as log:
        log.seek(begin)
        return log.read().decode(errors="replace")


def _check_lines(log: str, sent: Sequence[BadMessage]) -> None:
    lines = log.splitlines()
    assert [line[:500] for line in lines if FAILURE.search(line)] == []
    named = {found[1]: line for line in lines if (found := MESSAGE_ID.search(line))}
    missing = [message for message in sent if message.account == "line" and message.id not in named]
    assert not missing, f"{len(missing)} without a line, like {missing[0].what}: {missing[0].text[:2000]}"
    # A launch or termination of an unknown slot is skipped; its log line is not a refusal.
    refused = {message.id for message in sent if message.account == "line" and message.what != "forged slot"}
    assert {name: named[name] for name in refused if _action(named[name]) not in REFUSALS} == {}
    without_id = sum(_action(line) == "message.refused" and not MESSAGE_ID.search(line) for line in lines)
    assert without_id == sum(message.account == "count" for message in sent), Counter(map(_action, lines))


def _action(line: str) -> str:
    found = ACTION.search(line)
    return found[1] if found else ""
