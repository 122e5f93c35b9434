"""The body of a message is JSON in UTF-8, whatever its tables contain."""

import base64
import json
from typing import Any

import pytest
from kombu import serialization
from kombu.utils.json import loads

from scheduler.model.validation import InvalidInputError
from scheduler.protocol.names import RESERVATIONS
from scheduler.protocol.task_messages import MOST_LEVELS
from tasks.messages import check_message

TASK = "leasehold.reservations.submit"
BODY: list[Any] = [[{"id": "r1"}], {}, {}]
PLAIN = json.dumps(BODY)
WITH_TYPE = json.dumps([[{"id": "__type__"}], {}, {}])
"""kombu decodes a text with this name by another way."""


def check(content: bytes) -> None:
    """Check a message with this body, as a worker of the queue `reservations` does."""
    message = {
        "body": base64.b64encode(content).decode(),
        "headers": {"task": TASK, "id": "m1"},
        "properties": {
            "body_encoding": "base64",
            "delivery_info": {"exchange": "", "routing_key": RESERVATIONS},
            "delivery_tag": "t1",
        },
        "content-type": "application/json",
        "content-encoding": "utf-8",
    }
    check_message(RESERVATIONS, message, {TASK})


@pytest.mark.parametrize("text", [PLAIN, WITH_TYPE])
def test_a_body_in_utf_8_is_read(text: str) -> None:
    check(text.encode())


@pytest.mark.parametrize("text", [PLAIN, WITH_TYPE])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-16-le"])
def test_a_body_in_another_encoding_is_refused(text: str, encoding: str) -> None:
    with pytest.raises(InvalidInputError, match="base64 of JSON"):
        check(text.encode(encoding))


@pytest.mark.parametrize("name", ["r1", "__type__"])
def test_bytes_that_are_no_text_are_refused(name: str) -> None:
    content = json.dumps([[{"id": name, "more": "X"}], {}, {}]).encode().replace(b"X", b"\xed\xa0\x80")
    with pytest.raises(InvalidInputError, match="base64 of JSON"):
        check(content)


@pytest.mark.parametrize(
    "text",
    [
        '[1, 1.0, -0.0, 1e400, 123456789012345678901234567890, true, null, "\\u00e9\\ud83d\\ude00", {"a": 1, "a": 2}]',
        '{"__type__": "uuid", "__value__": {"hex": "00000000000000000000000000000001"}}',
        '{"\\u005f_type__": "bytes", "__value__": "x"}',
        '["NaN", NaN, -Infinity]',
    ],
)
def test_celery_decodes_a_body_as_kombu_does(text: str) -> None:
    found = serialization.loads(text.encode(), "application/json", "utf-8", accept={"application/json"})
    assert repr(found) == repr(loads(text))


@pytest.mark.parametrize("text", ["[1", "[1] 2", "[01]", '["\\x"]'])
def test_a_text_that_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="base64 of JSON"):
        check(text.encode())


def test_tables_and_lists_may_be_nested_as_deep_as_the_limit() -> None:
    def nest(levels: int) -> bytes:
        # The body, the list of arguments and the document are three of the levels.
        inner: Any = "text"
        for number in range(levels - 3):
            inner = [inner, 1] if number % 2 else {"a": inner, "b": None}
        return json.dumps([[{"id": inner}], {}, {}]).encode()

    check(nest(MOST_LEVELS))
    with pytest.raises(InvalidInputError, match=f"at most {MOST_LEVELS}"):
        check(nest(MOST_LEVELS + 1))
