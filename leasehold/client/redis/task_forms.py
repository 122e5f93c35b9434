"""The messages of a client, in the form in which Celery and kombu write them. A client imports neither, because the
import takes longer than most commands run.
"""

import base64
import json
import os
import socket
from typing import Any
from uuid import uuid4

import msgspec

from scheduler.protocol.task_messages import MessageWriter, Signer


def make_writer(signer: Signer | None) -> MessageWriter:
    """Return a writer of messages for tasks of the stack. `signer` signs each message; None: messages are not
    signed.
    """
    return MessageWriter(_write_form, _dumps, signer)


def _dumps(content: Any) -> str:
    return json.dumps(content, default=msgspec.to_builtins)


def _write_form(task: str, queue: str) -> dict[str, Any]:
    """Return the message without arguments that Celery sends for this task."""
    # tests/client/test_foreign_celery.py compares both.
    links = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
    name = str(uuid4())
    return {
        "body": base64.b64encode(_dumps([[], {}, links]).encode()).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {
            "lang": "py",
            "task": task,
            "id": name,
            "shadow": None,
            "eta": None,
            "expires": None,
            "group": None,
            "group_index": None,
            "retries": 0,
            "timelimit": [None, None],
            "root_id": name,
            "parent_id": None,
            "argsrepr": "",
            "kwargsrepr": "{}",
            "origin": f"gen{os.getpid()}@{socket.gethostname()}",
            "ignore_result": True,
            "replaced_task_nesting": 0,
            "stamped_headers": None,
            "stamps": {},
        },
        "properties": {
            "correlation_id": name,
            "reply_to": str(uuid4()),
            "delivery_mode": 2,
            # The default exchange writes to the list directly and needs no binding, which a flush could remove.
            "delivery_info": {"exchange": "", "routing_key": queue},
            "priority": 0,
            "body_encoding": "base64",
            "delivery_tag": str(uuid4()),
        },
    }
