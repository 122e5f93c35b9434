"""Celery's Redis transport with a check of messages, cluster time instead of wall clocks, and one Redis client for each
channel.

A message that is none of Leasehold's task messages is logged and dropped. Without this check, an envelope that lacks a
field, or a text that is not JSON, would end the worker.

Expired messages are dropped here as well. Celery would store, discard and acknowledge each in several round trips; for
a worker that finds a thousand old ticks after a pause that would take longer than the pause.
"""

from functools import cache, partial
from itertools import count
from typing import Any, Final, cast

from kombu.transport import redis
from kombu.utils.json import loads
from redis.exceptions import ResponseError

from scheduler.model.validation import Fault, InvalidInputError, show
from scheduler.protocol.kept_client import KeptClient
from scheduler.protocol.names import DEFAULT_PREFIX, QUEUE_NAMES, RESERVATIONS, TASK_PREFIX
from scheduler.protocol.signing import BODY_SHA256, hash_body
from scheduler.view.connection import load_script
from scheduler.view.set_aside import BROKER_TYPES, UNACKED, set_aside, set_aside_note
from tasks.admission import ARRIVAL, find_admission, read_arrival
from tasks.current import find_app, find_services
from tasks.held_messages import QoS, read_clock
from tasks.messages import (
    check_message,
    describe_message,
    expired,
    find_body,
    find_defect,
    is_expired,
    report_refused,
)
from tasks.queues import GATHERED_TASKS, MOST_BYTES
from workers.access import is_signed
from workers.logs import get_logger

log = get_logger(__name__)
PREFIX_OPTION = "view_prefix"
"""Name of the transport option that contains the prefix of this cluster's keys in Redis."""
_NUMBERS = count(1)
"""Numbers for the messages that this process takes, written into the header ARRIVAL. They are global, because a worker
makes a new transport when it reconnects.
"""
MOST_TAKEN: Final = 32
"""The most messages that a worker takes in one round trip."""
_CLOSED = "the channel was closed"
_SENTENCE = "A message that is no task of this queue was dropped."


@cache
def _known_tasks(queue: str) -> frozenset[str]:
    """Return the names of the tasks of this queue. Called with the first message, when all tasks are registered."""
    return frozenset(name for name in find_app().tasks if name.startswith(f"{TASK_PREFIX}.{queue}."))


