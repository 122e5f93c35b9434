"""The virtual clock, and what falls due on it."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import inf


class EventQueue:
    """Callbacks by time; those of one instant are played in the order in which they were noted."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = count()

    def note(self, at: float, callback: Callable[[], object]) -> None:
        """Have `callback` called at that time; a time that is past means now."""
        heappush(self._due, (max(at, self.now), next(self._numbers), callback))

    @property
    def next_at(self) -> float:
        """When the next thing falls due; infinity when nothing does."""
        return self._due[0][0] if self._due else inf

    def run_due(self) -> None:
        """Play everything that is due by now, also what that adds."""
        while self._due and self._due[0][0] <= self.now:
            heappop(self._due)[2]()
