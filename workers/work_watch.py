"""The slow work that waits or is under way (the port `WorkWatch`), in Redis.

A worker records the names of its work in a sorted set with the time until which they count, and renews them while the
work lasts, so that a launch of a minute is not sent again after ten seconds. What waits is known by the oldest message
of a queue: its messages are taken in the order in which they were sent.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, cast

import redis
from typing_extensions import override

from scheduler.ports import Waiting, Work, WorkWatch
from scheduler.protocol.names import RedisNames
from workers.queue_watch import read_sent_at

RENEWALS: Final = 3
"""How often the names of work that is under way are renewed before they no longer count."""


class RedisWorkWatch(WorkWatch):
    """The WorkWatch of the processes of a cluster, which share a Redis. Safe for threads, not for forks.

    `client`: the client of the view's Redis; `broker`: that of the Redis with the queues. `seconds`: how long the work
    of a process that died counts as under way. `clock` returns cluster time.
    """

    def __init__(
        self, client: redis.Redis, broker: redis.Redis, prefix: str, *, seconds: float, clock: Callable[[], float]
    ) -> None:
        self._client, self._broker, self._key = client, broker, RedisNames(prefix).under_way
        self._seconds, self._clock = seconds, clock
        self._guard, self._mine = threading.Lock(), set[str]()
        self._renewer: threading.Thread | None = None

    @contextmanager
    @override
    def begin(self, names: Collection[str]) -> Iterator[frozenset[str]]:
        begun = frozenset(names) - self._read_under_way()
        with self._guard:
            self._mine |= begun
            if self._renewer is None:
                self._renewer = threading.Thread(target=self._renew, name="leasehold-under-way", daemon=True)
                self._renewer.start()
        self._note(begun)
        try:
            yield begun
        finally:
            with self._guard:
                self._mine -= begun
            if begun:
                with suppress(redis.RedisError):
                    self._client.zrem(self._key, *begun)

    @override
    def read(self, queues: Sequence[str]) -> Work:
        try:
            with self._broker.pipeline(transaction=False) as pipeline:
                for queue in queues:
                    pipeline.llen(queue)
                    pipeline.lrange(queue, -1, -1)
                answers = pipeline.execute()
        except redis.RedisError:
            return Work(under_way=self._read_under_way())
        waiting = {
            queue: Waiting(count=count, since=read_sent_at(oldest[0]) if oldest else None)
            for queue, count, oldest in zip(queues, answers[::2], answers[1::2], strict=True)
        }
        return Work(under_way=self._read_under_way(), waiting=waiting)

    def _read_under_way(self) -> frozenset[str]:
        """Return the names of the work that is under way, and delete those that no longer count."""
        try:
            now = self._clock()
            if old := cast("list[bytes]", self._client.zrangebyscore(self._key, "-inf", now)):
                self._client.zrem(self._key, *old)
            found = cast("list[bytes]", self._client.zrangebyscore(self._key, now, "+inf"))
        except redis.RedisError:
            return frozenset()
        return frozenset(name.decode(errors="replace") for name in found)

    def _note(self, names: Collection[str]) -> None:
        if names:
            until = self._clock() + self._seconds
            with suppress(redis.RedisError):
                self._client.zadd(self._key, dict.fromkeys(names, until))

    def _renew(self) -> None:
        pause = threading.Event()
        while not pause.wait(self._seconds / RENEWALS):
            with self._guard:
                names = list(self._mine)
            self._note(names)
