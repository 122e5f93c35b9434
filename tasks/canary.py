"""A canary for every queue: it answers if, and only if, a worker consumes the queue and reaches Redis.

A worker that answers pings may still consume nothing; so this, and not a ping, is what says that it lives.
"""

import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from scheduler.model.principals import Principal
from scheduler.model.validation import InvalidInputError
from scheduler.ports import StoreUnavailableError
from tasks.app import app, services
from tasks.base import LeaseholdTask
from tasks.queues import CANARY, QUEUE_NAMES, task_name


class CanaryTask(LeaseholdTask):
    """It changes nothing and needs no database: while no signature can be verified, every canary is answered."""

    abstract = True
    roles = frozenset({"worker", "operator", "reader"})

    def verify(self) -> Principal | None:
        """See LeaseholdTask.verify."""
        with suppress(StoreUnavailableError):
            return super().verify()
        return None

    def answer_refused(self, args: Sequence[Any], kwargs: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        """See LeaseholdTask.answer_refused."""
        with suppress(InvalidInputError):
            (reply_to,), _ = self.read_arguments(args, kwargs)
            services.ports.notifier.reply(reply_to, answer)


def _register(queue: str) -> None:
    def sing(reply_to: str) -> str:
        answer = {"ok": True, "queue": queue, "host": socket.gethostname(), "pid": os.getpid()}
        services.ports.notifier.reply(reply_to, answer)
        return "sung"

    app.task(name=task_name(queue, CANARY), base=CanaryTask, needs_membership=False)(sing)


for _queue in QUEUE_NAMES:
    _register(_queue)
