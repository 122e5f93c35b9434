"""The cluster record on Redis: the identity of the cluster, and the highest term and token that were used."""

from contextlib import suppress
from typing import cast

import redis

from leasehold.common.names import DEFAULT_PREFIX, RedisNames
from scheduler.ports import Remembered
from scheduler.view.connection import load_script, redis_errors

RESTORING = "restoring"


class RedisRecord:
    """The ClusterRecord on Redis: `<prefix>cluster` (text) and `<prefix>highest` (hash). `client` returns bytes."""

    def __init__(self, client: redis.Redis, prefix: str = DEFAULT_PREFIX) -> None:
        self._client, self._cluster, self._highest = client, RedisNames(prefix).cluster, f"{prefix}highest"
        self._keep = load_script(client, "keep_record")

    @redis_errors()
    def read(self) -> Remembered:
        """See ClusterRecord.read."""
        identity: bytes | None = None
        numbers: list[bytes | None] = [None, None, None]
        with suppress(redis.ResponseError):
            identity = cast("bytes | None", self._client.get(self._cluster))
        with suppress(redis.ResponseError):
            numbers = cast("list[bytes | None]", self._client.hmget(self._highest, ["term", "token", RESTORING]))
        term, token, restoring = numbers
        return Remembered(
            identity=identity.decode(errors="replace") if identity else None,
            term=_read_number(term),
            token=_read_number(token),
            is_restoring=restoring is not None,
        )

    @redis_errors()
    def keep(self, identity: str, term: int, token: int) -> str:
        """See ClusterRecord.keep."""
        kept = cast("bytes", self._keep([self._cluster, self._highest], [identity, term, token]))
        return kept.decode(errors="replace")

    @redis_errors()
    def begin_restore(self) -> None:
        """See ClusterRecord.begin_restore."""
        try:
            self._client.hset(self._highest, RESTORING, 1)
        except redis.ResponseError:
            self._client.delete(self._highest)
            self._client.hset(self._highest, RESTORING, 1)

    @redis_errors()
    def end_restore(self, identity: str, term: int, token: int) -> None:
        """See ClusterRecord.end_restore."""
        with self._client.pipeline(transaction=True) as pipeline:
            pipeline.delete(self._highest)
            pipeline.set(self._cluster, identity)
            pipeline.hset(self._highest, mapping={"term": term, "token": token})
            pipeline.execute()


def _read_number(text: bytes | None) -> int:
    return int(text) if text is not None and text.isdigit() else 0
