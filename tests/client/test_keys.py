"""Keys: made for each reservation, stored in a private file of the user, and sent only to the stack."""

import asyncio
import hashlib
import multiprocessing
import os
import sqlite3
import stat
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from leasehold import AsyncClient, Client, Refused
from leasehold.client.reservation_keys import Keys, find_keys_file, hash_key
from scheduler.model.command_schemas import HolderDocument, ReservationDocument
from scheduler.model.validation import InvalidInputError, read_document
from scheduler.protocol.signing import format_key_line, make_key
from scheduler.protocol.verbs import KEY_VERBS
from tests.client.intake import Document, FakeIntake, a_row, accept

COMMANDS: list[tuple[str, tuple[Any, ...]]] = [
    ("renew", (1,)),
    ("release", (1,)),
    ("confirm", (1,)),
    ("fail", (1,)),
    ("decline", (1,)),
    ("surrender", (1,)),
    ("suspend", (1,)),
    ("resume", ()),
]


@pytest.fixture
def client(intake: FakeIntake) -> Iterator[Client]:
    """A client that signs its requests, and so makes keys."""
    with Client(intake.url, timeout=5, key=format_key_line("ci", make_key(), "a-cluster")) as made:
        yield made


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def test_a_reservation_gets_a_key_and_only_its_hash_is_sent(client: Client, intake: FakeIntake) -> None:
    client.reserve(id="hashed", system="s")
    ((_, document),) = intake.seen
    key = client.find_key("hashed")
    assert key is not None
    assert len(key) >= 43
    assert document["key_hash"] == digest(key)
    assert key not in str(document)
    read_document(ReservationDocument, {"id": "hashed", "system": "s", "key_hash": hash_key(key)})
    read_document(HolderDocument, {"reservation": "hashed", "key": key})


def test_a_client_that_does_not_sign_makes_no_key(intake: FakeIntake) -> None:
    with Client(intake.url, timeout=5) as client:
        client.reserve(id="plain", system="s")
        client.reserve(id="asked", system="s", key="k" * 43)
        assert (client.find_key("plain"), client.find_key("asked")) == (None, "k" * 43)
    (_, plain), (_, asked) = intake.seen
    assert (plain.get("key_hash"), asked["key_hash"]) == (None, digest("k" * 43))


def test_each_reservation_of_a_list_gets_its_own_key(client: Client, intake: FakeIntake) -> None:
    client.reserve_many([{"system": "s"}, {"id": "two", "system": "s"}, {"id": "mine", "system": "s", "key": "k" * 43}])
    ((_, document),) = intake.seen
    assert [item["key_hash"] for item in document["items"]] == [
        digest(str(client.find_key(item["id"]))) for item in document["items"]
    ]
    assert len({item["key_hash"] for item in document["items"]}) == 3
    assert client.find_key("mine") == "k" * 43
    assert "k" * 43 not in str(document)


def test_only_the_commands_of_a_holder_carry_the_key(client: Client, intake: FakeIntake) -> None:
    client.reserve(id="keyed", system="s")
    assert {verb for verb, _ in COMMANDS} == KEY_VERBS
    for verb, arguments in COMMANDS:
        getattr(client, verb)("keyed", *arguments)
    client.cancel("keyed")
    client.priority("keyed", 2)
    client.absent("keyed")
    carried = {verb: document.get("key") for verb, document in intake.seen[1:]}
    key = client.find_key("keyed")
    assert carried == {**dict.fromkeys(KEY_VERBS, key), "cancel": None, "priority": None, "absent": None}


def test_a_given_key_is_sent_instead_of_the_stored_one(client: Client, intake: FakeIntake) -> None:
    client.reserve(id="given", system="s")
    for verb, arguments in COMMANDS:
        getattr(client, verb)("given", *arguments, key="g" * 43)
    assert {document["key"] for _, document in intake.seen[1:]} == {"g" * 43}


def test_the_same_id_gets_the_same_key_in_another_client(client: Client, intake: FakeIntake) -> None:
    """So a restarted program with the same id continues to hold its reservation."""
    client.reserve(id="again", system="s")
    with Client(intake.url, timeout=5, key=format_key_line("ci", make_key(), "a-cluster")) as other:
        assert other.find_key("again") == client.find_key("again")
        other.reserve(id="again", system="s")
    (_, first), (_, second) = intake.seen
    assert first["key_hash"] == second["key_hash"]


def test_a_document_with_a_hash_keeps_it(client: Client, intake: FakeIntake) -> None:
    client.submit({"id": "own", "system": "s", "key_hash": digest("x")})
    assert intake.seen[0][1]["key_hash"] == digest("x")
    assert client.find_key("own") is None


@pytest.mark.parametrize("name", [5, "a\ud800"])
def test_an_invalid_id_is_sent_unchanged(tmp_path: Path, name: object) -> None:
    documents = [{"id": name, "system": "s"}]
    assert Keys(tmp_path / "keys").hide(documents) == documents


@pytest.mark.parametrize("name", [5, "a\ud800", None])
def test_the_key_of_an_invalid_id_is_not_sent(tmp_path: Path, name: object) -> None:
    document = {"id": name, "key": "k" * 43}
    assert Keys(tmp_path / "keys").hide([document]) == [{"id": name, "key_hash": digest("k" * 43)}]


def test_a_key_beside_a_hash_is_refused_before_it_is_sent(client: Client, intake: FakeIntake) -> None:
    with pytest.raises(Refused, match="expected either a key or its hash"):
        client.submit({"id": "r1", "system": "s", "key": "k" * 43, "key_hash": digest("x")})
    assert intake.seen == []


