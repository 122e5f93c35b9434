"""The body of a message is JSON in UTF-8, whatever its tables contain."""

import base64
import json
from typing import Any

import pytest

from leasehold.common.names import RESERVATIONS
from scheduler.model.validation import InvalidInputError
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
