"""What a worker reports about a task: its events have no arguments and no result, its log lines have a short
description of the arguments.
"""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, cast

from celery.exceptions import InvalidTaskError
from celery.worker.request import Request

from scheduler.protocol.names import RESERVATIONS, TASK_PREFIX
from tasks.admission import ARRIVAL, Admission, find_admission
from tasks.current import find_services
from tasks.messages import expired
from workers.logs import mask_text

MOST_SHOWN: Final = 200
_HIDDEN: Final = frozenset({"token", "reply_to", "key", "key_hash", "run", "tail"})
_NAMES: Final = ("reservation", "id", "slot")


def describe_arguments(arguments: Sequence[object]) -> str:
    """Return the positional arguments of a task as a short text, without secrets. A document is shown by its id."""
    return _cut(", ".join(map(_describe, arguments)))


def _describe(value: object) -> str:
    if isinstance(value, Mapping):
        return _describe_document(value)
    if isinstance(value, str):
        return value
    return json.dumps(value, default=str)


def _describe_document(document: Mapping[str, Any]) -> str:
    if isinstance(document.get("document"), Mapping):
        return _describe_document(document["document"])
    items = document.get("items")
    if isinstance(items, list):
        return f"{len(items)} items"
    found = next((document[name] for name in _NAMES if name in document), None)
    if found is not None:
        return str(found)
    return json.dumps({key: value for key, value in document.items() if key not in _HIDDEN}, default=str)


def _cut(text: str) -> str:
    shown = mask_text(text)
    return shown if len(shown) <= MOST_SHOWN else f"{shown[:MOST_SHOWN]}…"


class ReadableRequest(Request):
    """A task as the worker received it.

    Its events and reports contain no arguments and no result, because Flower shows them and documents may be
    confidential. A message that is no task message raises InvalidTaskError, which the worker logs; Celery's class would
    raise other errors, which end the worker.
    """

    def __init__(self, message: Any, **options: Any) -> None:
        try:
            super().__init__(message, **options)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidTaskError(f"the message is no task message: {error}") from error
        if not isinstance(self.args, list | tuple) or not isinstance(self.kwargs, Mapping):
            raise InvalidTaskError(
                "the message is no task message: expected a list of arguments and an object of named arguments"
            )
        # A process of the pool gets the headers and the body, and decodes the arguments from the body. Celery would
        # send them a second time with the headers, decoded.
        self.request_dict.update(args=(), kwargs={})

    def maybe_expire(self) -> Literal[True] | None:
        """Return True if the message expired, by cluster time, while it waited in this worker, else None. Celery's
        method uses the wall clock of this host.
        """
        expires = cast("datetime | None", self.expires)
        if expires is None or expires.timestamp() >= find_services().clock.now():
            return None
        expired.note(str(self.delivery_info["routing_key"]), str(self.name))
        return True

    @property
    def argsrepr(self) -> str:
        """The text of the positional arguments in Celery's reports. Here: empty, because Celery would show them
        unmasked.
        """
        return ""

    @property
    def kwargsrepr(self) -> str:
        """The text of the named arguments in Celery's reports. Here: empty, because Celery would show them unmasked."""
        return ""

    def cancel(self, pool: Any, signal: int | None = None, emit_retry: bool = True) -> None:  # noqa: FBT001, FBT002 - Celery's signature
        """Give up this running task at a cold shutdown of the worker; its message returns to the queue.

        Tasks in threads cannot be ended and run until their process ends (tasks/threads.py). Celery's method raises
        NotImplementedError for them.
        """
        try:
            super().cancel(pool, signal, emit_retry)
        except NotImplementedError:
            self._announce_cancelled(emit_retry=emit_retry)  # type: ignore[attr-defined] # the stubs leave it out

    def acknowledge(self) -> None:
        """Acknowledge the message after its task has ended in any way, and record that the request left the worker's
        process pool.
        """
        super().acknowledge()
        self._note_left()

    def reject(self, requeue: bool = False) -> None:  # noqa: FBT001, FBT002 - Celery's signature
        """Return the message to its queue (`requeue`) or drop it, and record that the request left the worker's process
        pool.
        """
        super().reject(requeue)
        self._note_left()

    on_left: Callable[[], object] | None = None
    """Called once when the request has left the worker's process pool."""

    def _note_left(self) -> None:
        on_left, self.on_left = self.on_left, None
        if on_left is not None:
            on_left()
        if (admission := self._find_admission()) is not None:
            admission.note_left(self._number)

    @property
    def _number(self) -> str:
        return str(self.request_dict.get(ARRIVAL))

    def _find_admission(self) -> Admission | None:
        return find_admission() if str(self.name).startswith(f"{TASK_PREFIX}.{RESERVATIONS}.") else None

    def info(self, safe: bool = True) -> Any:  # noqa: ARG002, FBT001, FBT002 - Celery's signature
        """Return the description of this task for Celery's remote control, without the task's arguments."""
        return {**super().info(safe=True), "args": self.argsrepr, "kwargs": self.kwargsrepr}

    def send_event(self, type: str, **fields: Any) -> None:  # noqa: A002 - Celery's signature
        """Send Celery's event about this task without the task's result.

        The worker's loop buffers such events and sends them together in its thread. Celery empties the buffer after
        sending, so an event that another thread adds in between would be lost. A thread of the worker's pool therefore
        sends its events at once.
        """
        result = fields.pop("result", None)
        if type == "task-succeeded" and (admission := self._find_admission()) is not None:
            admission.note_result(self._number, str(result))
        events = self.eventer
        if threading.current_thread() is threading.main_thread():
            super().send_event(type, **fields)
        elif events and events.enabled and self.task.send_events:
            events.publish(type, {"uuid": self.id, **fields}, events.producer)
