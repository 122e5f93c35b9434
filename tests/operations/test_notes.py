"""Notes in the answer to an accepted request: fields without effect in its queue, and fields of a known id."""

from typing import Any, get_args

import pytest

from scheduler.model.command_schemas import ReservationDocument
from scheduler.model.reservations import Request
from scheduler.model.rules import SchedulerKeys, find_ignored
from scheduler.policy.queueing.order import RANKS
from tests.builders import a_reservation
from tests.operations.harness import CONFIG, NOW, Harness

QUEUES = get_args(SchedulerKeys.model_fields["queue"].annotation)
Fields = dict[str, Any]


def paths(answer: Fields) -> list[str]:
    assert answer["ok"]
    return [note["path"] for note in answer.get("notes", [])]


@pytest.mark.parametrize(
    ("queue", "fields", "ignored"),
    [
        ("fifo", {"priority": 9}, ["priority"]),
        ("fifo", {"account": "ci"}, ["account"]),
        ("fifo", {"priority": 9, "account": "ci"}, ["priority", "account"]),
        ("priority", {"priority": 9, "account": "ci"}, ["account"]),
        ("quota", {"priority": 9, "account": "ci"}, ["priority"]),
        ("size", {"priority": 9}, ["priority"]),
        ("dynsize", {"priority": 9}, ["priority"]),
        # default values, stated or not
        ("fifo", {}, []),
        ("fifo", {"priority": 1, "account": None}, []),
        # on hold works in every queue
        ("fifo", {"priority": 0}, []),
    ],
)
def test_a_field_that_the_queue_ignores_gets_a_note(queue: str, fields: Fields, ignored: list[str]) -> None:
    harness = Harness({**CONFIG, "scheduler": {"queue": queue}})
    answer = harness.submit("r1", **fields)
    assert paths(answer) == ignored
    assert all(f"`{queue}`" in note["text"] for note in answer.get("notes", []))


@pytest.mark.parametrize("queue", QUEUES)
def test_the_note_on_a_priority_is_right_for_every_queue(queue: str) -> None:
    rank = RANKS.get(queue, RANKS["fifo"])
    same = rank(a_reservation("a", priority=9)) == rank(a_reservation("b", priority=1))
    assert ("priority" in find_ignored(queue, priority=9, account=None)) is same


def test_the_queue_of_a_system_counts() -> None:
    pools = {**CONFIG["pools"], "mac": {"system": "arm-mac", "max_slots": 1}}
    harness = Harness({"pools": pools, "scheduler": {"queue": "fifo", "system": {"arm-mac": {"queue": "priority"}}}})
    assert paths(harness.ask("submit", id="r1", system="arm-mac", priority=9)) == []
    assert paths(harness.ask("submit", id="r2", pool="mac", priority=9)) == []
    assert paths(harness.ask("submit", id="r3", pool="linux", priority=9)) == ["priority"]


def test_a_later_priority_that_the_queue_ignores_gets_a_note() -> None:
    harness = Harness()
    harness.submit("r1")
    assert paths(harness.ask("priority", reservation="r1", priority=9)) == ["priority"]
    assert paths(harness.ask("priority", reservation="r1", priority=0)) == []
    assert paths(harness.ask("priority", reservation="r1", priority=1)) == []


@pytest.mark.parametrize(
    ("first", "second", "differing"),
    [
        ({}, {}, []),
        # a stated default is equal to a missing field
        ({}, {"ttl": None, "priority": 1, "labels": {}, "components": []}, []),
        ({"components": [{"name": "main", "resources": {"cpus": 2}}]}, {"resources": {"cpus": 2}}, []),
        ({"resources": {"cpus": 2}}, {"resources": {"cpus": 2.0}}, []),
        ({"ttl": "15m"}, {"ttl": 900}, []),
        ({"resources": {"cpus": 2}}, {"resources": {"cpus": 3}}, ["resources"]),
        ({"resources": {"cpus": 2}}, {"components": [{"name": "a"}]}, ["components"]),
        ({"tags": {"a": "b"}, "ttl": 60}, {"tags": {}, "ttl": 61}, ["ttl", "tags"]),
        ({"priority": 2}, {}, ["priority"]),
        ({"on_end": {"task": "t", "queue": "q"}}, {}, ["on_end"]),
        ({"key_hash": "0" * 64}, {"key_hash": "0" * 64}, []),
        ({"key_hash": "0" * 64}, {"key_hash": "1" * 64}, ["key_hash"]),
        # the stored reservation has no key, so none is needed
        ({}, {"key_hash": "1" * 64}, []),
    ],
)
def test_a_known_id_keeps_its_first_request_and_the_notes_name_the_differences(
    first: Fields, second: Fields, differing: list[str]
) -> None:
    harness = Harness({**CONFIG, "scheduler": {"queue": "priority"}})
    assert paths(harness.submit("r1", **first)) == []
    before = harness.store.find_reservations()
    harness.restart()
    answer = harness.submit("r1", **second)
    assert paths(answer) == differing
    assert all("r1 exists already" in note["text"] for note in answer.get("notes", []))
    assert harness.store.find_reservations() == before


def test_every_field_of_a_document_is_compared() -> None:
    kept = {*Request.__struct_fields__, "id", "priority", "resources", "key_hash", "run"}
    assert set(ReservationDocument.model_fields) == kept


def test_an_id_twice_in_a_list_is_reported_for_the_second() -> None:
    items = [{"id": "r1", "system": "x86_64-linux", "size": size} for size in (1, 2, 1)]
    answer = Harness().ask("submit", items=items)
    assert [paths(each) for each in answer["results"]] == [[], ["size"], []]
    assert answer["results"][1]["notes"][0]["text"].endswith("in which this field is 1")


def test_a_repeat_of_the_request_gets_the_same_notes() -> None:
    harness = Harness()
    answer = harness.submit("r1", request="q1", account="ci")
    harness.now = NOW + 60
    assert harness.submit("r1", request="q1", account="ci") == answer
    assert paths(answer) == ["account"]
