"""How long a reservation lives, and when the next cycle is due. All times are in seconds.

The ttl of a reservation is its own, else `reservation_ttl` of its pool (the first one that serves its system), else,
for a lease only, `lease_ttl` of that pool. 0 means never. Source: the autoscaler's tick.
"""

from math import inf, nextafter
from typing import NamedTuple

from scheduler.model.reservations import Request, Reservation
from scheduler.model.rules import Pool, Rules


class Terms(NamedTuple):
    """The fields of a request that determine how long it lives, equal for all requests that live equally long."""

    ttl: float | None
    pool: str | None
    system: str | None


def expiry_of_pending(request: Request | Terms, rules: Rules, now: float) -> float | None:
    """Return when a pending reservation expires. `now`: its submission, its renewal or its return to the queue. None:
    never.
    """
    ttl = _own_ttl(request, rules)
    return now + ttl if ttl else None


def expiry_of_lease(request: Request | Terms, rules: Rules, now: float) -> float | None:
    """Return when a leased reservation expires. `now`: its assignment or its renewal. None: never."""
    ttl = _own_ttl(request, rules)
    if ttl is None:
        pool = _first_pool(request, rules)
        ttl = pool.lease_ttl if pool else 0.0
    return now + ttl if ttl else None


def expiry_when_renewed(reservation: Reservation, rules: Rules, now: float) -> float | None:
    """Return when a reservation that is renewed now expires, by its phase. None: never."""
    if reservation.phase == "pending":
        return expiry_of_pending(reservation.request, rules, now)
    return expiry_of_lease(reservation.request, rules, now)


def _own_ttl(request: Request | Terms, rules: Rules) -> float | None:
    """Return the ttl of the pending and the leased phase; None if neither request nor pool has one, 0.0 for never."""
    if request.ttl is not None:
        return request.ttl
    pool = _first_pool(request, rules)
    return (pool.reservation_ttl or None) if pool else None


def _first_pool(request: Request | Terms, rules: Rules) -> Pool | None:
    names = rules.serving_pools(request.pool, request.system)
    return rules.pools[names[0]] if names else None


class Timers:
    """Collect the instants at which something falls due. A step adds them; predicates never do."""

    def __init__(self, now: float) -> None:
        self._now = now
        self.first = inf
        """The earliest instant; infinity if nothing falls due."""
        self.lease_terms: set[Terms] = set()
        """The terms of the leases of this cycle. Many leases share theirs: their ends are worked out once."""

    def add(self, instant: float | None) -> None:
        """Wake at `instant`, or at once if it has passed. None adds nothing."""
        if instant is not None:
            self.first = min(self.first, max(instant, self._now))

    def add_after(self, start: float, limit: float) -> None:
        """Wake at the first instant at which more than `limit` seconds have passed since `start`."""
        instant = nextafter(max(start + limit, self._now), inf)
        while instant - start <= limit:  # the sum was rounded down
            instant = nextafter(instant, inf)
        self.add(instant)
