"""A canary for every queue: it answers if, and only if, a worker consumes the queue and reaches Redis.

A worker that answers pings may still consume nothing; so this, and not a ping, is what says that it lives.
"""

import os
import socket

from tasks.app import app, services
from tasks.queues import CANARY, QUEUE_NAMES, task_name


def _register(queue: str) -> None:
    def sing(reply_to: str) -> str:
        answer = {"ok": True, "queue": queue, "host": socket.gethostname(), "pid": os.getpid()}
        services.engine.bell.reply(reply_to, answer)
        return "sung"

    app.task(name=task_name(queue, CANARY), needs_membership=False)(sing)


for _queue in QUEUE_NAMES:
    _register(_queue)
