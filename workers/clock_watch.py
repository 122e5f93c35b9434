"""Compare the clocks of all processes and of the database with cluster time, for the metrics and the doctor."""

import socket
from typing import cast

import redis

from leasehold.common.clock import ProcessOffset, read_offsets
from leasehold.common.names import RedisNames
from scheduler.view.connection import redis_errors
from scheduler.view.redis_clock import RedisClock


class ClockWatch:
    """Reads the offsets that all processes wrote about their wall clocks, and adds that of this process."""

    def __init__(self, client: redis.Redis, prefix: str, clock: RedisClock, process: str = "metrics") -> None:
        self._client, self._prefix, self._clock, self._process = client, prefix, clock, process

    @redis_errors()
    def read(self) -> list[ProcessOffset]:
        """Return the offsets of the live processes of all hosts. Raises ViewUnavailableError without Redis."""
        stored = cast("dict[bytes, bytes]", self._client.hgetall(RedisNames(self._prefix).clocks))
        found = read_offsets(stored, self._clock.now())
        return [*found, ProcessOffset(self._process, socket.gethostname(), -self._clock.offset)]
