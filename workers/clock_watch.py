"""Compare the wall clocks of all processes with cluster time, for the metrics and for `leasehold doctor`."""

import socket
from typing import cast

import redis

from scheduler.protocol.clock import ProcessOffset, read_offsets
from scheduler.protocol.names import RedisNames
from scheduler.view.connection import redis_errors
from scheduler.view.redis_clock import RedisClock


class ClockWatch:
    """Reads the clock offsets that all processes publish in Redis, and adds the offset of this process. An offset is
    the wall clock minus cluster time.
    """

    def __init__(self, client: redis.Redis, prefix: str, clock: RedisClock, process: str = "metrics") -> None:
        self._client, self._prefix, self._clock, self._process = client, prefix, clock, process

    @redis_errors()
    def read(self) -> list[ProcessOffset]:
        """Return the clock offset (wall clock minus cluster time) of each live process of all hosts. Raises
        ViewUnavailableError if Redis is unavailable.
        """
        stored = cast("dict[bytes, bytes]", self._client.hgetall(RedisNames(self._prefix).clocks))
        found = read_offsets(stored, self._clock.now())
        return [*found, ProcessOffset(self._process, socket.gethostname(), -self._clock.offset)]
