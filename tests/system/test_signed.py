"""A stack with `access.mode = signed`: signed messages are executed, and all others change nothing."""

import base64
import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest

from leasehold.client.client import Client
from leasehold.client.rules import RulesInForce
from leasehold.errors import NotAnswered, Refused
from leasehold.liveness import find_trouble
from scheduler.operations.principals import add_principal, remove_principal, rotate_principal
from scheduler.ports import EventFilter, StoredPrincipal
from scheduler.protocol.names import RESERVATIONS, task_name
from scheduler.protocol.signing import SignedFields, format_key_line, hash_body, read_key, sign, sign_headers
from tasks.alive import WORKER_SECONDS, Sign, read_sign
from testbed.processes import Process, wait_for
from testbed.stack import Answer, Stack
from tests.system.bad_messages import an_envelope
from tests.system.conftest import RULES

SUBMIT, CANCEL = (task_name(RESERVATIONS, verb) for verb in ("submit", "cancel"))
Envelope = dict[str, Any]


class SignedStack(Stack):
    """A stack whose tests send messages as principals that they add."""

    def add(self, role: str, *accounts: str) -> StoredPrincipal:
        name = f"{role}-{uuid4().hex[:8]}"
        return add_principal(self.services.ports.store, {"name": name, "role": role, "accounts": [*accounts]})

    @property
    def cluster(self) -> str:
        return self.services.ports.store.read_cluster().identity

    def client(self, principal: StoredPrincipal | None, key: str | None = None) -> Client:
        """Return a client that signs as this principal; None: a client that does not sign."""
        line = None if principal is None else format_key_line(principal.name, key or principal.key, self.cluster)
        return Client(self.redis_url("leasehold"), key=line, timeout=20)

    def make(self, principal: StoredPrincipal, document: Mapping[str, Any], task: str = SUBMIT) -> Envelope:
        _, queue, _ = task.split(".")
        envelope = an_envelope(queue, task, [[{**document}], {}, None], uuid4().hex)
        envelope["headers"] |= sign_headers(
            read_key(principal.key),
            principal=principal.name,
            cluster=self.cluster,
            queue=queue,
            task=task,
            message_id=envelope["headers"]["id"],
            now=self.services.ports.store.now(),
            body=base64.b64decode(envelope["body"]),
        )
        return envelope

    def push(self, envelope: Envelope, queue: str = RESERVATIONS) -> None:
        self.redis.lpush(queue, json.dumps(envelope))

    def exchange(self, envelope: Envelope, address: str) -> Answer:
        """Push the message and return its answer."""
        self.redis.delete(address)
        self.push(envelope)
        _, body = cast("tuple[bytes, bytes]", wait_for(lambda: self.redis.blpop([address], timeout=2), "the answer"))
        return cast("Answer", json.loads(body))

    def is_known(self, name: str) -> bool:
        """Return whether this reservation is stored."""
        return bool(self.services.ports.store.find_reservations(ids=[name]))


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SignedStack]:
    folder: Path = tmp_path_factory.mktemp("signed")
    with SignedStack(folder, {"pools": {"warm": RULES["pools"]["warm"]}}, ACCESS__MODE="signed") as running:
        yield running


@pytest.fixture(scope="module")
def alice(signed: SignedStack) -> StoredPrincipal:
    return signed.add("producer")


def a_document() -> dict[str, Any]:
    name = uuid4().hex
    return {"id": f"r-{name}", "pool": "warm", "request": f"q-{name}", "reply_to": f"leasehold:reply:{name}"}


def test_a_signed_client_is_served_by_a_cluster_that_signs_its_own_messages(
    signed: SignedStack, alice: StoredPrincipal
) -> None:
    """The queues of ticks, sweeps, launches and checks refuse unsigned messages."""
    with signed.client(alice) as client, client.lease(pool="warm", wait=60) as lease:
        assert lease.token > 0
        row = signed.find(lease.id)
    assert (row.phase, row.principal) == ("leased", alice.name)


