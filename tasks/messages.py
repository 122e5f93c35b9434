"""Checks that a message is one of Leasehold's task messages, before Celery gets the message. Celery itself does not
check what it reads.

The format is Celery's message protocol 2 in kombu's envelope on Redis (docs/reference/protocol.md). Parts that our
tasks never have are refused: an ETA (the message would be delivered repeatedly), compression, and links to other tasks.
Time limits are removed: each task has its own, and Celery 5.7.0 adds some to every message of beat.

Refused messages are counted and recorded in Redis, because a worker's main process, which checks all messages, opens no
database; the task `recover` writes the events. Expired messages are counted at most once a second and reported at most
once a minute, because a worker that was paused may find thousands of them.
"""

import base64
import re
import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import msgspec
from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu import serialization
from kombu.exceptions import ContentDisallowed, DecodeError
from kombu.utils import json
from redis import RedisError

from scheduler.model.validation import Fault, InvalidInputError, fault, is_whole_text, show, suggest
from scheduler.ports import Defect, RefusedMessage
from scheduler.protocol.clock import read_monotonic
from scheduler.protocol.masking import MASK, mask_urls
from scheduler.protocol.names import CANARY, task_name
from scheduler.protocol.task_messages import MOST_LEVELS, is_too_deep
from scheduler.view.metric_table import EXPIRED
from tasks.current import find_services
from workers.logs import get_logger, mask_secrets, mask_text
from workers.services import Services

CONTENT_TYPE: Final = "application/json"
MOST_BYTES: Final = 32 * 1024 * 1024
"""Most bytes of a message's body."""
MOST_ID: Final = 200
_MADE_BY_KOMBU: Final = b"__type__"
"""Key of the JSON objects that kombu decodes as values of other types, such as times."""
_NEVER: Final = ("compression", "shadow", "callbacks", "errbacks", "chain", "chord", "stamps", "stamped_headers")


def check_message(queue: str, raw: object, known: Collection[str]) -> bytes:
    """Return the bytes of the message's body, which its signature covers.

    Raises InvalidInputError unless `raw`, from the list of this queue, is a message for one of the `known` tasks.
    """
    envelope = _table(raw, ".")
    _check_headers(queue, _table(envelope.get("headers"), "headers"), known)
    properties = _table(envelope.get("properties"), "properties")
    if not is_whole_text(properties.get("delivery_tag"), MOST_ID):
        raise fault("properties.delivery_tag", f"an id of 1 to {MOST_ID} characters", properties.get("delivery_tag"))
    delivery = _table(properties.get("delivery_info"), "properties.delivery_info")
    for key in ("exchange", "routing_key"):
        if not isinstance(delivery.get(key), str):
            raise fault(f"properties.delivery_info.{key}", "a text", delivery.get(key))
    priority = properties.get("priority")
    if priority is not None and not (isinstance(priority, int) and 0 <= priority <= 9):  # noqa: PLR2004 - Celery's range
        raise fault("properties.priority", "a priority from 0 to 9, or nothing", priority)
    if envelope.get("content-type") != CONTENT_TYPE:
        raise fault("content-type", CONTENT_TYPE, envelope.get("content-type"))
    encoding = envelope.get("content-encoding")
    if not isinstance(encoding, str) or encoding.lower() != "utf-8":
        raise fault("content-encoding", "utf-8", encoding)
    content = _read_body(envelope.get("body"), properties.get("body_encoding"))
    _check_body(_decode(content, properties.get("body_encoding")))
    return content


def find_body(raw: object) -> bytes:
    """Return the bytes of the body of a message that `check_message` refused; b"" if it has no readable body."""
    with suppress(InvalidInputError):
        envelope = _table(raw, ".")
        return _read_body(envelope.get("body"), _table(envelope.get("properties"), "properties").get("body_encoding"))
    return b""


def find_defect(error: InvalidInputError) -> Defect:
    """Return what is wrong with a message that `check_message` refused: "task" for an unknown task name, else
    "envelope".
    """
    return "task" if error.faults[0].path == "headers.task" else "envelope"


def is_expired(raw: Mapping[str, Any], now: float) -> bool:
    """Return whether a message that passed `check_message` has expired at `now`. A time without a zone is in UTC, as
    for Celery.
    """
    instant = maybe_iso8601(raw["headers"].get("expires"))
    return instant is not None and maybe_make_aware(instant).timestamp() <= now


