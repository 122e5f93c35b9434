"""Celery's Redis transport with a check of messages, cluster time instead of wall clocks, and fewer clients.

Messages that are no task messages of ours are logged and dropped. In kombu and Celery an envelope that lacks a field
ends the worker, even a single line that is not JSON.

Expired messages are dropped here as well. Celery would store, discard and acknowledge each in several round trips; for
a worker that finds a thousand old ticks after a pause that would take longer than the pause.

One client of Redis serves each pool of connections. kombu makes one for every command, at a millisecond each, which was
a third of the work of a worker's main process.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import count
from typing import Any, Final, cast

import msgspec
from kombu.asynchronous import get_event_loop
from kombu.transport import redis
from kombu.utils.json import dumps, loads
from redis.exceptions import ResponseError

from leasehold.common.names import DEFAULT_PREFIX, QUEUE_NAMES, RESERVATIONS, TASK_PREFIX
from leasehold.common.signing import BODY_SHA256, hash_body
from scheduler.model.validation import Fault, InvalidInputError, show
from scheduler.view.connection import load_script
from scheduler.view.set_aside import BROKER_TYPES, UNACKED, set_aside, set_aside_note
from tasks.admission import ARRIVAL, find_admission, read_arrival
from tasks.messages import check_message, describe_message, expired, find_defect, is_expired, report_refused
from tasks.queues import GATHERED_TASKS, HELD_A_PROCESS, MOST_BYTES, is_gatherable
from workers.logs import get_logger

log = get_logger(__name__)
PREFIX_OPTION = "view_prefix"
"""Name of the transport option that contains the prefix of this cluster's keys in Redis."""
_NUMBERS = count(1)
"""Numbers for the messages that this process takes, written into the header ARRIVAL. They are global, because a worker
makes a new transport when it reconnects.
"""
_NOTE = msgspec.json.Decoder(tuple[dict[str, Any], str, str])
"""Decoder of kombu's stored record of a message that a worker has taken: envelope, exchange and routing key."""
MOST_TAKEN: Final = 32
"""The most messages that a worker takes in one round trip."""
_CLOSED = "the channel was closed"
_SENTENCE = "A message that is no task of this queue was dropped."


@cache
def _known_tasks(queue: str) -> frozenset[str]:
    """Return the names of the tasks of this queue. Called with the first message, when all tasks are registered."""
    from tasks.app import app  # noqa: PLC0415 - the app names this module as its transport

    return frozenset(name for name in app.tasks if name.startswith(f"{TASK_PREFIX}.{queue}."))


def _is_readable(note: bytes | None) -> bool:
    """Return whether kombu can restore a message from `note`, its stored record in Redis; also True if there is no
    record.
    """
    try:
        return note is None or bool(_NOTE.decode(note))
    except msgspec.DecodeError:
        return False


def _read_clock() -> float:
    """Return cluster time, which workers of several hosts share."""
    from tasks.app import services  # noqa: PLC0415 - as above

    return services.clock.now()


Command = Callable[[Any], object]
"""A command for Redis, as a function that adds it to a pipeline."""


