"""Cluster time for processes without a database connection: the time of Redis plus the offset that the leader
publishes.

    <prefix>clock     string  cluster time minus the time of Redis, in seconds; written by every tick
    <prefix>clocks    hash    "<process> <host>" -> JSON of [its wall clock minus cluster time in seconds, when it was
                              measured]; entries older than KEPT_SECONDS are ignored, and deleted by other processes

Redis is read when the clock is first used, and then in the background. Between two readings, and while Redis does not
answer, the monotonic clock continues the time.
"""

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, cast

import msgspec
import redis

from scheduler.protocol.clock import PublishedClock, list_gone
from scheduler.protocol.names import DEFAULT_PREFIX, RedisNames

LOOK_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 1.0
"""Seconds before Redis is read again, if Redis has never answered or disagrees with the monotonic clock of this
process.
"""
_FAILURES: Final = (redis.RedisError, ValueError)


class RedisClock:
    """The clock of a process without a database connection: cluster time, read from Redis. Thread-safe. A forked
    process gets a clock of its own.

    `client` None: no Redis is configured, and the clock returns the wall clock of this host. `process`: the name under
    which this process publishes how much its wall clock differs from cluster time; "": nothing is published.
    """

    def __init__(
        self,
        client: redis.Redis | None,
        prefix: str = DEFAULT_PREFIX,
        *,
        process: str = "",
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._client, self._wall, self._process = client, wall, process
        self._published, self._offsets = RedisNames(prefix).clock, RedisNames(prefix).clocks
        self._clock = PublishedClock(self._read, wall=wall)
        self._guard = threading.Lock()
        self._looker: threading.Thread | None = None

    def now(self) -> float:
        """Return cluster time in seconds since the epoch. Until Redis has answered once, this is the wall clock of this
        host.
        """
        if self._looker is None and self._client is not None:
            self._start()
        return self._clock.now() if self._clock.has_looked else self._wall()

    @property
    def offset(self) -> float:
        """Cluster time minus the wall clock of this host, in seconds."""
        return self.now() - self._wall()

    def look(self) -> float:
        """Read the time from Redis now, and return cluster time. If Redis does not answer, return the last known time,
        continued by the monotonic clock.
        """
        if self._client is not None:
            with suppress(*_FAILURES):
                self._clock.look()
                self._note(self._client)
        return self._clock.now() if self._clock.has_looked else self._wall()

    def _start(self) -> None:
        with self._guard:
            if self._looker is not None:
                return
            self.look()
            self._looker = threading.Thread(target=self._look_again, name="leasehold-clock", daemon=True)
            self._looker.start()

    def _look_again(self) -> None:
        while True:
            is_sure = self._clock.has_looked and not self._clock.is_in_doubt
            time.sleep(LOOK_SECONDS if is_sure else RETRY_SECONDS)
            self.look()

    def _read(self) -> tuple[float, bytes | None]:
        client = cast("redis.Redis", self._client)
        with client.pipeline(transaction=True) as pipeline:
            pipeline.time()
            pipeline.get(self._published)
            (seconds, microseconds), published = pipeline.execute()
        return seconds + microseconds / 1e6, published

    def _note(self, client: redis.Redis) -> None:
        if self._process:
            field = f"{self._process} {socket.gethostname()}"
            now = self._clock.now()
            client.hset(self._offsets, field, msgspec.json.encode((self._wall() - now, now)))
            if gone := list_gone(cast("dict[bytes, bytes]", client.hgetall(self._offsets)), now):
                client.hdel(self._offsets, *gone)
