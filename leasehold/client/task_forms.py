"""The writer of a client's messages. Celery and kombu write one message for each task. This message is the template for
all later messages of the task. Importing this module imports Celery, which takes long.
"""

from typing import Any

# From the submodules: another thread may be importing the lazy attributes of the packages.
from celery.app.base import Celery
from celery.utils import uuid
from kombu.connection import Connection
from kombu.messaging import Producer
from kombu.utils.json import dumps

from scheduler.protocol.task_messages import MessageWriter, Signer


def make_writer(signer: Signer | None) -> MessageWriter:
    """Return a writer of messages for tasks of the stack. `signer` signs each message; None: messages are not
    signed.
    """
    return MessageWriter(_write_form, dumps, signer)


def _write_form(task: str, queue: str) -> dict[str, Any]:
    # The client runs within programs that use Celery themselves. So this is not the current app, and the loader and the
    # configuration are given, because CELERY_LOADER and CELERY_CONFIG_MODULE name those of the program.
    app = Celery("leasehold-client", set_as_current=False, fixups=[], loader="app")
    # Not by `send_task`: it calls the program's receivers of signals, takes ids from the program's running task, and
    # opens CELERY_BROKER_URL and CELERY_RESULT_BACKEND.
    message = app.amqp.as_task_v2(uuid(), task, reply_to=app.thread_oid, ignore_result=True, argsrepr="")
    with Connection("memory://") as connection:
        producer: Any = Producer(connection)
        # The default exchange writes to the list directly and needs no binding, which a flush could remove.
        producer.publish(
            message.body, routing_key=queue, serializer="json", headers=message.headers, **message.properties
        )
        found: dict[str, Any] = producer.channel._get(queue)  # noqa: SLF001 - the message as it is stored
        return found
