"""Who tries to lead, on Redis, and the renewal that goes on in the background while a tick runs."""

import secrets
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import redis

from scheduler.ports import Lock, ViewUnavailableError
from scheduler.view.connection import DEFAULT_PREFIX, load_script, redis_errors


class RedisLock:
    """The Lock on Redis, under `<prefix>leader` and `<prefix>again`; one a process.

    Every take has a token of its own, so a take that got no answer is made again with the same one. `clock`
    is monotonic, in seconds. `renew` and `seconds_left` may be called by another thread than the rest.
    """

    def __init__(
        self,
        client: redis.Redis,
        prefix: str = DEFAULT_PREFIX,
        *,
        lock_seconds: float = 15.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keys = [f"{prefix}leader", f"{prefix}again"]
        self._lock_ms, self._clock = int(lock_seconds * 1000), clock
        self._token = ""
        self._unanswered: str | None = None
        self._held_since: float | None = None
        self._take = load_script(client, "take_lock")
        self._renew = load_script(client, "renew_lock")
        self._release = load_script(client, "release_lock")

    @redis_errors()
    def take(self) -> bool:
        """See Lock.take."""
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
        """See Lock.renew."""
        began = self._clock()
        is_ours = self._held_since is not None and bool(self._renew(self._keys[:1], [self._token, self._lock_ms]))
        self._held_since = began if is_ours else None
        return is_ours

    @redis_errors()
    def release(self) -> bool:
        """See Lock.release."""
        self._held_since = None
        return bool(self._release(self._keys, [self._token]))

    def seconds_left(self) -> float:
        """See Lock.seconds_left."""
        since = self._held_since
        return 0.0 if since is None else max(0.0, since + self._lock_ms / 1000 - self._clock())


class Renewal:
    """While the block runs, the lock is renewed in the background every `every_seconds`, a third of its time.

    It ends when the lock is another's, or ran out unrenewed; `Lock.seconds_left` then tells so. An unreachable
    Redis is asked again as long as time is left. Leaving the block waits for a renewal that is under way.
    """

    def __init__(self, lock: Lock, every_seconds: float) -> None:
        self._lock, self._every_seconds = lock, every_seconds
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lock-renewal", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(self._every_seconds) and self._is_held():
            pass

    def _is_held(self) -> bool:
        try:
            return self._lock.renew()
        except ViewUnavailableError:
            return self._lock.seconds_left() > 0
