"""A canary task for each queue: its answer shows that a worker consumes the queue and reaches Redis.

An answer to Celery's ping shows neither, so health checks use the canary.
"""

import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from scheduler.model.principals import Principal
from scheduler.model.validation import InvalidInputError
from scheduler.ports import StoreUnavailableError
from scheduler.protocol.names import CANARY, QUEUE_NAMES, task_name
from tasks.app import app
from tasks.base import LeaseholdTask


class CanaryTask(LeaseholdTask):
    """Base class of the canary tasks, which only answer, so that health checks see that a worker consumes the queue.
    While the database is unreachable, a canary task answers every message, because no signature can be verified then.
    """

    abstract = True
    roles = frozenset({"worker", "operator", "reader"})

    def verify(self) -> Principal | None:
        """Return the principal that sent the message; None for an unsigned message, if `access.mode` allows it, and for
        every message while the database is unreachable.
        """
        with suppress(StoreUnavailableError):
            return super().verify()
        return None

    def answer_refused(self, args: Sequence[Any], kwargs: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        """Send `answer` to the sender of a refused canary message, if the message names an address for answers."""
        with suppress(InvalidInputError):
            (reply_to,), _ = self.read_arguments(args, kwargs)
            self.services.ports.notifier.reply(reply_to, answer)


def _register(queue: str) -> None:
    def answer(reply_to: str) -> str:
        content = {"ok": True, "queue": queue, "host": socket.gethostname(), "pid": os.getpid()}
        app.services.ports.notifier.reply(reply_to, content)
        return "sung"

    app.task(name=task_name(queue, CANARY), base=CanaryTask, needs_membership=False)(answer)


for _queue in QUEUE_NAMES:
    _register(_queue)
