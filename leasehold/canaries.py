"""Is the stack alive? Asked, not guessed: queues by their length, workers by a canary, the leader by its lock."""

import secrets
from collections.abc import Iterable
from typing import cast

import redis

from leasehold.client.transport import RequestTransport, explain_redis, make_redis
from leasehold.common.clock import ProcessOffset, read_offsets
from leasehold.common.names import QUEUE_NAMES


class Canaries:
    """One canary a queue: a worker that consumes it, and reaches Redis, answers. Sent once, answered when it can."""

    def __init__(self, wire: RequestTransport) -> None:
        self._wire = wire
        self._run = secrets.token_hex(8)
        self._silent = set(QUEUE_NAMES)

    def send(self, queues: Iterable[str] = QUEUE_NAMES, expires: float | None = None) -> None:
        """Send them; one that waited for more than `expires` seconds is dropped. Raises Unavailable."""
        for queue in queues:
            self._wire.send_canary(queue, self._address(queue), expires)

    def answered(self, queue: str) -> bool:
        """Whether the worker of this queue has answered; False, too, while Redis cannot be asked."""
        if queue in self._silent:
            try:
                if self._wire.redis.lpop(self._address(queue)) is not None:
                    self._silent.discard(queue)
            except redis.RedisError:
                return False
        return queue not in self._silent

    def _address(self, queue: str) -> str:
        return self._wire.reply_address(f"canary-{queue}-{self._run}")


class Probe:
    """Looks at one stack from outside. Every method raises Unavailable when Redis cannot be reached."""

    def __init__(self, wire: RequestTransport) -> None:
        self._wire = wire

    def check_redis(self) -> None:
        """Raise Unavailable unless the Redis of the view answers."""
        try:
            self._wire.redis.ping()
        except redis.RedisError as error:
            raise explain_redis(error, self._wire.view_url, "use it") from error
        self._wire.clock.refresh()

    def queue_lengths(self) -> dict[str, int]:
        """How many messages wait in each queue for a worker."""
        broker = self._wire.redis if self._wire.url == self._wire.view_url else make_redis(self._wire.url)
        try:
            return {queue: broker.llen(queue) for queue in QUEUE_NAMES}
        except redis.RedisError as error:
            raise explain_redis(error, self._wire.url, "read the lengths of the queues") from error
        finally:
            if broker is not self._wire.redis:
                broker.close()

    def clock_offsets(self) -> list[ProcessOffset]:
        """How far the wall clocks of the stack's processes are off cluster time, as they measured it; none where this
        user of Redis may not read that.
        """
        try:
            stored = cast("dict[bytes, bytes]", self._wire.redis.hgetall(self._wire.names.clocks))
        except redis.exceptions.NoPermissionError:
            return []
        except redis.RedisError as error:
            raise explain_redis(error, self._wire.view_url, "read the clocks") from error
        return read_offsets(stored)

    def is_led(self) -> bool:
        """Return whether the leader lock is held now: only while a tick runs."""
        try:
            return bool(self._wire.redis.exists(self._wire.names.leader))
        except redis.RedisError as error:
            raise explain_redis(error, self._wire.view_url, "read the leader lock") from error

    def silent_queues(self, seconds: float) -> list[str]:
        """The queues whose workers do not answer a canary within this time."""
        canaries = Canaries(self._wire)
        canaries.send()
        for _ in range(max(int(seconds / 0.2), 1)):
            if all(canaries.answered(queue) for queue in QUEUE_NAMES):
                break
            self._wire.pause()
        return [queue for queue in QUEUE_NAMES if not canaries.answered(queue)]
