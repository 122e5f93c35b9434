"""Health checks of a running stack: the lengths of its queues, workers that answer a canary (a test message), and the
leader lock.
"""

import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import cast

import redis

from leasehold.client.redis.connection import explain_redis, make_redis
from leasehold.client.redis.transport import RequestTransport
from scheduler.protocol.clock import ProcessOffset, read_offsets
from scheduler.protocol.names import QUEUE_NAMES


class Canaries:
    """The canaries of one health check: a test message for each queue. A worker that consumes the queue and reaches
    Redis answers the canary of its queue.
    """

    def __init__(self, wire: RequestTransport) -> None:
        self._wire = wire
        self._run = secrets.token_hex(8)
        self._silent = set(QUEUE_NAMES)

    def send(self, queues: Iterable[str] = QUEUE_NAMES, expires: float | None = None) -> None:
        """Send a canary to each of `queues`. A canary that no worker takes within `expires` seconds is dropped. Raises
        Unavailable if the broker does not accept a canary.
        """
        for queue in queues:
            self._wire.send_canary(queue, self._address(queue), expires)

    def wait(self, seconds: float) -> dict[str, float]:
        """Wait until every queue has answered, at most `seconds`. Return the queues that answered, each with the
        seconds until its answer was seen.
        """
        began, took = time.monotonic(), dict[str, float]()
        while True:
            now = time.monotonic() - began
            took |= {queue: now for queue in QUEUE_NAMES if queue not in took and self.answered(queue)}
            if len(took) == len(QUEUE_NAMES) or now >= seconds:
                return took
            self._wire.pause()

    def answered(self, queue: str) -> bool:
        """Return whether a worker of this queue has answered the canary. Return False while Redis is unreachable."""
        with suppress(redis.RedisError):
            if queue in self._silent and self._wire.redis.lpop(self._address(queue)) is not None:
                self._silent.discard(queue)
        return queue not in self._silent

    def _address(self, queue: str) -> str:
        return self._wire.reply_address(f"canary-{queue}-{self._run}")


class Probe:
    """Checks the health of one stack from outside of its processes. Every method raises Unavailable if Redis is
    unreachable.
    """

    def __init__(self, wire: RequestTransport) -> None:
        self._wire = wire

    def check_redis(self) -> None:
        """Raise Unavailable unless the Redis of the view answers."""
        with self._explaining("use it"):
            self._wire.redis.ping()
        self._wire.clock.refresh()

    @contextmanager
    def _explaining(self, what: str) -> Iterator[None]:
        """Turn an error of Redis within this context into Unavailable. `what`: the action that failed, for the message,
        like "read the leader lock".
        """
        try:
            yield
        except redis.RedisError as error:
            raise explain_redis(error, self._wire.view_url, what) from error

    def queue_lengths(self) -> dict[str, int]:
        """Return the number of messages that wait in each queue, by the name of the queue."""
        broker = self._wire.redis if self._wire.url == self._wire.view_url else make_redis(self._wire.url)
        try:
            return {queue: broker.llen(queue) for queue in QUEUE_NAMES}
        except redis.RedisError as error:
            raise explain_redis(error, self._wire.url, "read the lengths of the queues") from error
        finally:
            if broker is not self._wire.redis:
                broker.close()

    def clock_offsets(self) -> list[ProcessOffset]:
        """Return by how much the wall clock of each process of the stack differs from cluster time, as the process
        itself measured it. Return [] if this user of Redis may not read the measurements.
        """
        try:
            stored = cast("dict[bytes, bytes]", self._wire.redis.hgetall(self._wire.names.clocks))
        except redis.exceptions.NoPermissionError:
            return []
        except redis.RedisError as error:
            raise explain_redis(error, self._wire.view_url, "read the clocks") from error
        return read_offsets(stored)

    def is_led(self) -> bool:
        """Return whether a process holds the scheduler's leader lock now. The lock is held only while a tick runs."""
        with self._explaining("read the leader lock"):
            return bool(self._wire.redis.exists(self._wire.names.leader))

    def silent_queues(self, seconds: float) -> list[str]:
        """Send a canary to each queue, and return the queues whose workers do not answer within `seconds`."""
        canaries = Canaries(self._wire)
        canaries.send()
        answered = canaries.wait(seconds)
        return [queue for queue in QUEUE_NAMES if queue not in answered]
