"""Celery's Redis transport with a door: what is on our queues and is no task message of ours goes no further.

kombu and Celery end the worker over an envelope that lacks a field (tried: a worker exits over one line that is
not JSON). Here such a message is named in a log line and thrown away; it was taken off its list already.

What has expired is left here too. Celery would take note of each, discard it and acknowledge it, in several round
trips; a worker that comes back to a thousand old ticks and sweeps would be busy with them for longer than it was away.

And with one client of Redis for each pool of connections: kombu makes one for every command (a millisecond each,
several for every message: a third of what a worker's main process did).
"""

import time
from functools import cache
from itertools import count
from typing import Any

from kombu.transport import redis
from kombu.utils.json import dumps
from redis.exceptions import ResponseError

from leasehold.common.signing import BODY_SHA256, hash_body
from scheduler.model.validation import Fault, InvalidInputError, show
from scheduler.view.addresses import DEFAULT_PREFIX
from scheduler.view.set_aside import BROKER_TYPES, set_aside
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
_CLOSED = "the channel was closed"
_SENTENCE = "A message that is no task of this queue was thrown away."


@cache
def _known_tasks(queue: str) -> frozenset[str]:
    """The tasks that travel on this queue. Asked for when the first message comes: all are registered then."""
    from tasks.app import app  # noqa: PLC0415 - the app names this module as its transport

    return frozenset(name for name in app.tasks if name.startswith(f"{PREFIX}.{queue}."))


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
        delivery = message.delivery_info
        kept = dumps([message._raw, delivery["exchange"], delivery["routing_key"]])  # noqa: SLF001 - as kombu does
        try:
            self._note(delivery_tag, kept)
        except ResponseError:
            if not self.channel.set_aside_wrong_keys():
                raise
            self._note(delivery_tag, kept)
        super(redis.QoS, self).append(message, delivery_tag)

    def _note(self, delivery_tag: str, kept: str) -> None:
        with self.pipe_or_acquire() as pipe:
            pipe.zadd(self.unacked_index_key, {delivery_tag: _read_clock()})
            pipe.hset(self.unacked_key, delivery_tag, kept).execute()

    def restore_visible(self, start: int = 0, num: int = 10, interval: int = 10) -> None:
        """Give back to their queues the messages that were noted longer ago than the visibility timeout. Kombu counts
        from the wall clock: the timeout that it is given here makes up for the difference.
        """
        expired.report()
        self.channel.set_aside_wrong_keys()
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

    def set_aside_wrong_keys(self) -> bool:
        """Rename the keys of the broker that have a wrong type; whether there were any."""
        prefix = self.connection.client.transport_options.get(PREFIX_OPTION, DEFAULT_PREFIX)
        # Not on the connection of `client`: it may be waiting for a message.
        found = set_aside(self._create_client(), prefix, BROKER_TYPES)
        for each in found:
            log.error(
                "A key of the broker had a wrong type. It was set aside.",
                action="broker.key_set_aside",
                key=each.key,
                found=each.found,
            )
        return bool(found)

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
