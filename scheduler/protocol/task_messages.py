"""Writes the messages that request tasks, without a connection and without Celery.

For each task, Celery and kombu write one message, which is kept as a template: the form. Each further message is a copy
of the form in which the arguments, ids, times and signatures are replaced. Celery would take four times as long for
each message, and in each new thread it would search all installed packages for result backends.
"""

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol
from uuid import uuid4

MOST_LEVELS: Final = 32
"""Most levels of nested JSON objects and lists in the body of a message, including the three levels of the body
itself.
"""


def is_too_deep(content: object, most: int = MOST_LEVELS) -> bool:
    """Return whether a decoded JSON value has more than `most` levels of nested objects and lists."""
    level: list[Any] = [content]
    for _ in range(most):
        # Speed: in a list of documents most values are texts and numbers, which are only looked at.
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) is dict or type(inner) is list
        ]
        if not level:
            return False
    return True


class Signer(Protocol):
    """Signs messages with the key of their sender."""

    def sign(self, queue: str, headers: Mapping[str, Any], body: bytes) -> Mapping[str, str]:
        """Return the headers that sign a message for this queue."""


class MessageWriter:
    """Writes the messages of one sender as they are put on the Redis list of their queue. Safe for threads and after a
    fork.

    `write_form(task, queue)` returns a message that Celery and kombu have written for the task with the name `task`; it
    is the form (template) of all later messages for this task. `dumps` returns the JSON of a message's body. `signer`
    signs each message; None: messages are not signed.
    """

    def __init__(
        self, write_form: Callable[[str, str], Mapping[str, Any]], dumps: Callable[[Any], str], signer: Signer | None
    ) -> None:
        self._write_form, self._dumps, self._signer = write_form, dumps, signer
        self._forms: dict[tuple[str, str], tuple[Mapping[str, Any], Any, bytes]] = {}

    def write(self, task: str, queue: str, argument: object, shown: str | None, headers: Mapping[str, Any]) -> str:
        """Return the message that requests the task with the name `task`, with one argument, or without arguments if
        `argument` is None.

        `shown`: the text that Flower shows in place of the argument; None: the text in the form (the template message
        that Celery wrote for this task and queue).
        `headers` are added to Celery's own headers.
        """
        form, links, empty = self._forms.get((task, queue)) or self._learn(task, queue)
        message_id = str(uuid4())
        content = empty if argument is None else self._dumps([[argument], {}, links]).encode()
        text = {} if shown is None else {"argsrepr": shown}
        own = {**form["headers"], **text, "id": message_id, "root_id": message_id, **headers}
        if self._signer is not None:
            own |= self._signer.sign(queue, own, content)
        ids = {"correlation_id": message_id, "delivery_tag": str(uuid4())}
        properties = {**form["properties"], **text, **ids}
        body = base64.b64encode(content).decode()
        return json.dumps({**form, "body": body, "headers": own, "properties": properties})

    def _learn(self, task: str, queue: str) -> tuple[Mapping[str, Any], Any, bytes]:
        """Let Celery write the form (the template message) of a task for a queue, and keep it for later messages.

        Return three things: (1) the form, (2) the links to other tasks, which are the third element of the form's body
        `[args, kwargs, links]`, (3) the body of a message without arguments.
        """
        form = self._write_form(task, queue)
        _, _, links = json.loads(base64.b64decode(form["body"]))
        return self._forms.setdefault((task, queue), (form, links, self._dumps([[], {}, links]).encode()))
