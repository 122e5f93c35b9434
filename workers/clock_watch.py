"""Compare the wall clocks of all processes and the database with cluster time, for metrics and `leasehold doctor`."""

import socket
from typing import cast

import redis

from leasehold.common.clock import ProcessOffset, read_offsets
from leasehold.common.names import RedisNames
from scheduler.view.connection import redis_errors
from scheduler.view.redis_clock import RedisClock


class ClockWatch:
    """Reads from Redis by how much the wall clock of each process differs from cluster time, and adds this process."""

    def __init__(self, client: redis.Redis, prefix: str, clock: RedisClock, process: str = "metrics") -> None:
        self._client, self._prefix, self._clock, self._process = client, prefix, clock, process

    @redis_errors()
    def read(self) -> list[ProcessOffset]:
        """Return for each live process of all hosts by how much its wall clock differs from cluster time.

        Raises ViewUnavailableError if Redis is unavailable.
        """
        stored = cast("dict[bytes, bytes]", self._client.hgetall(RedisNames(self._prefix).clocks))
        found = read_offsets(stored, self._clock.now())
        return [*found, ProcessOffset(self._process, socket.gethostname(), -self._clock.offset)]
