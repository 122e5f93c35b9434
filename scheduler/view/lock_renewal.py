"""The thread that renews the leader lock while a tick runs."""

import threading
import time
from types import TracebackType
from typing import Final, Self

from scheduler.ports import LeaderLock, ViewUnavailableError

IDLE_SHARES: Final = 12
"""How long the thread of a Renewal waits for the next tick before the thread ends. The unit is a third of
`lock_seconds`, so 12 means four times the duration of the lock.
"""


class Renewal:
    """A `with` block during which a thread renews the leader lock, each time after a third of `lock_seconds`, the
    duration of the lock.

    The renewals end when another process has the lock or the lock has expired; `LeaderLock.seconds_left` shows this.
    While Redis cannot be reached, the renewals are tried again until the lock expires. Leaving the block waits for a
    renewal that is under way. The block may be entered again. Between two blocks the thread waits, at most IDLE_SHARES
    thirds of `lock_seconds`. Starting a thread in every tick would cost most of a millisecond.
    """

    def __init__(self, lock: LeaderLock, lock_seconds: float) -> None:
        self._lock, self._every_seconds = lock, lock_seconds / 3
        self._guard = threading.Condition()
        self._due: float | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        with self._guard:
            # The thread needs no signal: it wakes at least once in the time after which the renewal is due.
            self._due = time.monotonic() + self._every_seconds
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="lock-renewal", daemon=True)
                self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._guard:
            self._due = None

    def _run(self) -> None:
        idle = 0
        with self._guard:
            while self._due is not None or idle < IDLE_SHARES:
                left = self._every_seconds if self._due is None else self._due - time.monotonic()
                if left > 0:
                    idle = idle + 1 if self._due is None else 0
                    self._guard.wait(left)
                else:
                    self._due = time.monotonic() + self._every_seconds if self._is_held() else None
            self._thread = None

    def _is_held(self) -> bool:
        try:
            return self._lock.renew()
        except ViewUnavailableError:
            return self._lock.seconds_left() > 0
