"""Verification in a worker: a signature proves one message of one principal of this cluster, within an hour."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from scheduler.model.principals import WORKER, Principal
from scheduler.operations.principals import add_principal, remove_principal, rotate_principal
from scheduler.ports import ClusterRow, StoredPrincipal, StoreUnavailableError
from scheduler.protocol.signing import SignedFields, hash_body, read_key, sign, sign_headers
from scheduler.store.memory import MemoryStore
from tests.builders import NOW
from workers.access import LOOK_SECONDS, Access, SignatureError, is_signed

QUEUE, TASK, MESSAGE, BODY = "reservations", "leasehold.reservations.submit", "m-1", b"[[{}], {}, null]"


class Time:
    """One clock for the store and for the process."""

    def __init__(self) -> None:
        self.seconds = NOW

    def __call__(self) -> float:
        return self.seconds


class Database(MemoryStore):
    """Counts the reads; can be unreachable."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self.looks = self.reads = 0
        self.is_down = False

    def read_cluster(self) -> ClusterRow:
        if self.is_down:
            raise StoreUnavailableError("it is down")
        self.looks += 1
        return super().read_cluster()

    def find_principals(self) -> list[StoredPrincipal]:
        self.reads += 1
        return super().find_principals()


class Rig:
    """A store with the producer alice, and a process that verifies."""

    def __init__(self) -> None:
        self.time = Time()
        self.store = Database(self.time)
        self.access = Access(self.store, self.time)
        self.alice = add_principal(self.store, {"name": "alice", "role": "producer", "accounts": ["ci"]})

    def sign(self, key: str | None = None, **changes: Any) -> dict[str, object]:
        fields: dict[str, Any] = {
            "principal": "alice",
            "cluster": self.store.read_cluster().identity,
            "queue": QUEUE,
            "task": TASK,
            "message_id": MESSAGE,
            "now": self.time(),
            "body": BODY,
            **changes,
        }
        signed = sign_headers(read_key(key or self.alice.key), **fields)
        return {"task": TASK, "body_sha256": hash_body(BODY), **signed}

    def verify(self, headers: dict[str, object], queue: str = QUEUE, task: str = TASK, message: str = MESSAGE) -> str:
        return self.access.verify(headers, queue=queue, task=task, message_id=message).name

    def refuses(self, headers: dict[str, object], **consumed: str) -> bool:
        with pytest.raises(SignatureError):
            self.verify(headers, **consumed)
        return True


def test_a_signed_message_belongs_to_its_principal() -> None:
    rig = Rig()
    found = rig.access.verify(rig.sign(), queue=QUEUE, task=TASK, message_id=MESSAGE)
    assert found.key is not None
    assert msgspec.structs.replace(found, key=None) == Principal(name="alice", role="producer", accounts=("ci",))


@pytest.mark.parametrize(
    "change",
    [
        {"principal": WORKER},
        {"principal": "nobody"},
        {"cluster": "another"},
        {"signed_at": repr(NOW + 1)},
        {"signature": "0" * 64},
        {"signature": ""},
        {"body_sha256": hash_body(b"[[{}], {}, null] ")},
        # not texts
        {"principal": None},
        {"cluster": 7},
        {"signed_at": NOW},
        {"signature": ["x"]},
        {"body_sha256": None},
        {"signature": "\ud800"},
    ],
)
def test_a_changed_header_is_refused(change: dict[str, object]) -> None:
    rig = Rig()
    assert rig.refuses(rig.sign() | change)


@pytest.mark.parametrize("missing", ["principal", "cluster", "signed_at", "signature", "body_sha256"])
def test_a_missing_header_is_refused(missing: str) -> None:
    rig = Rig()
    headers = rig.sign()
    del headers[missing]
    assert rig.refuses(headers)


@pytest.mark.parametrize(
    "consumed", [{"queue": "ticks"}, {"task": "leasehold.reservations.cancel"}, {"message": "m-2"}, {"message": ""}]
)
def test_headers_that_the_worker_consumed_count(consumed: dict[str, str]) -> None:
    rig = Rig()
    assert rig.refuses(rig.sign(), **consumed)


def test_a_message_is_signed_when_it_has_a_signature_or_names_a_principal() -> None:
    assert not is_signed({"task": TASK, "cluster": "c", "signed_at": "1"})
    assert is_signed({"signature": None})
    assert is_signed({"principal": "alice"})


