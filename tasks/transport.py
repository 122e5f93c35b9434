"""Celery's Redis transport with a door: what is on our queues and is no task message of ours goes no further.

kombu and Celery end the worker over an envelope that lacks a field (tried: a worker exits over one line that is
not JSON). Here such a message is named in a log line and thrown away; it was taken off its list already.

What has expired is left here too. Celery would take note of each, discard it and acknowledge it, in several round
trips; a worker that comes back to a thousand old ticks and sweeps would be busy with them for longer than it was away.

And with one client of Redis for each pool of connections: kombu makes one for every command (a millisecond each,
several for every message: a third of what a worker's main process did).
"""

import time
from collections.abc import Callable
from functools import cache
from itertools import count
from typing import Any, cast

import msgspec
from kombu.transport import redis
from kombu.utils.json import dumps
from redis.exceptions import ResponseError

from leasehold.common.signing import BODY_SHA256, hash_body
from scheduler.model.validation import Fault, InvalidInputError, show
from scheduler.view.addresses import DEFAULT_PREFIX
from scheduler.view.set_aside import BROKER_TYPES, UNACKED, set_aside, set_aside_note
from tasks.admission import ARRIVAL, find_admission, read_arrival
from tasks.expired import expired
from tasks.messages import check_message, describe_message, find_defect, is_expired
from tasks.queues import PREFIX, QUEUE_NAMES, RESERVATIONS
from tasks.refusals import report_refused
from workers.logs import get_logger

log = get_logger(__name__)
PREFIX_OPTION = "view_prefix"
"""The transport's option with what our keys begin with."""
_NUMBERS = count(1)
"""See ARRIVAL. A worker makes another transport when it connects again."""
_NOTE = msgspec.json.Decoder(tuple[dict[str, Any], str, str])
"""The note of a message that a worker holds: its envelope, exchange and routing key."""
_CLOSED = "the channel was closed"
_SENTENCE = "A message that is no task of this queue was thrown away."


@cache
def _known_tasks(queue: str) -> frozenset[str]:
    """The tasks that travel on this queue. Asked for when the first message comes: all are registered then."""
    from tasks.app import app  # noqa: PLC0415 - the app names this module as its transport

    return frozenset(name for name in app.tasks if name.startswith(f"{PREFIX}.{queue}."))


def _is_readable(note: bytes | None) -> bool:
    """Whether kombu can give back the message of this note, or the note is gone."""
    try:
        return note is None or bool(_NOTE.decode(note))
    except msgspec.DecodeError:
        return False


def _read_clock() -> float:
    """Cluster time: workers of several hosts have to agree on it."""
    from tasks.app import services  # noqa: PLC0415 - as above

    return services.clock.now()


