"""When the next cycle is due: the earliest instant at which something that this cycle saw or decided changes."""

from math import inf, nextafter

from scheduler.policy.cycle.ttl import Terms


class Timers:
    """Collect the instants at which something falls due. A step adds them; predicates never do."""

    def __init__(self, now: float) -> None:
        self._now = now
        self._first = inf
        self.lease_terms: set[Terms] = set()
        """The terms of the leases of this cycle. Many leases share theirs: their ends are worked out once."""

    @property
    def first(self) -> float | None:
        """The earliest instant; None if nothing falls due."""
        return None if self._first == inf else self._first

    def add(self, instant: float | None) -> None:
        """Wake at `instant`, or at once if it has passed. None adds nothing."""
        if instant is not None:
            self._first = min(self._first, max(instant, self._now))

    def add_after(self, start: float, limit: float) -> None:
        """Wake at the first instant at which more than `limit` seconds have passed since `start`."""
        instant = nextafter(max(start + limit, self._now), inf)
        while instant - start <= limit:  # the sum was rounded down
            instant = nextafter(instant, inf)
        self.add(instant)
