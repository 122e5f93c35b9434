"""The principals of the cluster, as a process of the console last read them from the database."""

import threading
import time
from collections.abc import Callable
from typing import Final

from scheduler.ports import Store, StoreUnavailableError
from workers.access import LOOK_SECONDS, KnownPrincipals, read_principals

AGAIN_SECONDS: Final = 0.1


class PrincipalReader:
    """Reads the principals at most once a second. Safe for threads.

    While the database does not answer, the last copy stays in use: no principal can be removed in that time either.
    """

    def __init__(self, store: Store, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.store, self.monotonic = store, monotonic
        self._guard = threading.Lock()
        self._known: KnownPrincipals | None = None
        self._tried_at = float("-inf")

    @property
    def is_fresh(self) -> bool:
        """Whether `read` returns at once, because the copy is less than LOOK_SECONDS old or is being read now."""
        return self._known is not None and self.monotonic() - self._tried_at < LOOK_SECONDS

    def read(self) -> KnownPrincipals:
        """Return the principals, read at most LOOK_SECONDS ago, or earlier while the database does not answer. Raises
        StoreUnavailableError if the database was never read.
        """
        known = self._known
        if known is not None and self.is_fresh:
            return known
        with self._guard:
            if self._known is not None and self.is_fresh:
                return self._known
            self._tried_at = self.monotonic()
            try:
                self._known = read_principals(self.store, self._known, self.monotonic)
            except StoreUnavailableError:
                if self._known is None:
                    raise
            return self._known

    def look_again(self) -> None:
        """Read the database again, for a principal or a key that may be new. Call it in a thread that may wait, and not
        before `again_in` seconds have passed, so that wrong keys cannot keep the database busy.
        """
        self.forget()
        self.read()

    @property
    def again_in(self) -> float:
        """Seconds until `look_again` may be called: AGAIN_SECONDS after the last read."""
        return max(0.0, self._tried_at + AGAIN_SECONDS - self.monotonic())

    def forget(self) -> None:
        """Read the database at the next use, because a principal has just changed."""
        self._tried_at = float("-inf")
