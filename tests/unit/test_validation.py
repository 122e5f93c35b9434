"""Input from outside: durations, and faults that stay short, printable and free of passwords."""

import pytest

from scheduler.model.command_schemas import ReservationDocument
from scheduler.model.rules import read_rules
from scheduler.model.validation import (
    MOST_FAULTS,
    Document,
    ExpectedError,
    InvalidInputError,
    LabelMap,
    parse_duration,
    read_document,
    show,
)


def refusal(document: object) -> list[str]:
    with pytest.raises(InvalidInputError) as caught:
        read_rules(document)
    return str(caught.value).split("\n")


def test_a_huge_whole_number_is_refused_not_overflowed() -> None:
    assert refusal({"pools": {"linux": {"system": "x", "max_slots": 2, "resources": {"cpus": 10**400}}}})[0].startswith(
        "config.pools.linux.resources.cpus: expected a number >= 0 and at most 1e15, got 1000"
    )


def test_a_number_too_long_to_print_is_named_by_its_type() -> None:
    assert show(10**5000) == "int"


def test_a_huge_table_is_one_fault() -> None:
    class Labelled(Document):
        labels: LabelMap

    with pytest.raises(InvalidInputError) as caught:
        read_document(Labelled, {"labels": {str(number): 0 for number in range(10_000)}})
    assert [(fault.path, fault.expected) for fault in caught.value.faults] == [("labels", "at most 64 entries")]


def test_no_more_than_a_hundred_faults_are_listed() -> None:
    assert len(refusal({"pools": {f"p{number}": 0 for number in range(1000)}})) == MOST_FAULTS


def test_a_long_path_or_value_is_cut_short() -> None:
    (line,) = refusal({"k" * 1000: "v" * 1000})
    assert line == f'config.{"k" * 60}…: expected a known key, got "{"k" * 59}… (1002 characters)'


def test_a_fault_stays_on_one_line_that_can_be_printed() -> None:
    (line,) = refusal({"two\nlines\u2028\x1b[31m": 1})
    assert line == ('config.two\\nlines\\u2028\\x1b[31m: expected a known key, got "two\\nlines\\u2028\\u001b[31m"')


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("redis://:secret@host:6379/0", '"redis://:***@host:6379/0"'),
        ({"url": "postgresql://me:a/b@c@host/x"}, '{"url": "postgresql://me:***@host/x"}'),
        ("http://host:80/path", '"http://host:80/path"'),
        (float("-inf"), "-inf"),
        (object, "\"<class 'object'>\""),
        ({(1, 2): 3}, "dict"),
    ],
)
def test_what_came_is_shown_short_and_without_passwords(value: object, shown: str) -> None:
    assert show(value) == shown


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (0, 0),
        (1.5, 1.5),
        ("30s", 30),
        ("15m", 900),
        ("1h", 3600),
        ("1h30m", 5400),
        ("250ms", 0.25),
        ("2d", 172_800),
        ("1.5m", 90),
    ],
)
def test_a_duration_is_seconds_or_a_text(text: object, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", "s", "30", " 30s", "30 s", "30s ", "-1s", "1e3s", "30S", "1h-5m", "\u0663s", "9" * 400 + "s", None, True, []],
)
def test_an_invalid_duration_is_refused(text: object) -> None:
    with pytest.raises(ExpectedError, match="a duration >= 0"):
        parse_duration(text)


@pytest.mark.parametrize("value", [0, 0.0, -1, "0s", "0.0m", "s", float("inf"), float("nan"), 1e16, True, []])
def test_a_run_time_is_more_than_zero_and_finite(value: object) -> None:
    document = {"id": "r1", "system": "s", "expected_runtime": value}
    with pytest.raises(InvalidInputError, match=r"^expected_runtime: expected a duration > 0 \(seconds"):
        read_document(ReservationDocument, document)


def test_a_run_time_may_be_a_text() -> None:
    document = {"id": "r1", "system": "s", "expected_runtime": "250ms", "max_runtime": "1h30m"}
    request = read_document(ReservationDocument, document).request
    assert (request.expected_runtime, request.max_runtime) == (0.25, 5400)
