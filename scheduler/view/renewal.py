"""Renews the leader lock in the background while a tick runs."""

import threading
from types import TracebackType
from typing import Self

from scheduler.ports import LeaderLock, ViewUnavailableError


class Renewal:
    """A block during which the lock is renewed each time that a third of `lock_seconds` has passed.

    Renewal ends when the lock belongs to another process, or ran out; `LeaderLock.seconds_left` shows that. An
    unreachable Redis is tried again as long as time is left. Leaving the block waits for a renewal under way. The
    block may be entered again.
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
