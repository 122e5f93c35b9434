"""The SQS of the emulator: queues of moto (a mock of AWS) that are fast enough for the events of a thousand machines at
once.

moto examines each message of a queue for each message that it takes or delivers, and two of its threads may change the
list of messages at the same time. EC2 calls must wait while a message is put into a queue, because the emulator sends
events under its lock.
"""

import time
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication
from moto.sqs import models


class EmulatedQueue(models.Queue):
    """An SQS queue that reads the clock once to count its messages, and lets only one thread at a time change its list
    of messages. moto's own queue reads the clock for each message, and may lose a message that is added while another
    message is deleted.
    """

    @property
    def messages(self) -> list[models.Message]:
        """The messages that a call may receive now."""
        now = _read_clock()
        return [each for each in self._messages if each.visible_at < now and each.delayed_until <= now]

    @property
    def approximate_number_of_messages_delayed(self) -> int:
        """The number of messages whose delay has not passed."""
        now = _read_clock()
        return sum(each.delayed_until > now for each in self._messages)

    @property
    def approximate_number_of_messages_not_visible(self) -> int:
        """The number of messages that were received and are neither deleted nor visible again."""
        now = _read_clock()
        return sum(each.visible_at >= now for each in self._messages)

    @property
    def pending_message_groups(self) -> set[str]:
        """The groups of the messages that were received. The set is computed from a copy, because other threads may
        change the messages at the same time.
        """
        return {each.group_id for each in tuple(self._pending_messages) if each.group_id is not None}

    def delete_message(self, receipt_handle: str) -> None:
        """Delete a message. No other message is added at the same time, so that none is lost."""
        with self._messages_lock:
            super().delete_message(receipt_handle)


class Dispatcher(DomainDispatcherApplication):
    """moto's server for all AWS services. It remembers which service a host name belongs to.

    Speed: moto's own server lists a folder for each request to find the service.
    """

    def __init__(self, create_app: Any) -> None:
        super().__init__(create_app)
        self._services: dict[str | None, Any] = {}

    def get_backend_for_host(self, host: str | None) -> Any:
        """Return the name of the service that has this host name."""
        if host not in self._services:
            self._services[host] = super().get_backend_for_host(host)
        return self._services[host]


def install_queues() -> None:
    """Let moto's SQS in this process make queues of the class EmulatedQueue, and look up the retention period of a
    queue once for each message that it delivers.

    moto itself would compute all attributes of the queue for each message.
    """

    def is_kept(backend: Any, queue_name: str, message: Any) -> bool:
        kept_until: float = backend.get_queue(queue_name).message_retention_period + message.sent_timestamp / 1000
        return kept_until > time.time()

    models.Queue = EmulatedQueue  # type: ignore[misc]
    models.SQSBackend.is_message_valid_based_on_retention_period = is_kept  # type: ignore[assignment,method-assign]


def _read_clock() -> float:
    """Return the time in milliseconds since 1970, as moto writes it on messages."""
    return time.time() * 1000
