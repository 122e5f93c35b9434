"""The writer of a client's messages. Celery and kombu write one message for each task. This message is the template for
all later messages of the task. Importing this module imports Celery, which takes long.
"""

from typing import Any

# From the submodules: another thread may be importing the lazy attributes of the packages.
from celery.app.base import Celery
from kombu.connection import Connection
from kombu.entity import Queue
from kombu.messaging import Producer
from kombu.utils.json import dumps

from leasehold.common.task_messages import MessageWriter, Signer


def make_writer(signer: Signer | None) -> MessageWriter:
    """Return a writer of messages for tasks of the stack. `signer` signs each message; None: messages are not
    signed.
    """
    return MessageWriter(_write_form, dumps, signer)


def _write_form(task: str, queue: str) -> dict[str, Any]:
    # Do not make this the current app, so that the producer's tasks keep using their own.
    app = Celery("leasehold-client", broker="memory://", set_as_current=False, fixups=[])
    app.conf.update(
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        task_store_errors_even_if_ignored=False,
    )
    with Connection("memory://") as connection:
        producer: Any = Producer(connection)
        # The default exchange writes to the list directly and needs no binding, which a flush could remove.
        place: Any = Queue(queue, routing_key=queue)
        app.send_task(
            task, args=[], queue=place, declare=[], producer=producer, ignore_result=True, argsrepr="", retry=False
        )
        found: dict[str, Any] = producer.channel._get(queue)  # noqa: SLF001 - the message as it is stored
        return found
