"""The leader lock on Redis, which decides which process tries to lead."""

import secrets
import time
from collections.abc import Callable

import redis

from leasehold.common.names import DEFAULT_PREFIX, RedisNames
from scheduler.view.connection import load_script, redis_errors


class RedisLeaderLock:
    """The LeaderLock on Redis, under `<prefix>leader` and `<prefix>again`; one for each process.

    Every take has its own token. A take without an answer is repeated with the same token. `clock` is monotonic, in
    seconds.
    `renew` and `seconds_left` may be called by another thread than the other methods.
    """

    def __init__(
        self,
        client: redis.Redis,
        prefix: str = DEFAULT_PREFIX,
        *,
        lock_seconds: float = 15.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._keys = client, [RedisNames(prefix).leader, f"{prefix}again"]
        self._lock_ms, self._clock = int(lock_seconds * 1000), clock
        self._token = ""
        self._unanswered: str | None = None
        self._held_since: float | None = None
        self._take = load_script(client, "take_lock")
        self._renew = load_script(client, "renew_lock")
        self._release = load_script(client, "release_lock")

    @redis_errors()
    def take(self) -> bool:
        """See LeaderLock.take."""
        token = self._unanswered or secrets.token_hex(16)
        self._unanswered = token
        began = self._clock()
        is_taken = bool(self._take(self._keys, [token, self._lock_ms]))
        self._unanswered = None
        if is_taken:
            self._token, self._held_since = token, began
        return is_taken

    @redis_errors()
    def renew(self) -> bool:
        """See LeaderLock.renew."""
        began = self._clock()
        is_ours = self._held_since is not None and bool(self._renew(self._keys[:1], [self._token, self._lock_ms]))
        self._held_since = began if is_ours else None
        return is_ours

    @redis_errors()
    def release(self) -> bool:
        """See LeaderLock.release."""
        self._held_since = None
        return bool(self._release(self._keys, [self._token]))

    @redis_errors()
    def seconds_until_free(self) -> float:
        """See LeaderLock.seconds_until_free."""
        # A result below 0 means that no process has the lock.
        return max(0.0, self._client.pttl(self._keys[0]) / 1000)

    def seconds_left(self) -> float:
        """See LeaderLock.seconds_left."""
        since = self._held_since
        return 0.0 if since is None else max(0.0, since + self._lock_ms / 1000 - self._clock())