def move_instant(instant: str, seconds: float) -> str:
    """Return the ISO 8601 time `instant`, moved by `seconds`; unchanged if it cannot be read."""
    found = maybe_iso8601(instant)
    return instant if found is None else (maybe_make_aware(found) + timedelta(seconds=seconds)).isoformat()


def describe_message(raw: object) -> dict[str, str]:
    """Return the name of the task and the id of a message, for a log line; "?" for both if the message has no
    headers.
    """
    headers = raw.get("headers") if isinstance(raw, Mapping) else None
    if not isinstance(headers, Mapping):
        return {"task": "?", "task_id": "?"}
    return {"task": show(headers.get("task")).strip('"'), "task_id": show(headers.get("id")).strip('"')}


def _table(value: object, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise fault(path, "a JSON object", value)
    return value


def _check_headers(queue: str, headers: Mapping[str, Any], known: Collection[str]) -> None:
    name, message_id, expires = headers.get("task"), headers.get("id"), headers.get("expires")
    if not isinstance(name, str) or name not in known:
        near = suggest(name, known) if isinstance(name, str) else ""
        raise fault("headers.task", f"a task of the queue {queue}{near}", name)
    if not is_whole_text(message_id, MOST_ID):
        raise fault("headers.id", f"an id of 1 to {MOST_ID} characters", message_id)
    for key in _NEVER:
        if headers.get(key):
            raise fault(f"headers.{key}", "nothing", headers[key])
    # An empty ETA is refused too, because Celery parses it.
    if headers.get("eta") is not None:
        raise fault("headers.eta", "nothing", headers["eta"])
    if expires is not None and not _is_instant(expires):
        raise fault("headers.expires", "an instant in ISO 8601, or nothing", expires)
    if not isinstance(headers.get("retries") or 0, int):
        raise fault("headers.retries", "a whole number, or nothing", headers["retries"])


def _is_instant(value: object) -> bool:
    try:
        return isinstance(value, str) and maybe_iso8601(value) is not None
    except (ValueError, TypeError, AttributeError):
        return False


def _read_body(body: object, encoding: object) -> bytes:
    """Return the bytes of the body, which kombu may have encoded as base64 for Redis. Raises InvalidInputError in these
    cases: `encoding` is another one, the body is not a text, is too long, or is not valid base64.
    """
    if encoding not in (None, "base64"):
        raise fault("properties.body_encoding", "base64, or nothing", encoding)
    if not isinstance(body, str):
        raise fault("body", "a text", body)
    if len(body) > MOST_BYTES:
        raise InvalidInputError([Fault("body", f"at most {MOST_BYTES} bytes", f"{len(body)} bytes")])
    try:
        return body.encode() if encoding is None else base64.b64decode(body)
    except ValueError as error:
        raise _refuse_body(encoding, error) from None


def _decode(content: bytes, encoding: object) -> object:
    """Return the body of a message as the task will read it, decoded from JSON."""
    try:
        return serialization.loads(content, CONTENT_TYPE, "utf-8", accept={CONTENT_TYPE})
    except (ValueError, RecursionError, DecodeError, ContentDisallowed) as error:
        raise _refuse_body(encoding, error) from None


def read_json(content: str | bytes) -> object:
    """Return the value of a JSON text, as kombu's decoder does. Raises ValueError for invalid JSON, and other errors if
    kombu cannot decode an object with the key _MADE_BY_KOMBU.

    Speed: kombu's decoder calls a Python function for each JSON object, to find that key. Texts without the key are
    decoded by a faster decoder. This matters for long lists, which the main process of a worker and a process of its
    pool decode.
    """
    if isinstance(content, bytes) and _MADE_BY_KOMBU not in content and b"\\u" not in content:
        # Python's decoder accepts some texts that this one refuses, such as NaN.
        with suppress(msgspec.DecodeError):
            return msgspec.json.decode(content)
    found: object = json.loads(content)
    return found


# Celery decodes messages by this registry in the main process of a worker and in its pool.
serialization.register("json", json.dumps, read_json, content_type=CONTENT_TYPE, content_encoding="utf-8")


def _refuse_body(encoding: object, error: Exception) -> InvalidInputError:
    return InvalidInputError([Fault("body", "JSON" if encoding is None else "base64 of JSON", show(str(error)))])


def _check_body(content: object) -> None:
    """Check that the decoded body of a message is `[arguments, named arguments, links]`, without links to other tasks
    and not nested too deeply. Raises InvalidInputError if it is not.
    """
    if not isinstance(content, list) or len(content) != 3:  # noqa: PLR2004 - protocol 2
        raise fault("body", "[arguments, named arguments, links]", content)
    arguments, named, links = content
    if not isinstance(arguments, list):
        raise fault("body[0]", "a list of arguments", arguments)
    if not isinstance(named, dict):
        raise fault("body[1]", "an object of named arguments", named)
    if links is not None and (not isinstance(links, dict) or any(links.values())):
        raise fault("body[2]", "no links to other tasks", links)
    if is_too_deep(content):
        raise InvalidInputError([Fault("body", f"at most {MOST_LEVELS} levels of nested objects and lists", "more")])


_HIDDEN: Final = frozenset({"token", "reply_to", "key", "key_hash"})
"""Fields of documents whose values never appear in logs and events, because they are secrets."""
_TYPES: Final = {'"': "a text", "{": "an object", "[": "a list"}


def report_refused(
    services: Services, queue: str, defect: Defect, faults: Sequence[Fault], *, task: str, message: str
) -> None:
    """Count and record a message that was refused without an answer to its sender. A failure of Redis is ignored,
    because the message is refused anyway.
    """
    first = faults[0]
    # Invalid settings were reported at the start.
    with suppress(InvalidInputError, RedisError):
        services.meter.note_refused(
            RefusedMessage(
                at=services.clock.now(),
                queue=queue,
                task=task,
                message=message,
                defect=defect,
                path=mask_text(first.path),
                expected=mask_text(first.expected),
                got=conceal(first),
                more_faults=len(faults) - 1,
            )
        )


def conceal(fault: Fault) -> str:
    """Return the received value (`got`) of a fault as text, with secrets masked. If the value is a part of a message's
    body, the text has only its type and size.
    """
    field = re.split(r"[.\[\]]", fault.path.rstrip("]"))[-1]
    if field in _HIDDEN:
        return MASK
    if fault.path == "." or fault.path.startswith("body"):
        size = re.search(r" \(\d+ characters\)$", fault.got)
        return _TYPES.get(fault.got[:1], fault.got) + (size[0] if size else "")
    return str(mask_secrets(None, "", {field: mask_urls(fault.got)})[field])


log = get_logger(__name__)

COUNT_SECONDS: Final = 1.0
WARN_SECONDS: Final = 60.0
_SENTENCE: Final = (
    "Messages expired before a worker took them: their queue is backed up, or the clock of their sender is behind"
    " (`leasehold doctor` compares the clocks)."
)


class ExpiredMessages:
    """Counts the expired messages that one worker dropped, for the metrics and a warning. Safe for threads."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._uncounted: Counter[str] = Counter()
        self._unreported: Counter[str] = Counter()
        self._counted_at = self._warned_at = float("-inf")

    def note(self, queue: str, task: str) -> None:
        """Record one expired message of this queue that the worker dropped. A canary (a test message) is no such
        message: while a worker starts, canaries are sent again and again, and those before its start expire.
        """
        if task == task_name(queue, CANARY):
            return
        with self._guard:
            self._uncounted[queue] += 1
            self._unreported[queue] += 1
        self.report()

    def report(self) -> None:
        """Write the counts of expired messages to the metrics, at most once a second, and a warning, at most once a
        minute. It is called regularly, so that the last counts are written.
        """
        now = read_monotonic()
        with self._guard:
            counted = self._take_due(self._uncounted, self._counted_at + COUNT_SECONDS, now)
            warned = self._take_due(self._unreported, self._warned_at + WARN_SECONDS, now)
            self._counted_at = now if counted else self._counted_at
            self._warned_at = now if warned else self._warned_at
        for queue, count in counted.items():
            find_services().meter.count(EXPIRED, {"queue": queue}, count)
        for queue, count in warned.items():
            log.warning(_SENTENCE, action="messages.expired", queue=queue, count=count)

    def _take_due(self, counts: Counter[str], due: float, now: float) -> dict[str, int]:
        if now < due:
            return {}
        taken = dict(counts)
        counts.clear()
        return taken


expired: Final = ExpiredMessages()
