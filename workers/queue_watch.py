"""Read the length of each Celery queue and the age of its oldest message from the broker, for the metrics."""

from collections.abc import Callable
from contextlib import suppress
from typing import Final, cast

import msgspec
import redis

from scheduler.protocol.names import QUEUE_NAMES
from scheduler.view.connection import redis_errors

SENT_AT: Final = "sent_at"
"""Header of a message with the time at which the message was sent, as cluster time in seconds since the epoch."""
_PRIORITIES: Final = ("", "\x06\x163", "\x06\x166", "\x06\x169")
"""Endings that kombu appends to the name of a queue, one for each priority. A queue therefore consists of four Redis
lists.
"""


class WaitingMessages(msgspec.Struct, frozen=True):
    """The messages that wait in a queue: their number, and the age in seconds of the oldest one (0: no message waits;
    None: the age is unknown).
    """

    count: int
    oldest_seconds: float | None


class _Headers(msgspec.Struct):
    sent_at: float | None = None


class _Envelope(msgspec.Struct):
    headers: _Headers = msgspec.field(default_factory=_Headers)


def read_sent_at(message: bytes) -> float | None:
    """Return the sending time of a message as it is stored in Redis; None if it has none or cannot be read."""
    with suppress(msgspec.MsgspecError):
        return msgspec.json.decode(message, type=_Envelope).headers.sent_at
    return None


class QueueWatch:
    """Reads the length and the oldest message of each Celery queue. If the oldest message has no sending time, its age
    counts from the moment at which it was first seen as the oldest.

    `clock` returns cluster time.
    """

    def __init__(self, client: redis.Redis, clock: Callable[[], float]) -> None:
        self._client, self._clock = client, clock
        self._seen: dict[str, tuple[int, float]] = {}
        """Redis list whose oldest message has no sending time → (hash of this message, time since which it is known as
        the oldest).
        """

    @redis_errors()
    def read(self) -> dict[str, WaitingMessages]:
        """Return the number of waiting messages and the age of the oldest one, by queue.

        Raises ViewUnavailableError if the broker's Redis is unavailable.
        """
        keys = [f"{queue}{priority}" for queue in QUEUE_NAMES for priority in _PRIORITIES]
        with self._client.pipeline(transaction=False) as pipeline:
            for key in keys:
                pipeline.llen(key)
                # Producers push at the head, and workers take from the tail: the last message is the oldest.
                pipeline.lindex(key, -1)
            answers = pipeline.execute(raise_on_error=False)
        now = self._clock()
        pairs = zip(keys, answers[::2], answers[1::2], strict=True)
        lists = {key: self._measure(key, count, message, now) for key, count, message in pairs}
        found = {}
        for queue in QUEUE_NAMES:
            own = [lists[f"{queue}{priority}"] for priority in _PRIORITIES]
            ages = [each.oldest_seconds for each in own if each.oldest_seconds is not None]
            # The age of the oldest message is known only if each list of the queue could be read.
            oldest = max(ages) if len(ages) == len(own) else None
            found[queue] = WaitingMessages(sum(each.count for each in own), oldest)
        return found

    def _measure(self, key: str, count: object, message: object, now: float) -> WaitingMessages:
        if isinstance(count, redis.RedisError):
            raise count
        if isinstance(message, redis.RedisError):
            # This Redis user may count messages but not read them.
            return WaitingMessages(cast("int", count), None)
        if message is None:
            self._seen.pop(key, None)
            return WaitingMessages(cast("int", count), 0.0)
        return WaitingMessages(cast("int", count), max(now - self._find_start(key, cast("bytes", message), now), 0.0))

    def _find_start(self, key: str, message: bytes, now: float) -> float:
        """Return the sending time of `message`, the oldest message of the Redis list `key`. If the message has no
        sending time, return the time since which it is known as the oldest one.
        """
        if (sent_at := read_sent_at(message)) is not None:
            self._seen.pop(key, None)
            return sent_at
        known, since = self._seen.get(key, (None, now))
        since = since if known == hash(message) else now
        self._seen[key] = hash(message), since
        return since