@pytest.mark.parametrize(
    ("seconds", "is_valid"), [(-3600.5, False), (-3600.0, True), (0.0, True), (3600.0, True), (3600.5, False)]
)
def test_a_signature_is_valid_within_an_hour_of_cluster_time(seconds: float, *, is_valid: bool) -> None:
    rig = Rig()
    headers = rig.sign(now=NOW + seconds)
    assert rig.verify(headers) == "alice" if is_valid else rig.refuses(headers)


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "soon", "", "1e400"])
def test_an_invalid_time_is_refused(text: str) -> None:
    rig = Rig()
    key = read_key(rig.alice.key)
    fields = SignedFields("alice", rig.store.read_cluster().identity, QUEUE, TASK, MESSAGE, text, hash_body(BODY))
    assert rig.refuses(rig.sign() | {"signed_at": text, "signature": sign(key, fields)})


def test_an_old_signature_expires_while_the_process_runs() -> None:
    rig = Rig()
    headers = rig.sign()
    assert rig.verify(headers) == "alice"
    rig.time.seconds += 3601
    assert rig.refuses(headers)


def test_a_principal_and_a_key_that_were_added_a_moment_ago_are_valid_at_once() -> None:
    rig = Rig()
    assert rig.verify(rig.sign()) == "alice"
    rig.alice = rotate_principal(rig.store, "alice", 60)
    assert rig.verify(rig.sign()) == "alice"
    bob = add_principal(rig.store, {"name": "bob", "role": "reader"})
    assert rig.verify(rig.sign(bob.key, principal="bob")) == "bob"


def test_changes_of_principals_take_effect_within_a_second() -> None:
    rig = Rig()
    old = rig.sign()
    assert rig.verify(old) == "alice"
    rotated = rotate_principal(rig.store, "alice", 60)
    rig.time.seconds += LOOK_SECONDS
    assert rig.verify(rig.sign(rotated.key)) == "alice"
    assert rig.verify(old) == "alice"
    rig.time.seconds += 60
    assert rig.refuses(old)
    assert rig.verify(rig.sign(rotated.key)) == "alice"
    remove_principal(rig.store, "alice")
    rig.time.seconds += LOOK_SECONDS
    assert rig.refuses(rig.sign(rotated.key))


def test_the_database_is_asked_once_a_second_and_principals_are_read_when_they_changed() -> None:
    rig = Rig()
    rig.store.looks = rig.store.reads = 0
    headers = rig.sign()
    rig.store.looks = 0
    for _ in range(20):
        rig.verify(headers)
    assert (rig.store.looks, rig.store.reads) == (1, 1)
    for _ in range(3):
        rig.time.seconds += LOOK_SECONDS
        rig.verify(headers)
    assert (rig.store.looks, rig.store.reads) == (4, 1)
    add_principal(rig.store, {"name": "bob", "role": "reader"})
    rig.time.seconds += LOOK_SECONDS
    rig.verify(headers)
    assert (rig.store.looks, rig.store.reads) == (5, 2)


def test_without_the_database_nothing_is_verified() -> None:
    rig = Rig()
    headers = rig.sign()
    assert rig.verify(headers) == "alice"
    rig.store.is_down = True
    rig.time.seconds += LOOK_SECONDS
    with pytest.raises(StoreUnavailableError):
        rig.verify(headers)


def test_the_clusters_own_messages_are_verified_in_another_process() -> None:
    rig = Rig()
    headers = rig.access.sign(queue="ticks", task="leasehold.ticks.tick", message_id="m", body=b"[]")
    other = Access(rig.store, rig.time)
    found = other.verify(
        {**headers, "body_sha256": hash_body(b"[]")}, queue="ticks", task="leasehold.ticks.tick", message_id="m"
    )
    assert (found.name, found.role) == (WORKER, "worker")


def test_the_cluster_signs_with_its_new_key_after_a_rotation_and_with_the_last_one_without_a_database() -> None:
    rig = Rig()

    def signature() -> str:
        return rig.access.sign(queue="ticks", task="t", message_id="m", body=b"[]")["signature"]

    def expected(key: str) -> str:
        cluster = rig.store._world.identity
        fields = {"principal": WORKER, "cluster": cluster, "queue": "ticks", "task": "t", "message_id": "m"}
        return sign_headers(read_key(key), now=rig.time(), body=b"[]", **fields)["signature"]

    (before,) = (row.key for row in rig.store.find_principals() if row.name == WORKER)
    assert signature() == expected(before)
    after = rotate_principal(rig.store, WORKER).key
    rig.time.seconds += LOOK_SECONDS
    assert signature() == expected(after)
    rig.store.is_down = True
    rig.time.seconds += 100
    assert signature() == expected(after)


def test_a_cluster_that_never_read_its_key_signs_nothing() -> None:
    rig = Rig()
    rig.store.is_down = True
    with pytest.raises(StoreUnavailableError):
        rig.access.sign(queue="ticks", task="t", message_id="m", body=b"[]")