def test_of_gathered_messages_each_is_verified_and_carried_out_for_its_own_sender(
    signed: SignedStack, alice: StoredPrincipal
) -> None:
    """The main process of the intake is stopped, so that all messages wait and are carried out together."""
    bob = signed.add("producer")
    documents = [a_document() for _ in range(6)]
    envelopes = [signed.make([alice, bob][number % 2], each) for number, each in enumerate(documents)]
    forged = envelopes[4]
    forged["headers"] |= {name: value for name, value in envelopes[5]["headers"].items() if name != "id"}
    pid = signed.processes[RESERVATIONS].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        for each in envelopes:
            signed.push(each)
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_for(lambda: all(signed.redis.exists(each["reply_to"]) for each in documents), "all answers")
    answers = [json.loads(signed.redis.lrange(each["reply_to"], 0, 0)[0]) for each in documents]
    assert [answer["ok"] for answer in answers] == [True, True, True, True, False, True]
    assert answers[4]["errors"][0]["path"] == "signature"
    rows = [signed.find(each["id"]) for number, each in enumerate(documents) if number != 4]
    assert [row.principal for row in rows] == [alice.name, bob.name, alice.name, bob.name, bob.name]


def test_an_unsigned_message_is_refused_answered_counted_and_recorded(signed: SignedStack) -> None:
    with signed.client(None) as client, pytest.raises(Refused) as refused:
        client.reserve(id="unsigned", pool="warm")
    assert [(error.path, error.got) for error in refused.value.errors] == [("signature", "none")]
    assert not signed.is_known("unsigned")

    def find_event() -> bool:
        events = signed.services.ports.store.read_events(EventFilter(name="message_refused"))
        return any(event.detail["defect"] == "signature" and event.detail["queue"] == RESERVATIONS for event in events)

    wait_for(find_event, "the event of the refused message")


@pytest.mark.parametrize("queue", ["ticks", "launch", "health", "terminate"])
def test_only_the_cluster_and_operators_may_send_to_internal_queues(
    signed: SignedStack, alice: StoredPrincipal, queue: str
) -> None:
    canary = task_name(queue, "canary")
    address = f"leasehold:reply:{uuid4().hex}"

    def ask(principal: StoredPrincipal) -> Answer:
        envelope = signed.make(principal, {}, canary)
        body = json.dumps([[address], {}, None]).encode()
        fields = SignedFields(
            principal.name,
            signed.cluster,
            queue,
            canary,
            envelope["headers"]["id"],
            envelope["headers"]["signed_at"],
            hash_body(body),
        )
        envelope["body"] = base64.b64encode(body).decode()
        envelope["headers"]["signature"] = sign(read_key(principal.key), fields)
        signed.push(envelope, queue)
        _, answer = wait_for(lambda: signed.redis.blpop([address], timeout=2), "the canary")
        return cast("Answer", json.loads(answer))

    assert ask(signed.add("operator"))["ok"]
    refused = ask(alice)
    assert [(error["path"], error["got"]) for error in refused["errors"]] == [("principal", "producer")]


SWAPS: list[tuple[str, Callable[[SignedStack, Envelope], None]]] = [
    ("principal", lambda stack, message: message["headers"].update(principal=stack.add("operator").name)),
    ("cluster", lambda _, message: message["headers"].update(cluster=uuid4().hex)),
    ("task", lambda _, message: message["headers"].update(task=CANCEL)),
    ("message id", lambda _, message: message["headers"].update(id=uuid4().hex)),
    ("time", lambda _, message: message["headers"].update(signed_at=repr(float(message["headers"]["signed_at"]) + 1))),
    ("signature", lambda _, message: message["headers"].update(signature="0" * 64)),
    ("no signature", lambda _, message: message["headers"].pop("signature")),
    ("no principal", lambda _, message: message["headers"].pop("principal")),
    ("digest of the sender", lambda _, message: _replace_body(message, keep_digest=True)),
    ("body", lambda _, message: _replace_body(message, keep_digest=False)),
    (
        "an extra space in the body",
        lambda _, message: message.update(body=base64.b64encode(_body_of(message) + b" ").decode()),
    ),
]


