"""The forms in which a plain producer may send a document, and the message for a refused one."""

from typing import Any

import pytest

from scheduler.model.command_schemas import SCHEMAS
from scheduler.model.validation import Fault, InvalidInputError
from scheduler.protocol.names import QUEUE_NAMES
from tasks.messages import conceal
from tasks.requests import describe_arguments
from tasks.reservations import NAME, read_request

DOCUMENT: dict[str, Any] = {"id": "r1", "pool": "linux", "resources": {"cpus": 1}}


@pytest.mark.parametrize(
    ("arguments", "named"), [([DOCUMENT], {}), ([], {NAME: DOCUMENT}), ([], DOCUMENT)], ids=["args", NAME, "fields"]
)
def test_a_document_without_a_request_has_the_id_of_its_message(arguments: list[Any], named: dict[str, Any]) -> None:
    assert read_request(arguments, named, "m1") == {**DOCUMENT, "request": "m1"}
    own = {**DOCUMENT, "request": "q1"}
    assert read_request([own], {}, "m1") == own
    assert DOCUMENT.keys() == {"id", "pool", "resources"}


@pytest.mark.parametrize("junk", [None, 7, "r1", [DOCUMENT], []])
def test_a_body_that_is_no_document_is_left_to_its_reader(junk: object) -> None:
    assert read_request([junk], {}, "m1") == junk
    assert read_request([], {NAME: junk}, "m1") == junk


@pytest.mark.parametrize(
    ("arguments", "named", "line"),
    [
        ([], {}, "args: expected one document, got no arguments"),
        ([{}, {}], {}, "args: expected one document, got 2 arguments"),
        ([{}], {NAME: {}}, 'kwargs: expected no keyword arguments beside a positional one, got ["document"]'),
        ([{}], {"id": "r1"}, 'kwargs: expected no keyword arguments beside a positional one, got ["id"]'),
        (
            [],
            {NAME: {}, "id": "r1", "pool": "p"},
            'kwargs: expected no keyword argument beside document, got ["id", "pool"]',
        ),
    ],
)
def test_other_arguments_are_refused(arguments: list[Any], named: dict[str, Any], line: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        read_request(arguments, named, "m1")
    assert str(caught.value) == line


def test_no_document_has_a_field_of_the_name_that_holds_a_whole_one() -> None:
    assert not [verb for verb, model in SCHEMAS.items() if NAME in model.model_fields]


def test_a_token_in_a_keyword_document_is_not_shown() -> None:
    shown = describe_arguments([{NAME: {"token": 987654, "request": "q"}}])
    assert "987654" not in shown
    assert shown == '{"request": "q"}'


@pytest.mark.parametrize(
    ("fault", "got"),
    [
        # the body, where it is harmless
        (Fault("resources.cpus", "a number >= 0", '"two"'), '"two"'),
        (Fault("headers.task", "a task of the queue ticks", '"os.system"'), '"os.system"'),
        (Fault("body", "at most 33554432 bytes", "33554433 bytes"), "33554433 bytes"),
        # secrets
        (Fault("token", "the current token of r1", "987654"), "***"),
        (Fault("items[3].token", "a whole number", "987654"), "***"),
        (Fault("reply_to", "a text", '"leasehold:leader"'), "***"),
        (Fault("tags.api_secret", "a text", "987654"), "***"),
        (Fault("tags.url", "a text", '["redis://me:987654@host"]'), '["redis://me:***@host"]'),
        # the message itself, or its body
        (Fault(".", "JSON", '"password 987654" (90 characters)'), "a text (90 characters)"),
        (Fault(".", "JSON", '"password 987654"'), "a text"),
        (Fault("body", "[arguments, named arguments, links]", '[["987654"]]'), "a list"),
        (Fault("body[2]", "no links to other tasks", '{"a": "987654"}'), "an object"),
    ],
)
def test_a_refused_message_is_shown_without_secrets_and_without_its_body(fault: Fault, got: str) -> None:
    assert conceal(fault) == got


def test_the_counted_queues_are_all_queues() -> None:
    assert set(QUEUE_NAMES) == set(QUEUE_NAMES)
