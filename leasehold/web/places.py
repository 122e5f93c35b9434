"""Places that callers share, such as those of the requests that wait for workers."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class Places:
    """A number of places. A caller may take one while it has fewer than a third of the places that are free.

    So one caller alone gets a quarter of all places. Each further caller that takes all it can leaves three quarters of
    the free places to others. An object may be used on one event loop only.
    """

    def __init__(self, most: int) -> None:
        self._free = most
        self._taken: Counter[str] = Counter()

    def count(self, caller: str) -> int:
        """Return how many places this caller has."""
        return self._taken.get(caller, 0)

    def take(self, caller: str) -> bool:
        """Take a place for this caller, and return whether it got one."""
        if self.count(caller) * 3 >= self._free:
            return False
        self._taken[caller] += 1
        self._free -= 1
        return True

    def give_back(self, caller: str) -> None:
        """Give a place of this caller back."""
        self._free += 1
        self._taken[caller] -= 1
        if not self._taken[caller]:
            del self._taken[caller]

    @contextmanager
    def using(self, caller: str) -> Iterator[bool]:
        """Take a place for the `with` block. Yield whether the caller got one."""
        has_place = self.take(caller)
        try:
            yield has_place
        finally:
            if has_place:
                self.give_back(caller)