def _body_of(envelope: Envelope) -> bytes:
    return base64.b64decode(envelope["body"])


def _replace_body(envelope: Envelope, *, keep_digest: bool) -> None:
    """Replace the id in the body; with `keep_digest` add the digest of the original body as a header."""
    if keep_digest:
        envelope["headers"]["body_sha256"] = hash_body(_body_of(envelope))
    ((document,), *rest) = json.loads(_body_of(envelope))
    body = [[{**document, "id": f"{document['id']}-forged"}], *rest]
    envelope["body"] = base64.b64encode(json.dumps(body).encode()).decode()


def test_a_captured_message_with_any_changed_field_is_refused(signed: SignedStack, alice: StoredPrincipal) -> None:
    """Each change is made in a copy of another message; the original message is accepted afterwards."""
    for what, alter in SWAPS:
        document = a_document()
        captured = signed.make(alice, document)
        forged = json.loads(json.dumps(captured))
        alter(signed, forged)
        answer = signed.exchange(forged, document["reply_to"])
        assert [error["path"] for error in answer["errors"]] == ["signature"], what
        assert not signed.is_known(document["id"]), what
        assert not signed.is_known(f"{document['id']}-forged"), what
        assert signed.exchange(captured, document["reply_to"])["ok"], what


def test_a_message_for_another_queue_is_refused(signed: SignedStack) -> None:
    """The message is signed for the queue `ticks`, and pushed to `reservations` with a task of that queue."""
    operator, document = signed.add("operator"), a_document()
    envelope = signed.make(operator, document)
    fields = SignedFields(
        operator.name,
        signed.cluster,
        "ticks",
        SUBMIT,
        envelope["headers"]["id"],
        envelope["headers"]["signed_at"],
        hash_body(_body_of(envelope)),
    )
    envelope["headers"]["signature"] = sign(read_key(operator.key), fields)
    assert not signed.exchange(envelope, document["reply_to"])["ok"]
    assert not signed.is_known(document["id"])


@pytest.mark.parametrize("hours", [-1.1, 1.1])
def test_a_message_signed_more_than_an_hour_before_or_after_now_is_refused(
    signed: SignedStack, alice: StoredPrincipal, hours: float
) -> None:
    document = a_document()
    envelope = signed.make(alice, document)
    at = repr(float(envelope["headers"]["signed_at"]) + hours * 3600)
    digest = hash_body(_body_of(envelope))
    fields = SignedFields(alice.name, signed.cluster, RESERVATIONS, SUBMIT, envelope["headers"]["id"], at, digest)
    envelope["headers"] |= {"signed_at": at, "signature": sign(read_key(alice.key), fields)}
    assert not signed.exchange(envelope, document["reply_to"])["ok"]
    assert not signed.is_known(document["id"])


def test_a_copy_gets_the_stored_answer_for_the_same_principal_only(signed: SignedStack, alice: StoredPrincipal) -> None:
    document = a_document()
    envelope = signed.make(alice, document)
    first = signed.exchange(envelope, document["reply_to"])
    assert first["ok"]
    # First the same message again, then the same request with a new signature.
    assert signed.exchange(envelope, document["reply_to"]) == first
    assert signed.exchange(signed.make(alice, document), document["reply_to"]) == first
    other = signed.exchange(signed.make(signed.add("producer"), document), document["reply_to"])
    assert [error["path"] for error in other["errors"]] == ["request"]