@pytest.mark.parametrize("key", [5, "short", "k" * 201, "k" * 31 + " ", "é" * 43])
def test_an_invalid_key_is_refused_before_it_is_sent(client: Client, intake: FakeIntake, key: Any) -> None:
    with pytest.raises(Refused, match="key: expected a key of 32 to 200 letters") as caught:
        client.reserve(id="r1", system="s", key=key)
    assert caught.value.errors[0].got == "***"
    assert intake.seen == []
    with pytest.raises(InvalidInputError):
        read_document(HolderDocument, {"reservation": "r1", "key": key})


def test_a_lease_with_another_key_is_refused_at_once_and_not_changed(client: Client, intake: FakeIntake) -> None:
    """Another client holds the lease, so the client neither waits nor cancels."""
    fault = {"index": 0, "path": "key", "expected": "the key of r1", "got": "another key"}

    def handle(verb: str, document: Document) -> Document:
        return {"ok": False, "errors": [fault]} if verb in KEY_VERBS else accept(verb, document)

    intake.handler = handle
    intake.publish(a_row("r1", phase="leased", token=1))
    with pytest.raises(Refused, match="the key of r1"), client.lease(id="r1", system="s", wait=5):
        raise AssertionError
    assert "cancel" not in intake.verbs()


def test_the_file_and_its_folder_are_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path = tmp_path / "state" / "leasehold" / "keys"
        Keys(path).make(["r1"])
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert sorted(each.name for each in path.parent.iterdir()) == ["keys"]


def test_a_file_that_others_may_read_is_made_private(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    Keys(path).make(["r1"])
    path.chmod(0o644)
    assert Keys(path).find("r1") is not None
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("content", [None, b"no database", b""])
def test_without_a_usable_file_the_client_keeps_the_keys_in_memory(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "keys"
    if content is None:
        path.mkdir()
    elif content:
        path.write_bytes(content)
    keys = Keys(path)
    made = keys.make(["r1", "r2"])
    assert keys.make(["r1"]) == {"r1": made["r1"]}
    assert (keys.find("r1"), keys.find("r3")) == (made["r1"], None)
    keys.put("r3", "k")
    assert keys.find("r3") == "k"


def test_the_default_file_is_in_the_state_folder_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LEASEHOLD_KEYS")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert find_keys_file() == tmp_path / ".local" / "state" / "leasehold" / "keys"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert find_keys_file() == tmp_path / "state" / "leasehold" / "keys"


def test_keys_that_were_not_used_for_long_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = Keys(tmp_path / "keys")
    keys.make(["old"])
    monkeypatch.setattr("leasehold.client.reservation_keys.KEPT_SECONDS", -1.0)
    keys.make([])
    assert keys.find("old") is None


def test_threads_and_processes_agree_on_the_key_of_an_id(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    found: list[dict[str, str]] = []
    names = [f"r{number}" for number in range(20)]
    threads = [threading.Thread(target=lambda: found.append(Keys(path).make(names))) for _ in range(4)]
    for thread in threads:
        thread.start()
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found += pool.starmap(make_keys, [(path, names)] * 2)
    for thread in threads:
        thread.join()
    assert len(found) == 6
    assert all(each == found[0] for each in found)
    assert len(set(found[0].values())) == len(names)


def make_keys(path: Path, names: list[str]) -> dict[str, str]:
    return Keys(path).make(names)


def test_the_keys_of_many_reservations_are_found_in_one_look_at_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = Keys(tmp_path / "keys")
    made = keys.make(f"r{number}" for number in range(1200))
    opened, connect = [], sqlite3.connect

    def count(*given: Any, **options: Any) -> sqlite3.Connection:
        opened.append(given)
        made: sqlite3.Connection = connect(*given, **options)
        return made

    monkeypatch.setattr(sqlite3, "connect", count)
    assert keys.find_all([*made, "unknown"]) == made
    assert len(opened) == 1


def test_commands_that_are_made_at_the_same_time_look_into_the_file_together(
    intake: FakeIntake, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[list[str]] = []
    find_all = Keys.find_all

    def count(keys: Keys, names: Iterable[str]) -> dict[str, str]:
        looks.append(list(names))
        return find_all(keys, looks[-1])

    async def run() -> list[str | None]:
        async with AsyncClient(intake.url, timeout=5) as client:
            await client.reserve(id="asked", system="s", key="k" * 43)
            return list(await asyncio.gather(*map(client.find_key, ["asked", "\ud800", "plain", "asked"])))

    monkeypatch.setattr(Keys, "find_all", count)
    assert asyncio.run(run()) == ["k" * 43, None, None, "k" * 43]
    assert looks == [["asked", "\ud800", "plain"]]


def test_a_look_for_keys_that_fails_fails_for_each_command(intake: FakeIntake, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_keys: Keys, _names: Iterable[str]) -> dict[str, str]:
        raise ValueError("no look")

    async def run() -> list[str | BaseException | None]:
        async with AsyncClient(intake.url, timeout=5) as client:
            return list(await asyncio.gather(client.find_key("a"), client.find_key("b"), return_exceptions=True))

    monkeypatch.setattr(Keys, "find_all", fail)
    assert [str(each) for each in asyncio.run(run())] == ["no look", "no look"]


def test_keys_without_a_usable_file_are_found_in_memory(tmp_path: Path) -> None:
    (tmp_path / "no-folder").write_text("a file")
    keys = Keys(tmp_path / "no-folder" / "keys")
    made = keys.make(["r1", "r2"])
    assert keys.find_all(["r2", "r3", "r1"]) == made
