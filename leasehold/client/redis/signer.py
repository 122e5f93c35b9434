"""Sign the messages of one client with the key of its principal, the identity of the cluster and cluster time."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import redis

from leasehold.client.credentials import Credentials
from leasehold.errors import Unavailable
from scheduler.protocol.heartbeats import Heartbeat, sign_heartbeat
from scheduler.protocol.signing import sign_headers

CLUSTER_SECONDS: Final = 60.0
"""Seconds after which the cluster's identity is read from Redis again."""


class Signer:
    """Signs the messages of one client. Thread-safe. `clock` returns cluster time. If the credentials do not contain
    the id of the cluster, it is read from the key `key` of the Redis `client`, which is the Redis of the view.
    """

    def __init__(
        self, credentials: Credentials, client: redis.Redis, key: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._credentials, self._client, self._key, self._clock = credentials, client, key, clock
        self._guard = threading.Lock()
        self._cluster = credentials.cluster or ""
        self._asked_at = float("-inf")

    @property
    def is_due(self) -> bool:
        """Whether the next signature needs the cluster's identity from Redis."""
        return self._credentials.cluster is None and time.monotonic() - self._asked_at > CLUSTER_SECONDS

    def note_cluster(self, found: bytes | None) -> None:
        """Record the cluster's identity. Raise Unavailable if it is None."""
        self._cluster, self._asked_at = _read_cluster(found), time.monotonic()

    def sign(self, queue: str, headers: Mapping[str, Any], body: bytes) -> dict[str, str]:
        """Return the headers that sign a message: `principal`, `cluster`, `signed_at` and `signature`. Raise
        Unavailable if the cluster's identity is not known.
        """
        return sign_headers(
            self._credentials.key,
            principal=self._credentials.principal,
            cluster=self._find_cluster(),
            queue=queue,
            task=headers["task"],
            message_id=headers["id"],
            now=self._clock(),
            body=body,
        )

    def sign_heartbeat(self, slot: str, beat: Heartbeat, above: int) -> Heartbeat:
        """Return the heartbeat with a counter above `above` and a signature (MAC). If the principal does not have the
        name of the slot, return the heartbeat unchanged, without a signature. Raise Unavailable if the cluster's
        identity is not known.
        """
        if self._credentials.principal != slot:
            return beat
        counted = beat._replace(counter=max(int(self._clock() * 1000), above + 1))
        return sign_heartbeat(self._credentials.key, self._find_cluster(), slot, counted)

    def _find_cluster(self) -> str:
        if self._credentials.cluster is not None:
            return self._credentials.cluster
        with self._guard:
            if time.monotonic() - self._asked_at > CLUSTER_SECONDS:
                self._cluster = self._ask_cluster()
                self._asked_at = time.monotonic()
            return self._cluster

    def _ask_cluster(self) -> str:
        try:
            found = cast("bytes | None", self._client.get(self._key))
        except redis.RedisError as error:
            raise Unavailable(f"the cluster's identity cannot be read from Redis: {error}") from error
        return _read_cluster(found)


def _read_cluster(found: bytes | None) -> str:
    if found is None:
        raise Unavailable("Redis does not have the cluster's identity yet: no worker has started")
    return found.decode()
