"""How long a reservation lives. Source: the autoscaler's tick.

ttl is the reservation's own, else `reservation_ttl` of its pool (of the first that serves its system), else,
for a lease only, that pool's `lease_ttl`; 0 means never. All times in seconds.
"""

from typing import NamedTuple, Protocol

from scheduler.model.reservations import Reservation
from scheduler.model.rules import Pool, Rules


class Asked(Protocol):
    """What of a request matters for how long it lives."""

    @property
    def ttl(self) -> float | None:
        """Its own; None where it has none."""

    @property
    def pool(self) -> str | None:
        """The pool that it asks for."""

    @property
    def system(self) -> str | None:
        """Or else the system."""


class Terms(NamedTuple):
    """The same of all requests that are alike in it."""

    ttl: float | None
    pool: str | None
    system: str | None


def expiry_of_pending(request: Asked, rules: Rules, now: float) -> float | None:
    """When one that waits expires, counted from `now`: its submission, its renewal or its return."""
    ttl = _own_ttl(request, rules)
    return now + ttl if ttl else None


def expiry_of_lease(request: Asked, rules: Rules, now: float) -> float | None:
    """When one that is leased expires, counted from `now`: its assignment or its renewal."""
    ttl = _own_ttl(request, rules)
    if ttl is None:
        pool = _first_pool(request, rules)
        ttl = pool.lease_ttl if pool else 0.0
    return now + ttl if ttl else None


def expiry_when_renewed(reservation: Reservation, rules: Rules, now: float) -> float | None:
    """Now + ttl, for the phase that it is in."""
    if reservation.phase == "pending":
        return expiry_of_pending(reservation.request, rules, now)
    return expiry_of_lease(reservation.request, rules, now)


def _own_ttl(request: Asked, rules: Rules) -> float | None:
    """The ttl that holds for waiting and leased alike; None where there is none, 0.0 where it says never."""
    if request.ttl is not None:
        return request.ttl
    pool = _first_pool(request, rules)
    return (pool.reservation_ttl or None) if pool else None


def _first_pool(request: Asked, rules: Rules) -> Pool | None:
    names = rules.serving_pools(request.pool, request.system)
    return rules.pools[names[0]] if names else None
