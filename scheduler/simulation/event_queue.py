"""The virtual clock, and the callbacks that are scheduled on it."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import inf


class EventQueue:
    """Callbacks by time. Callbacks of one time run in the order in which they were added."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = count()

    def note(self, at: float, callback: Callable[[], object]) -> None:
        """Schedule `callback` for that time. A past time means now."""
        heappush(self._due, (max(at, self.now), next(self._numbers), callback))

    @property
    def next_at(self) -> float:
        """Return the time of the next callback; infinity when there is none."""
        return self._due[0][0] if self._due else inf

    def run_due(self) -> None:
        """Run all callbacks that are due, including those that they add."""
        while self._due and self._due[0][0] <= self.now:
            heappop(self._due)[2]()
