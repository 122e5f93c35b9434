"""The leader lock is renewed in the background while a tick runs."""

import threading
from types import TracebackType
from typing import Self

from scheduler.ports import LeaderLock, ViewUnavailableError


class Renewal:
    """While the block runs, the lock is renewed each time that a third of `lock_seconds` has passed.

    That ends when the lock is another's, or ran out unrenewed; `Lock.seconds_left` then tells so. An unreachable
    Redis is asked again as long as time is left. Leaving the block waits for a renewal that is under way. May be
    entered again after it was left.
    """

    def __init__(self, lock: LeaderLock, lock_seconds: float) -> None:
        self._lock, self._every_seconds = lock, lock_seconds / 3
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._is_over.clear()
        self._thread = threading.Thread(target=self._run, name="lock-renewal", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(self._every_seconds) and self._is_held():
            pass

    def _is_held(self) -> bool:
        try:
            return self._lock.renew()
        except ViewUnavailableError:
            return self._lock.seconds_left() > 0
