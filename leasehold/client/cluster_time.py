"""The client's clock: cluster time, which is the time of Redis plus an offset that the leader publishes.

All times that the stack sends (`revoke_by`, `expires_at`, ages) are cluster time. The wall clock of this host may be
wrong or jump; between two looks at Redis the time is advanced by the monotonic clock.
"""

import logging
import threading
import time
from typing import Final, cast

import redis

from leasehold.common.clock import PublishedClock, read_monotonic

LOOK_SECONDS: Final = 30.0
"""Between two looks at the reference."""
DOUBT_SECONDS: Final = 1.0
"""Between two looks while the reference disagrees with the time that we have."""
_NEVER: Final = float("-inf")
_log: Final = logging.getLogger("leasehold")


class ClientClock:
    """Cluster time for one client. For any number of threads."""

    def __init__(self, client: redis.Redis, key: str) -> None:
        self._redis, self._key = client, key
        self._clock = PublishedClock(self._read)
        self._guard = threading.Lock()
        self._due = _NEVER
        self._has_warned = False
        self._may_read_offset = True

    def now(self) -> float:
        """Seconds since the epoch. Redis is asked here only if it never was; without an answer it is the wall clock."""
        if self._due == _NEVER:
            self.refresh()
        return self._clock.now() if self._clock.has_looked else time.time()

    def refresh(self) -> None:
        """Ask Redis if it was not asked for a while. Without an answer the time that we have is carried on."""
        with self._guard:
            if read_monotonic() < self._due:
                return
            self._due = read_monotonic() + LOOK_SECONDS
        try:
            self._clock.look()
        except redis.exceptions.NoPermissionError as error:
            self._warn_once(error)
        except (redis.RedisError, ValueError, TypeError):
            # The request or the read for which this was done reports a Redis that does not answer.
            return
        if self._clock.is_in_doubt:
            self._due = read_monotonic() + DOUBT_SECONDS

    def _warn_once(self, error: Exception) -> None:
        if not self._has_warned:
            _log.warning("deadlines follow this host's clock, which may be wrong: Redis refuses its time (%s)", error)
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
            # With the rules of an older users.acl: the time of Redis is the best that this user has.
            self._may_read_offset = False
            return None