class QoS(redis.QoS):
    """Stores a record in Redis for each message that a worker is processing, with the cluster time at which the worker
    took the message.

    kombu uses the wall clock of this host; another host would then restore such a message too early or never.
    """

    channel: Any
    _remove_from_indices: Callable[[str, Any], object]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._large: set[str] = set()
        """Delivery tags of the messages in this worker that are not gathered with others."""
        self._joint: list[Command] | None = None
        """Commands that `joined` sends at its end; None: each is sent at once."""
        self._acks: list[Command] = []
        """Commands that acknowledge messages and are sent in the next round of the worker's loop."""

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Send the records of the messages that are taken in this `with` block in one round trip at its end."""
        self._joint = []
        try:
            yield
        finally:
            commands, self._joint = self._joint, None
            self._send(commands)

    def _send(self, commands: Sequence[Command]) -> None:
        """Send these commands to Redis in one round trip, or at the end of `joined`."""
        if self._joint is not None:
            self._joint += commands
        elif commands:
            self._repair_and_retry(lambda: self._execute(commands))

    def _execute(self, commands: Sequence[Command]) -> None:
        with self.pipe_or_acquire() as pipe:
            for command in commands:
                command(pipe)
            pipe.execute()

    def _send_acks(self) -> None:
        """Send all acknowledgements in one round trip. If the connection is lost, the messages are restored later."""
        acks, self._acks = self._acks, []
        try:
            self._send(acks)
        except self.channel.connection_errors as error:
            log.warning("Messages cannot be acknowledged.", action="broker.not_acknowledged", error=str(error))

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Return unacknowledged messages to their queues when the worker stops, after the acknowledgements were
        sent.
        """
        self._send_acks()
        super().restore_unacked_once(stderr)

    @property
    def room(self) -> int:
        """How many more single requests this worker may hold."""
        return (self.can_consume_max_estimate() or 0) if self.can_consume() else 0

    def can_consume(self) -> bool:
        """Return whether this worker takes another message. A message that is not gathered counts as many, so that a
        worker holds no more of them than its pool has processes.
        """
        if not super().can_consume():
            return False
        is_gathering = self.prefetch_count >= HELD_A_PROCESS and RESERVATIONS in self.channel.active_queues
        return not is_gathering or len(self._large) * HELD_A_PROCESS < self.prefetch_count

    def append(self, message: Any, delivery_tag: str) -> None:
        """Store a record in Redis of a message that this worker has taken: as kombu does, but with cluster time."""
        self._send(self._note(message, delivery_tag))
        if not is_gatherable(message.headers.get("task"), message.body):
            self._large.add(delivery_tag)
        super(redis.QoS, self).append(message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a message, together with others if the worker's loop runs. If a key of the broker has a wrong
        type, the key is renamed first and the records are stored again.
        """
        self._large.discard(delivery_tag)
        self._acks.append(lambda pipe: self._remove_from_indices(delivery_tag, pipe))
        loop = get_event_loop()
        if loop is None:
            self._send_acks()
        elif len(self._acks) == 1:
            loop.call_soon(self._send_acks)
        super(redis.QoS, self).ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:  # noqa: FBT001, FBT002 - kombu's signature
        """Reject a message; with `requeue` it returns to its queue. If a key of the broker has a wrong type, the key is
        renamed and the records are stored again.
        """
        self._large.discard(delivery_tag)
        try:
            super().reject(delivery_tag, requeue)
        except ResponseError:
            found = self._set_aside()
            # Redis executes the other commands of a transaction when one fails, so the message may be requeued already.
            is_requeued = requeue and UNACKED not in found
            if is_requeued:
                super(redis.QoS, self).ack(delivery_tag)
            self._note_again()
            if not is_requeued:
                super().reject(delivery_tag, requeue)

    def restore_by_tag(self, tag: bytes | str, client: Any = None, leftmost: bool = False) -> None:  # noqa: FBT001, FBT002 - as above
        """Return the message with the delivery tag `tag` to its queue. If its stored record cannot be read, the record
        is moved away, because kombu would fail on it before it restores later messages.
        """
        with self.channel.conn_or_acquire(client) as found:
            if _is_readable(found.hget(self.unacked_key, tag)):
                super().restore_by_tag(cast("str", tag), client, leftmost)
            else:
                self.channel.set_aside_note(tag.decode(errors="replace") if isinstance(tag, bytes) else tag)

    def _repair_and_retry(self, act: Callable[[], None]) -> None:
        try:
            act()
        except ResponseError:
            self._set_aside()
            self._note_again()
            act()

    def _set_aside(self) -> set[str]:
        """Rename the broker's keys that have a wrong type and return their names. If there are none, raise the Redis
        error that is being handled.
        """
        found: set[str] = self.channel.set_aside_wrong_keys()
        if not found:
            raise  # noqa: PLE0704 - called while an error is handled
        return found

    def _note_again(self) -> None:
        """Store the records of this worker's unacknowledged messages in Redis again, and add a time to records of other
        workers that have none.

        Without a record and a time a message is not restored when its worker dies.
        """
        for tag, message in (self._delivered or {}).items():
            if tag not in (self._dirty or ()):
                self._execute(self._note(message, tag))
        with self.pipe_or_acquire() as pipe:
            for tag in self.channel.list_noted():
                pipe.zadd(self.unacked_index_key, {tag: _read_clock()}, nx=True)
            pipe.execute()

    def _note(self, message: Any, delivery_tag: str) -> list[Command]:
        """Return the commands that store a record of a message that this worker has taken."""
        delivery, taken = message.delivery_info, _read_clock()
        kept = dumps([message._raw, delivery["exchange"], delivery["routing_key"]])  # noqa: SLF001 - as kombu does
        return [
            lambda pipe: pipe.zadd(self.unacked_index_key, {delivery_tag: taken}),
            lambda pipe: pipe.hset(self.unacked_key, delivery_tag, kept),
        ]

    def restore_visible(self, start: int = 0, num: int = 10, interval: int = 10) -> None:
        """Return messages to their queues that workers took longer ago than the visibility timeout.

        kombu measures by the wall clock, so the timeout is corrected by its difference from cluster time.
        """
        expired.report()
        if self.channel.set_aside_wrong_keys():
            self._note_again()
        # promise: cluster-time-visibility
        self.visibility_timeout = self.channel.visibility_timeout - (_read_clock() - time.time())
        super().restore_visible(start, num, interval)


class Channel(redis.Channel):
    """A kombu channel that drops messages that cannot be decoded, keeps one Redis client, and reports its own closing
    as a lost connection.
    """

    QoS = QoS
    connection: Any
    _kept: Any = None
    _take_messages: Any = None

    def _create_client(self, asynchronous: bool = False) -> Any:  # noqa: FBT001, FBT002 - kombu's signature
        """Return the Redis client of this channel. kombu's asynchronous client has a connection of its own. For all
        other uses one client serves, also from several threads: it takes a connection from the pool for each command.
        """
        if asynchronous:
            return super()._create_client(asynchronous=True)  # type: ignore[misc] # the stubs leave it out
        # After a lost connection the channel has a new pool.
        if self._kept is None or self._kept.connection_pool is not self.pool:
            self._kept = super()._create_client()  # type: ignore[misc] # as above
        return self._kept

    def _connparams(self, asynchronous: bool = False) -> Any:  # noqa: FBT001, FBT002 - kombu's signature
        """Return the parameters of a connection to Redis. Raises ConnectionError if the channel is closed: the
        publisher then gets a new channel from kombu and sends the message again.
        """
        if self.connection is None:
            # kombu's method fails with AttributeError. When a connection is lost during a declaration, kombu opens a
            # new channel for the declared object, but the publisher keeps the closed one.
            raise ConnectionError(_CLOSED)
        return super()._connparams(asynchronous)  # type: ignore[misc] # as above

    def set_aside_wrong_keys(self) -> set[str]:
        """Rename the broker's keys in Redis that have a wrong type, and return their names."""
        # Not by the connection of `client`, which may be waiting for a message.
        found = set_aside(self._create_client(), self._prefix, BROKER_TYPES)
        for each in found:
            log.error(
                "A key of the broker had a wrong type. It was set aside.",
                action="broker.key_set_aside",
                key=each.key,
                found=each.found,
            )
        return {each.key for each in found}

    def set_aside_note(self, tag: str) -> None:
        """Move the stored record of the message with this delivery tag, which cannot be read, out of kombu's keys."""
        set_aside_note(self._create_client(), self._prefix, tag)
        sentence = "The note of a message could not be read. It was set aside."
        log.error(sentence, action="broker.key_set_aside", key=UNACKED, found="unreadable", tag=show(tag))

    def list_noted(self) -> list[bytes]:
        """Return the delivery tags of all messages that workers have taken."""
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
        """Take further single requests that wait, as many as this worker may hold, in one round trip."""
        if list(self.active_queues) != [RESERVATIONS]:
            return
        qos = cast("QoS", self.qos)
        count = min(qos.room, MOST_TAKEN)
        if count <= 0:
            return
        if self._take_messages is None or self._take_messages.registered_client is not self._create_client():
            self._take_messages = load_script(self._create_client(), "take_messages")
        try:
            found = self._take_messages(keys=[RESERVATIONS], args=[count, MOST_BYTES, *GATHERED_TASKS])
        except ResponseError as error:
            # The queue has a wrong type, or the user of Redis may not run scripts: kombu takes one message at a time.
            log.debug("Messages are taken one by one.", action="broker.no_script", error=str(error))
            return
        with qos.joined():
            for item in found:
                self._deliver_text(item)

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
        report_refused(next(iter(self.active_queues), ""), "envelope", [found], task="?", message="?")


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
    """Number of message envelopes that were read."""

    def _deliver(self, message: Any, queue: str | None) -> None:
        self.handed_over += 1
        if queue in QUEUE_NAMES:
            try:
                body = check_message(queue, message, _known_tasks(queue))
            except InvalidInputError as error:
                described = describe_message(message)
                log.warning(_SENTENCE, action="message.refused", queue=queue, error=str(error), **described)
                report_refused(
                    queue, find_defect(error), error.faults, task=described["task"], message=described["task_id"]
                )
                return
            # promise: cluster-time-expiry
            if is_expired(message, _read_clock()):
                described = describe_message(message)
                log.info("An expired message was dropped.", action="message.expired", queue=queue, **described)
                expired.note(queue)
                return
            # A sender's limits would override those of the task.
            message["headers"].pop("timelimit", None)
            # The process that runs the task verifies the signature, but gets only the decoded body.
            message["headers"][BODY_SHA256] = hash_body(body)
            message["headers"][ARRIVAL] = next(_NUMBERS)
            if queue == RESERVATIONS and not _admit(message, body):
                return
        super()._deliver(message, queue)
