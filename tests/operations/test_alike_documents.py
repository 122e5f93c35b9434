"""Documents of one list that differ only in their ids are checked once; the result is that of each document alone."""

import math
from typing import Any

import pytest

from scheduler.model.command_schemas import MOST_SHARED, ReservationDocument, ReservationReader
from scheduler.model.validation import InvalidInputError, read_document
from tests.operations.harness import Harness

HASH = "0" * 64
ODD: list[Any] = [
    {"system": "s"},
    {"system": "s", "priority": 1},
    {"system": "s", "priority": 1.0},
    {"system": "s", "priority": True},
    {"system": "s", "ttl": None},
    {"system": "s", "ttl": math.nan},
    {"system": "s", "ttl": "nan"},
    {"system": "s", "priority": 0},
    {"system": "s", "priority": -0.0},
    {"system": "s", "preemptible": True},
    {"system": "s", "preemptible": 1},
    {"system": "s", "tags": {"a": "1"}},
    {"system": "s", "tags": {"a": 1}},
    {"system": "s", "pool": "p"},
    {"pool": "s"},
    {"system": "s", "unknown": 1},
    {5: "s", "system": "s"},
    {"system": "s", "components": [{"name": "a"}]},
    {"system": "s", "components": [{"name": "a", "count": 0}]},
    [],
    "text",
]
IDS: list[Any] = [
    {},
    {"id": "r1"},
    {"id": "r2"},
    {"id": 5},
    {"id": "r3", "key_hash": HASH},
    {"id": "r4", "key_hash": 1},
]


def read(act: Any, item: object) -> object:
    try:
        document = act(item, most=10)
    except InvalidInputError as error:
        return error.faults
    return document, document.model_fields_set, document.request


def test_each_document_of_a_list_is_read_as_if_it_were_alone() -> None:
    reader = ReservationReader()
    for own in (*IDS, *IDS):
        for rest in ODD:
            item = {**own, **rest} if isinstance(rest, dict) else rest
            alone = read(lambda each, most: read_document(ReservationDocument, each, most=most), item)
            assert repr(read(reader.read, item)) == repr(alone), item


def test_documents_that_differ_in_their_ids_only_share_their_request() -> None:
    reader = ReservationReader()
    first, second = (reader.read({"id": name, "system": "s", "tags": {"a": "1"}}, 10) for name in ("r1", "r2"))
    other = reader.read({"id": "r3", "system": "s", "tags": {"a": "2"}}, 10)
    assert first.request is second.request
    assert first.id != second.id
    assert other.request != first.request


def test_a_list_of_different_documents_is_not_compared_without_an_end() -> None:
    reader = ReservationReader()
    for number in range(2 * MOST_SHARED):
        assert reader.read({"id": f"r{number}", "system": "s", "tags": {"n": str(number)}}, 10).tags["n"] == str(number)
    assert len(reader._known) == MOST_SHARED


@pytest.mark.parametrize("number", [0, 1, 2])
def test_one_bad_document_among_alike_ones_is_refused_alone(number: int) -> None:
    harness = Harness()
    items: list[dict[str, Any]] = [{"id": f"r{index}", "system": "x86_64-linux"} for index in range(3)]
    items[number]["priority"] = True
    answer = harness.ask("submit", items=items)
    assert [each["ok"] for each in answer["results"]] == [index != number for index in range(3)]
    assert answer["results"][number]["errors"][0]["index"] == number
    assert {row.id for row in harness.store.find_reservations(limit=10)} == {f"r{i}" for i in range(3) if i != number}