class QoS(redis.QoS):
    """Notes with each message that is being worked on since when, by cluster time. Kombu's own takes the wall clock of
    this host, and another host would give such a message to a second worker too early, or never.
    """

    channel: Any

    def append(self, message: Any, delivery_tag: str) -> None:
        """Take note of a message that was handed to this worker: kombu's own, except the score."""
        self._repair_and_retry(lambda: self._note(message, delivery_tag))
        super(redis.QoS, self).append(message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        """A message was dealt with: kombu's own."""
        self._repair_and_retry(lambda: super(QoS, self).ack(delivery_tag))

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:  # noqa: FBT001, FBT002 - kombu's signature
        """A message was not dealt with; `requeue`: it goes back to its queue. Kombu's own."""
        try:
            super().reject(delivery_tag, requeue)
        except ResponseError:
            found = self._set_aside()
            # Redis carries out the other commands of a transaction one of which fails: it may be in its queue already.
            is_requeued = requeue and UNACKED not in found
            if is_requeued:
                super(redis.QoS, self).ack(delivery_tag)
            self._note_again()
            if not is_requeued:
                super().reject(delivery_tag, requeue)

    def restore_by_tag(self, tag: bytes | str, client: Any = None, leftmost: bool = False) -> None:  # noqa: FBT001, FBT002 - as above
        """Give the message of this note back to its queue: kombu's own. A note that cannot be read is set aside: kombu
        would fail on it, or drop it, before any later note.
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
        """Set aside the keys that have a wrong type; these keys. Raises the error that is being handled if there are
        none.
        """
        found: set[str] = self.channel.set_aside_wrong_keys()
        if not found:
            raise  # noqa: PLE0704 - called while an error is handled
        return found

    def _note_again(self) -> None:
        """Note each message that this worker holds, and give a time to each note of the other workers without one: a
        message without both would not be given to another worker when its own one dies.
        """
        for tag, message in (self._delivered or {}).items():
            if tag not in (self._dirty or ()):
                self._note(message, tag)
        with self.pipe_or_acquire() as pipe:
            for tag in self.channel.list_noted():
                pipe.zadd(self.unacked_index_key, {tag: _read_clock()}, nx=True)
            pipe.execute()

    def _note(self, message: Any, delivery_tag: str) -> None:
        delivery = message.delivery_info
        kept = dumps([message._raw, delivery["exchange"], delivery["routing_key"]])  # noqa: SLF001 - as kombu does
        with self.pipe_or_acquire() as pipe:
            pipe.zadd(self.unacked_index_key, {delivery_tag: _read_clock()})
            pipe.hset(self.unacked_key, delivery_tag, kept).execute()

    def restore_visible(self, start: int = 0, num: int = 10, interval: int = 10) -> None:
        """Give back to their queues the messages that were noted longer ago than the visibility timeout. Kombu counts
        from the wall clock: the timeout that it is given here makes up for the difference.
        """
        expired.report()
        if self.channel.set_aside_wrong_keys():
            self._note_again()
        # promise: cluster-time-visibility
        self.visibility_timeout = self.channel.visibility_timeout - (_read_clock() - time.time())
        super().restore_visible(start, num, interval)


class Channel(redis.Channel):
    """Survives what is not even an envelope; keeps its client; a closed one is a lost connection."""

    QoS = QoS
    connection: Any
    _kept: Any = None

    def _create_client(self, asynchronous: bool = False) -> Any:  # noqa: FBT001, FBT002 - kombu's signature
        """Kombu's own clients bind a connection each (`asynchronous`); all others take one from the pool for each
        command, so one of them serves all, threads too.
        """
        if asynchronous:
            return super()._create_client(asynchronous=True)  # type: ignore[misc] # the stubs leave it out
        # After a lost connection the channel has another pool.
        if self._kept is None or self._kept.connection_pool is not self.pool:
            self._kept = super()._create_client()  # type: ignore[misc] # as above
        return self._kept

    def _connparams(self, asynchronous: bool = False) -> Any:  # noqa: FBT001, FBT002 - kombu's signature
        """What to connect with. Raises ConnectionError when the channel was closed: kombu's retries know what to do
        then, and who publishes gets a fresh channel and sends again.
        """
        if self.connection is None:
            # kombu's own says that None has no attribute. A connection that is lost while something is declared
            # leaves a publisher with such a channel: kombu revives what was declared, and not who publishes.
            raise ConnectionError(_CLOSED)
        return super()._connparams(asynchronous)  # type: ignore[misc] # as above

    def set_aside_wrong_keys(self) -> set[str]:
        """Rename the keys of the broker that have a wrong type; these keys."""
        # Not on the connection of `client`: it may be waiting for a message.
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
        """Move a note of a message that cannot be read out of kombu's tables."""
        set_aside_note(self._create_client(), self._prefix, tag)
        sentence = "The note of a message could not be read. It was set aside."
        log.error(sentence, action="broker.key_set_aside", key=UNACKED, found="unreadable", tag=show(tag))

    def list_noted(self) -> list[bytes]:
        """The delivery tags of all messages that workers hold."""
        return list(self._create_client().hkeys(self.unacked_key))

    @property
    def _prefix(self) -> str:
        return str(self.connection.client.transport_options.get(PREFIX_OPTION, DEFAULT_PREFIX))

    def _put(self, queue: str, message: Any, **options: Any) -> None:
        """Send a message; where its queue had a wrong type, to a new queue."""
        try:
            super()._put(queue, message, **options)
        except ResponseError:
            if not self.set_aside_wrong_keys():
                raise
            super()._put(queue, message, **options)

    def _brpop_read(self, **options: Any) -> Any:
        before = self.connection.handed_over
        try:
            return super()._brpop_read(**options)  # type: ignore[misc] # the stubs leave it out
        except ResponseError:
            # A worker would end, and each one that takes its place, too.
            if self.connection.handed_over != before or not self.set_aside_wrong_keys():
                raise
            return True
        except (ValueError, RecursionError) as error:
            if self.connection.handed_over != before:
                raise
            found = Fault(".", "JSON", _find_text(error))
            log.warning(_SENTENCE, action="message.refused", error=str(found))
            # A worker has one queue; which list of several an undecodable text came from, kombu has forgotten.
            report_refused(next(iter(self.active_queues), ""), "envelope", [found], task="?", message="?")
            return True


def _find_text(error: Exception) -> str:
    """What was to be decoded: the error has it, if anything does; kombu has dropped it."""
    found = getattr(error, "doc", None) or getattr(error, "object", None) or str(error)
    return show(found.decode(errors="replace") if isinstance(found, bytes) else found)


def _admit(message: Any, body: bytes) -> bool:
    admission = find_admission()
    return admission is None or admission.admit(read_arrival(message, body))


class Transport(redis.Transport):
    """Hands over what passes the check."""

    Channel = Channel
    handed_over = 0
    """How many envelopes were read."""

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
                log.info("A message came too late.", action="message.expired", queue=queue, **described)
                expired.note(queue)
                return
            # A sender's limits would go before those of the task.
            message["headers"].pop("timelimit", None)
            # The process that runs the task verifies the signature, and sees the decoded body only.
            message["headers"][BODY_SHA256] = hash_body(body)
            message["headers"][ARRIVAL] = next(_NUMBERS)
            if queue == RESERVATIONS and not _admit(message, body):
                return
        super()._deliver(message, queue)
