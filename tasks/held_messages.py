"""The messages that a worker has taken and not acknowledged: their records in Redis, their acknowledgements, and how
many of them a worker may have.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any, Final, Self, cast

import msgspec
from kombu.asynchronous import get_event_loop
from kombu.transport import redis
from kombu.utils.json import dumps
from redis.exceptions import ConnectionError, ResponseError, TimeoutError  # noqa: A004 - not those of Python

from scheduler.protocol.names import RESERVATIONS, TICKS
from scheduler.view.connection import ask
from scheduler.view.set_aside import UNACKED
from tasks.current import find_services
from tasks.messages import expired
from tasks.queues import HELD_A_PROCESS, is_small
from workers.logs import get_logger

log = get_logger(__name__)
ACK_SECONDS: Final = 0.005
"""Seconds for which a worker collects acknowledgements, and the records of messages for ticks, before it sends them. So
many of them share one round trip, and the next message of an idle worker does not wait for this round trip.
"""
_NOTE = msgspec.json.Decoder(tuple[dict[str, Any], str, str])
"""Decoder of the record that kombu stores for a message that a worker has taken: envelope, exchange and routing key."""


def _is_readable(note: bytes | None) -> bool:
    """Return whether kombu can restore a message from `note`, its stored record in Redis; also True if there is no
    record.
    """
    try:
        return note is None or bool(_NOTE.decode(note))
    except msgspec.DecodeError:
        return False


class _Written:
    """Stands in for a Redis pipeline: it has the methods with which kombu stores and removes records, and collects
    their commands in `commands`.
    """

    def __init__(self) -> None:
        self.commands: list[tuple[Any, ...]] = []

    def zadd(self, key: str, scores: Mapping[str, float]) -> Self:
        """Collect the command ZADD, which sets the scores of members of a sorted set."""
        return self._add("ZADD", key, *(part for name, score in scores.items() for part in (score, name)))

    def hset(self, key: str, field: str, value: str) -> Self:
        """Collect the command HSET, which sets a field of a hash."""
        return self._add("HSET", key, field, value)

    def zrem(self, key: str, name: str) -> Self:
        """Collect the command ZREM, which removes a member of a sorted set."""
        return self._add("ZREM", key, name)

    def hdel(self, key: str, field: str) -> Self:
        """Collect the command HDEL, which removes a field of a hash."""
        return self._add("HDEL", key, field)

    def _add(self, *command: Any) -> Self:
        self.commands.append(command)
        return self


def read_clock() -> float:
    """Return cluster time, which workers of several hosts share."""
    return find_services().clock.now()


Command = Callable[[Any], object]
"""A command for Redis, as a function that adds it to a pipeline."""


class QoS(redis.QoS):
    """kombu's QoS, the part that tracks the messages that a worker has taken. Changed: the record of a message in Redis
    has the cluster time at which the message was taken.

    kombu uses the wall clock of this host; another host would then restore such a message too early or never.
    """

    channel: Any
    _remove_from_indices: Callable[[str, Any], object]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._large: set[str] = set()
        """Delivery tags of the messages in this worker that are carried out alone. Other messages are gathered:
        several are carried out together.
        """
        self._recorded: str | None = None
        """Delivery tag of the message that is being delivered and whose record is stored already."""
        self._acks: list[Command] = []
        """Commands that acknowledge messages, sent together by the worker's loop at most ACK_SECONDS later."""
        self._unrecorded: dict[str, list[Command]] = {}
        """Delivery tag of a message for a tick -> the commands that store its record. They are sent with the
        acknowledgements. A message that is acknowledged before gets no record.
        """
        self._is_due = False
        """Whether the worker's loop will send acknowledgements and records."""

    def accept_recorded(self, tag: str, deliver: Callable[[], None]) -> bool:
        """Deliver a message whose record is stored already. Return whether this worker now processes the message; False
        if the message was refused or has expired.
        """
        self._recorded = tag
        try:
            deliver()
            return self._recorded is None
        finally:
            self._recorded = None

    def forget(self, tags: Iterable[str]) -> None:
        """Delete the records of messages that were refused or have expired."""
        self._send([partial(self._remove_from_indices, tag) for tag in tags])

    def _send(self, commands: Sequence[Command]) -> None:
        """Send these commands to Redis in one round trip. If a key of the broker has a wrong type, rename it and send
        them again.
        """
        if commands:
            try:
                self._execute(commands)
            except ResponseError:
                self._set_aside()
                self._note_again()
                self._execute(commands)

    def _execute(self, commands: Sequence[Command]) -> None:
        written = _Written()
        for command in commands:
            command(written)
        # Speed: this takes less than half of the CPU time of a pipeline. It is sent again as one if anything fails.
        with suppress(ConnectionError, TimeoutError), self.channel.conn_or_acquire() as client:
            replies = ask(client, [("MULTI",), *written.commands, ("EXEC",)])
            if len(replies) == len(written.commands) + 2 and not any(isinstance(r, Exception) for r in replies[-1]):
                return
        with self.pipe_or_acquire() as pipe:
            for command in commands:
                command(pipe)
            pipe.execute()

    def _send_soon(self) -> None:
        """Send the collected acknowledgements and records after ACK_SECONDS. If the worker's loop does not run, send
        them now.
        """
        loop = get_event_loop()
        if loop is None:
            self._send_collected()
        elif not self._is_due:
            self._is_due = True
            loop.call_later(ACK_SECONDS, self._send_collected)

    def _send_collected(self) -> None:
        """Send all collected acknowledgements and records in one round trip. If the connection is lost, log a warning:
        the messages return to their queues later.
        """
        commands = [*self._acks, *chain.from_iterable(self._unrecorded.values())]
        self._acks, self._unrecorded, self._is_due = [], {}, False
        try:
            self._send(commands)
        except self.channel.connection_errors as error:
            log.warning(
                "Messages cannot be acknowledged; they are restored to their queues later.",
                action="broker.not_acknowledged",
                error=str(error),
            )

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Return unacknowledged messages to their queues when the worker stops, after the acknowledgements and records
        were sent.
        """
        self._send_collected()
        super().restore_unacked_once(stderr)

    @property
    def held(self) -> int:
        """How many messages this worker has taken and not acknowledged."""
        return len(self._delivered or ()) - len(self._dirty or ())

    @property
    def room(self) -> int:
        """How many further messages this worker may take, if they may be gathered (`is_gatherable`)."""
        return (self.can_consume_max_estimate() or 0) if self.can_consume() else 0

    def can_consume(self) -> bool:
        """Return whether this worker may take another message.

        A message that is not gathered (carried out together with others) counts as HELD_A_PROCESS gathered ones, so
        that a worker has no more of such messages than its pool has processes.
        """
        if not super().can_consume():
            return False
        is_gathering = self.prefetch_count >= HELD_A_PROCESS and RESERVATIONS in self.channel.active_queues
        return not is_gathering or len(self._large) * HELD_A_PROCESS < self.prefetch_count

    def append(self, message: Any, delivery_tag: str) -> None:
        """Store a record in Redis of a message that this worker has taken, as kombu does, but with cluster time.

        The record of a message for a tick is stored ACK_SECONDS later, unless the tick has ended by then: the message
        expires long before a record would bring it back, and the periodic tick replaces a lost one.
        """
        if delivery_tag == self._recorded:
            self._recorded = None
        elif message.delivery_info["routing_key"] == TICKS:
            self._unrecorded[delivery_tag] = self._note(message, delivery_tag)
            self._send_soon()
        else:
            self._send(self._note(message, delivery_tag))
        if not is_small(message.headers.get("task"), message.body):
            self._large.add(delivery_tag)
        super(redis.QoS, self).append(message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a message; if the worker's loop runs, ACK_SECONDS later and together with others. If a key of the
        broker has a wrong type, the key is renamed first and the records are stored again.
        """
        self._large.discard(delivery_tag)
        if self._unrecorded.pop(delivery_tag, None) is None:
            self._acks.append(partial(self._remove_from_indices, delivery_tag))
            self._send_soon()
        super(redis.QoS, self).ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:  # noqa: FBT001, FBT002 - kombu's signature
        """Reject a message; with `requeue` it returns to its queue. If a key of the broker has a wrong type, the key is
        renamed and the records are stored again.
        """
        self._large.discard(delivery_tag)
        if delivery_tag in self._unrecorded:
            self._send_collected()
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
        """Return the message with the delivery tag `tag` to its queue. If the stored record of the message cannot be
        read, the record is moved away: kombu would fail on this record, and would not restore later messages.
        """
        with self.channel.conn_or_acquire(client) as found:
            if _is_readable(found.hget(self.unacked_key, tag)):
                super().restore_by_tag(cast("str", tag), client, leftmost)
            else:
                self.channel.set_aside_note(tag.decode(errors="replace") if isinstance(tag, bytes) else tag)

    def _set_aside(self) -> set[str]:
        """Rename the broker's keys that have a wrong type and return their names. If there are none, raise the Redis
        error that is being handled.
        """
        found: set[str] = self.channel.set_aside_wrong_keys()
        if not found:
            raise  # noqa: PLE0704 - called while an error is handled
        return found

    def _note_again(self) -> None:
        """Store the records of this worker's unacknowledged messages in Redis again, and give the present time to
        records of other workers that have no time.

        If a worker dies, a message without a record or a time is not restored.
        """
        for tag, message in (self._delivered or {}).items():
            if tag not in (self._dirty or ()):
                self._execute(self._note(message, tag))
        with self.pipe_or_acquire() as pipe:
            for tag in self.channel.list_noted():
                pipe.zadd(self.unacked_index_key, {tag: read_clock()}, nx=True)
            pipe.execute()

    def _note(self, message: Any, delivery_tag: str) -> list[Command]:
        """Return the commands that store a record of a message that this worker has taken."""
        delivery, taken = message.delivery_info, read_clock()
        kept = dumps([message._raw, delivery["exchange"], delivery["routing_key"]])  # noqa: SLF001 - as kombu does
        return [
            lambda pipe: pipe.zadd(self.unacked_index_key, {delivery_tag: taken}),
            lambda pipe: pipe.hset(self.unacked_key, delivery_tag, kept),
        ]

    def restore_visible(self, start: int = 0, num: int = 10, interval: int = 10) -> None:
        """Return messages to their queues that workers took longer ago than the visibility timeout.

        kombu measures by the wall clock, so the timeout is corrected by the difference of the wall clock from cluster
        time.
        """
        expired.report()
        if self.channel.set_aside_wrong_keys():
            self._note_again()
        # promise: cluster-time-visibility
        self.visibility_timeout = self.channel.visibility_timeout - (read_clock() - time.time())
        super().restore_visible(start, num, interval)