def test_a_producer_may_not_change_the_rules_and_an_operator_may(signed: SignedStack, alice: StoredPrincipal) -> None:
    operator = signed.add("operator")
    with signed.client(alice) as client:
        seen = client.rules()
        document = {**seen.document, "limits": {"work_per_tick": 30_000}}
        for attempt in (lambda: client.preview_rules(document), lambda: client.apply_rules(document, expected=1)):
            with pytest.raises(Refused) as refused:
                attempt()
            assert [(error.path, error.got) for error in refused.value.errors] == [
                ("principal", f"{alice.name} (producer)")
            ]
        assert client.rules().version == seen.version
    with signed.client(operator) as client:
        preview = client.preview_rules(document)
        assert [(each.path, each.after) for each in preview.changes] == [("limits.work_per_tick", 30_000)]
        applied = client.apply_rules(document, expected=preview.version, source="a test")
        assert (applied.version, applied.changed) == (seen.version + 1, True)
        (newest,) = client.rules(history=1).history
        assert (newest.version, newest.source) == (applied.version, "a test")
        wrong = {**document, "pools": {**document["pools"], "warm": {"max_slot": 1}}}
        with pytest.raises(Refused) as refused:
            client.apply_rules(wrong, expected=applied.version)
        assert "rules.pools.warm.max_slot" in {error.path for error in refused.value.errors}
        assert client.rules().version == applied.version
    store = signed.services.ports.store
    (event,) = store.read_events(EventFilter(name="rules_changed", newest=True, limit=1))
    assert (event.principal, event.detail["version"]) == (operator.name, applied.version)


def test_of_two_operators_that_change_the_same_version_one_wins(signed: SignedStack) -> None:
    store = signed.services.ports.store
    clients = [signed.client(signed.add("operator")) for _ in range(2)]
    with closing(clients[0]), closing(clients[1]), ThreadPoolExecutor(2) as threads:
        for number in range(3):
            seen = clients[0].rules()

            def change(index: int, seen: RulesInForce = seen, number: int = number) -> list[str]:
                document = {**seen.document, "limits": {"work_per_tick": 40_000 + 10 * number + index}}
                try:
                    clients[index].apply_rules(document, expected=seen.version)
                except Refused as refused:
                    return [error.path for error in refused.errors]
                return []

            faults = list(threads.map(change, range(2)))
            assert sorted(faults) == [[], ["expected"]]
            stored = store.load_rules()
            assert stored.version == seen.version + 1
            assert stored.document["limits"]["work_per_tick"] == 40_000 + 10 * number + faults.index([])


def test_a_removed_principal_is_refused_and_a_rotated_one_has_both_keys(signed: SignedStack) -> None:
    bob, store = signed.add("producer"), signed.services.ports.store

    def works(key: str) -> bool:
        with signed.client(bob, key) as client:
            try:
                client.reserve(pool="warm")
            except (Refused, NotAnswered):
                return False
            return True

    assert works(bob.key)
    rotated = rotate_principal(store, bob.name)
    assert works(rotated.key)
    assert works(bob.key)
    newest = rotate_principal(store, bob.name, 0)
    assert works(newest.key)
    wait_for(lambda: not works(bob.key), "the refusal of the first key")
    wait_for(lambda: not works(rotated.key), "the refusal of the second key")
    remove_principal(store, bob.name)
    wait_for(lambda: not works(newest.key), "the refusal of the removed principal")


@pytest.mark.parametrize(("process", "words"), [("beat", ("tasks.clock",)), ("launch", ("tasks.worker", "launch"))])
@pytest.mark.parametrize("mode", ["signed", "open"])
def test_a_process_notes_whether_workers_accept_its_messages(
    process: str, words: tuple[str, ...], mode: str, signed: SignedStack
) -> None:
    """With `access.mode` `open` a process does not sign, so the workers refuse its messages."""
    path, setting = signed.folder / f"{process}-{mode}", "BEAT_FILE" if process == "beat" else "ALIVE_FILE"
    changes = {"LEASEHOLD_ACCESS__MODE": mode, f"LEASEHOLD_CELERY__{setting}": str(path)}
    started = Process(path.name, words, {**signed.environment, **changes}, signed.folder)

    def look() -> Sign | None:
        found = read_sign(path) if path.exists() else None
        return found if found and (found.refusal if mode == "open" else found.age < WORKER_SECONDS) else None

    try:
        found = wait_for(look, "the sign of life")
        settings = signed.settings.model_copy(
            update={"celery": signed.settings.celery.model_copy(update={setting.lower(): str(path)})}
        )
        trouble = find_trouble(process, settings, 10)
    finally:
        started.stop()
    assert found.process == process
    assert (trouble or "") == found.refusal
    assert ("signature: expected a valid signature" in found.refusal) == (mode == "open")
