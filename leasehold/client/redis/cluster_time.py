"""The clock of a client. It returns cluster time: the time of Redis plus an offset that the leader publishes.

All times that the stack sends (`revoke_by`, `expires_at`, ages) are cluster time. The wall clock of this host may be
wrong or jump. Between two readings of Redis, the monotonic clock continues the time.
"""

import logging
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, cast

import redis

from scheduler.protocol.clock import EXACT_SECONDS, FIRST_LOOKS, PublishedClock, read_monotonic

LOOK_SECONDS: Final = 30.0
"""Seconds between two readings of cluster time from Redis."""
DOUBT_SECONDS: Final = 1.0
"""Seconds between two readings of cluster time while the clock is in doubt. The clock is in doubt if the last
reading was not accepted, because it differed too much from the time that the client expected.
"""
_NEVER: Final = float("-inf")
_log: Final = logging.getLogger("leasehold")


class ClientClock:
    """The clock of one client, which returns cluster time. Thread-safe. `key`: the Redis key with the offset that the
    leader publishes: cluster time minus the time of Redis.
    """

    def __init__(self, client: redis.Redis, key: str) -> None:
        self._redis, self._key = client, key
        self._clock = PublishedClock(self._read)
        self._guard = threading.Lock()
        self._due = _NEVER
        self._has_warned = False
        self._may_read_offset = True

    def now(self) -> float:
        """Return cluster time in seconds since the epoch. Only the first call reads Redis. Until Redis has answered
        once, the wall clock of this host is used.
        """
        if self._due == _NEVER:
            self.refresh()
        return self._clock.now() if self._clock.has_looked else time.time()

    @property
    def is_due(self) -> bool:
        """Whether the last reading is so old that `refresh` would read Redis."""
        return read_monotonic() >= self._due

    def refresh(self) -> None:
        """Read cluster time from Redis if the last reading is too old. If Redis does not answer, the monotonic clock
        continues the known time.
        """
        with self._guard:
            if read_monotonic() < self._due:
                return
            self._due = read_monotonic() + LOOK_SECONDS
        try:
            self._clock.look()
        except redis.exceptions.NoPermissionError as error:
            self._warn_once(error)
        except (redis.RedisError, ValueError, TypeError):
            # The request or read that called this reports that Redis does not answer.
            return
        if self._clock.is_in_doubt:
            self._due = read_monotonic() + DOUBT_SECONDS

    async def refresh_by(self, ask: Callable[[list[tuple[str, ...]]], Awaitable[list[Any]]]) -> None:
        """Do what `refresh` does on an event loop. `ask` sends commands to Redis and returns their replies."""
        if read_monotonic() < self._due:
            return
        self._due = read_monotonic() + LOOK_SECONDS
        with suppress(redis.RedisError, ValueError, TypeError):
            is_first = not self._clock.has_looked
            for _ in range(FIRST_LOOKS):
                offset = [("GET", self._key)] if self._may_read_offset else []
                before = read_monotonic()
                *published, reading = await ask([*offset, ("TIME",)])
                after = read_monotonic()
                if isinstance(reading, redis.exceptions.NoPermissionError):
                    if not offset or published:
                        self._warn_once(reading)
                        return
                    self._may_read_offset = False
                    continue
                seconds, microseconds = map(float, reading)
                self._clock.take(seconds + microseconds / 1e6, published[0] if published else None, before, after)
                if not is_first or after - before <= EXACT_SECONDS:
                    break
        if self._clock.is_in_doubt:
            self._due = read_monotonic() + DOUBT_SECONDS

    def _warn_once(self, error: Exception) -> None:
        if not self._has_warned:
            _log.warning(
                "deadlines follow this host's clock, which may be wrong: Redis refuses to return the time (%s)", error
            )
        self._has_warned = True

    def _read(self) -> tuple[float, bytes | None]:
        published = self._read_offset()
        seconds, microseconds = self._redis.time()
        return seconds + microseconds / 1e6, published

    def _read_offset(self) -> bytes | None:
        if not self._may_read_offset:
            return None
        try:
            return cast("bytes | None", self._redis.get(self._key))
        except redis.exceptions.NoPermissionError:
            # An older users.acl does not permit reading the offset. Use the time of Redis without it.
            self._may_read_offset = False
            return None
