"""Read the lengths of the Celery queues and the ages of their oldest messages from the broker, for the metrics."""

from collections.abc import Callable
from contextlib import suppress
from typing import Final, cast

import msgspec
import redis

from leasehold.common.names import QUEUE_NAMES
from scheduler.view.connection import redis_errors

SENT_AT: Final = "sent_at"
"""The message header with the cluster time of sending, in seconds since the epoch."""
_PRIORITIES: Final = ("", "\x06\x163", "\x06\x166", "\x06\x169")
"""What kombu appends to the name of a queue for each priority: a queue consists of four Redis lists."""


class WaitingMessages(msgspec.Struct, frozen=True):
    """Number of messages that wait in a queue, and age of the oldest one (`oldest_seconds` None: it is unknown)."""

    count: int
    oldest_seconds: float | None


class _Headers(msgspec.Struct):
    sent_at: float | None = None


class _Envelope(msgspec.Struct):
    headers: _Headers = msgspec.field(default_factory=_Headers)


class QueueWatch:
    """Reads the length and the oldest message of each Celery queue. For an oldest message without a time of sending, it
    remembers since when the message is the oldest.

    `clock`: cluster time.
    """

    def __init__(self, client: redis.Redis, clock: Callable[[], float]) -> None:
        self._client, self._clock = client, clock
        self._seen: dict[str, tuple[int, float]] = {}
        """Redis list → the hash of its oldest message, if this message has no time of sending, and since when it is the
        oldest.
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
        return {queue: _add_up([lists[f"{queue}{priority}"] for priority in _PRIORITIES]) for queue in QUEUE_NAMES}

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
        """Return when `message` was sent; if it has no time of sending, return since when it is the oldest of the Redis
        list `key`.
        """
        with suppress(msgspec.MsgspecError):
            sent_at = msgspec.json.decode(message, type=_Envelope).headers.sent_at
            if sent_at is not None:
                self._seen.pop(key, None)
                return sent_at
        known, since = self._seen.get(key, (None, now))
        since = since if known == hash(message) else now
        self._seen[key] = hash(message), since
        return since


def _add_up(lists: list[WaitingMessages]) -> WaitingMessages:
    """Return the waiting messages of a queue, added up from the Redis lists of its priorities."""
    ages = [each.oldest_seconds for each in lists]
    known = [age for age in ages if age is not None]
    return WaitingMessages(sum(each.count for each in lists), max(known) if len(known) == len(ages) else None)
