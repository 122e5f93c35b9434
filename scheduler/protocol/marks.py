"""A mark that a signal handler sets. Python runs a handler between two steps of the main thread, also while that thread
waits for the mark or sets it.
"""

from contextlib import suppress
from queue import Empty, SimpleQueue


class Mark:
    """Set once by a signal handler, and awaited by the main thread.

    The handler of a threading.Event would wait without end for the lock that the interrupted `wait` holds. A
    SimpleQueue may be used by a handler that interrupts it.
    """

    def __init__(self) -> None:
        self.is_set = False
        self._news: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """Set the mark, which ends each wait for it."""
        self.is_set = True
        self._news.put(None)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the mark is set, for at most `seconds`. Return whether it is set."""
        if not self.is_set:
            with suppress(Empty):
                self._news.get(timeout=seconds)
        return self.is_set