class Channel(KeptClient, redis.Channel):
    """A kombu channel that drops messages that cannot be decoded, keeps one Redis client, and reports its own closing
    as a lost connection.
    """

    QoS = QoS
    connection: Any
    _take_messages: Any = None

    def _connparams(self, asynchronous: bool = False) -> Any:  # noqa: FBT001, FBT002 - kombu's signature
        """Return the parameters of a connection to Redis. Raises ConnectionError if the channel is closed: the
        publisher then gets a new channel from kombu and sends the message again.
        """
        if self.connection is None:
            # kombu's method fails with AttributeError. When a connection is lost during a declaration, kombu opens a
            # new channel for the declared object, but the publisher keeps the closed one.
            raise ConnectionError(_CLOSED)
        return super()._connparams(asynchronous)  # type: ignore[misc] # the stubs leave it out

    def set_aside_wrong_keys(self) -> set[str]:
        """Rename the broker's keys in Redis that have a wrong type, and return their names."""
        # Not by the connection of `client`, which may be waiting for a message.
        found = set_aside(self._create_client(), self._prefix, BROKER_TYPES)
        for each in found:
            log.error(
                "A key of the broker had a wrong type and was renamed.",
                action="broker.key_set_aside",
                key=each.key,
                found=each.found,
            )
        return {each.key for each in found}

    def set_aside_note(self, tag: str) -> None:
        """Move the stored record of the message with the delivery tag `tag` out of kombu's keys, because the record
        cannot be read.
        """
        set_aside_note(self._create_client(), self._prefix, tag)
        log.error(
            "The stored record of a message could not be read and was moved away.",
            action="broker.key_set_aside",
            key=UNACKED,
            found="unreadable",
            tag=show(tag),
        )

    def list_noted(self) -> list[bytes]:
        """Return the delivery tags of all messages that workers have taken and not acknowledged."""
        return list(self._create_client().hkeys(self.unacked_key))

    @property
    def _prefix(self) -> str:
        return str(self.connection.client.transport_options.get(PREFIX_OPTION, DEFAULT_PREFIX))

    def _put(self, queue: str, message: Any, **options: Any) -> None:
        """Send a message to this queue. If the queue's key in Redis has a wrong type, rename the key and send the
        message to a new queue.
        """
        try:
            super()._put(queue, message, **options)
        except ResponseError:
            if not self.set_aside_wrong_keys():
                raise
            super()._put(queue, message, **options)

    def _brpop_read(self, **options: Any) -> Any:
        before = self.connection.handed_over
        try:
            found = super()._brpop_read(**options)  # type: ignore[misc] # the stubs leave it out
        except ResponseError:
            # An unhandled error would end this worker, and each worker that reads the same key after it.
            if self.connection.handed_over != before or not self.set_aside_wrong_keys():
                raise
            return True
        except (ValueError, RecursionError) as error:
            if self.connection.handed_over != before:
                raise
            self._refuse_unreadable(error)
            return True
        self._take_more()
        return found

    def _take_more(self) -> None:
        """Take further waiting messages that may be gathered (`is_gatherable`), as many as this worker may hold, in one
        round trip.

        A worker that holds only the message just read is idle. It takes no more now, so that a process of its pool gets
        this message without another round trip; if further messages wait, the next one is read at once. A message with
        a list is no such message: its sender has more to send, and has sent it with the list.
        """
        qos = cast("QoS", self.qos)
        if list(self.active_queues) != [RESERVATIONS] or (qos.held <= 1 and not self.connection.has_list):
            return
        count = min(qos.room, MOST_TAKEN)
        if count <= 0:
            return
        if self._take_messages is None or self._take_messages.registered_client is not self._create_client():
            self._take_messages = load_script(self._create_client(), "take_messages")
        keys, arguments = [RESERVATIONS, qos.unacked_key, qos.unacked_index_key], [count, MOST_BYTES, read_clock()]
        try:
            found = self._take_messages(keys=keys, args=[*arguments, *GATHERED_TASKS])
        except ResponseError as error:
            # A key has a wrong type, or the user of Redis may not run scripts: kombu takes one message at a time.
            log.debug(
                "Messages cannot be taken in one round trip; they are taken one by one.",
                action="broker.no_script",
                error=str(error),
            )
            return
        taken = [(tag.decode(), item) for tag, item in zip(found[::2], found[1::2], strict=True)]
        qos.forget([tag for tag, item in taken if not qos.accept_recorded(tag, partial(self._deliver_text, item))])

    def _deliver_text(self, item: bytes) -> None:
        before = self.connection.handed_over
        try:
            self.connection._deliver(loads(item.decode()), RESERVATIONS)  # noqa: SLF001 - as kombu does
        except (ValueError, RecursionError) as error:
            if self.connection.handed_over != before:
                raise
            self._refuse_unreadable(error)

    def _refuse_unreadable(self, error: Exception) -> None:
        found = Fault(".", "JSON", _find_text(error))
        log.warning(_SENTENCE, action="message.refused", error=str(found))
        # kombu does not report which of several lists the text came from; a worker has only one.
        report_refused(find_services(), next(iter(self.active_queues), ""), "envelope", [found], task="?", message="?")


def _find_text(error: Exception) -> str:
    """Return the text of a message that could not be decoded; only the decoder's error still has it."""
    found = getattr(error, "doc", None) or getattr(error, "object", None) or str(error)
    return show(found.decode(errors="replace") if isinstance(found, bytes) else found)


def _admit(message: Any, body: bytes) -> bool:
    admission = find_admission()
    return admission is None or admission.admit(read_arrival(message, body))


class Transport(redis.Transport):
    """Celery's transport on Redis that delivers only messages that passed the check and have not expired."""

    Channel = Channel
    handed_over = 0
    """Number of message envelopes that were read from Redis."""
    has_list = False
    """Whether the message that was read last has a list of documents."""

    def _deliver(self, message: Any, queue: str | None) -> None:
        self.handed_over += 1
        if queue in QUEUE_NAMES:
            try:
                body = check_message(queue, message, _known_tasks(queue))
            except InvalidInputError as error:
                described = describe_message(message)
                log.warning(_SENTENCE, action="message.refused", queue=queue, error=str(error), **described)
                report_refused(
                    find_services(),
                    queue,
                    find_defect(error),
                    error.faults,
                    task=described["task"],
                    message=described["task_id"],
                )
                if queue == RESERVATIONS and (admission := find_admission()) is not None:
                    admission.answer_unreadable(find_body(message), error.faults)
                return
            # promise: cluster-time-expiry
            if is_expired(message, read_clock()):
                described = describe_message(message)
                log.info("An expired message was dropped.", action="message.expired", queue=queue, **described)
                expired.note(queue, str(message["headers"].get("task")))
                return
            # A sender's limits would override those of the task.
            message["headers"].pop("timelimit", None)
            # The process that runs the task verifies the signature, but gets only the decoded body.
            if is_signed(message["headers"]):
                message["headers"][BODY_SHA256] = hash_body(body)
            message["headers"][ARRIVAL] = next(_NUMBERS)
            self.has_list = b'"items"' in body
            if queue == RESERVATIONS and not _admit(message, body):
                return
        super()._deliver(message, queue)
