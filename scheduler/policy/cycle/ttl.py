"""How long a reservation lives. Source: the autoscaler's tick.

The ttl is the request's own, else `reservation_ttl` of its pool (the first one that serves its system), else, for a
lease only, `lease_ttl` of that pool. 0 means never. All times are in seconds.
"""

from typing import NamedTuple, Protocol

from scheduler.model.reservations import Reservation
from scheduler.model.rules import Pool, Rules


class HasTerms(Protocol):
    """The fields of a request that determine how long it lives."""

    @property
    def ttl(self) -> float | None:
        """Its own ttl; None if it has none."""

    @property
    def pool(self) -> str | None:
        """The pool that it names."""

    @property
    def system(self) -> str | None:
        """The system that it names, if it names no pool."""


class Terms(NamedTuple):
    """These fields as a value, equal for all requests that live equally long."""

    ttl: float | None
    pool: str | None
    system: str | None


def expiry_of_pending(request: HasTerms, rules: Rules, now: float) -> float | None:
    """Return when a pending reservation expires. `now`: its submission, its renewal or its return to the queue. None:
    never.
    """
    ttl = _own_ttl(request, rules)
    return now + ttl if ttl else None


def expiry_of_lease(request: HasTerms, rules: Rules, now: float) -> float | None:
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


def _own_ttl(request: HasTerms, rules: Rules) -> float | None:
    """Return the ttl of the pending and the leased phase; None if neither request nor pool has one, 0.0 for never."""
    if request.ttl is not None:
        return request.ttl
    pool = _first_pool(request, rules)
    return (pool.reservation_ttl or None) if pool else None


def _first_pool(request: HasTerms, rules: Rules) -> Pool | None:
    names = rules.serving_pools(request.pool, request.system)
    return rules.pools[names[0]] if names else None
