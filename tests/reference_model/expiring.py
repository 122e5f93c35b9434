"""The expiry of reservations once a tick is committed: it is not decided, but written with a decision."""

from collections.abc import Sequence

from scheduler.model.reservations import Reservation
from scheduler.model.rules import Rules
from scheduler.model.view import Row
from tests.reference_model.picture import list_pools


def find_ttl(rules: Rules, reservation: Reservation, *, is_leased: bool) -> float:
    """The autoscaler: "the reservation's `ttl`, else `reservation_ttl` of its pool (of the first pool in the
    configuration that serves its system), else, for a lease, `lease_ttl`; 0 means never".
    """
    if reservation.request.ttl is not None:
        return reservation.request.ttl
    pools = list_pools(rules, reservation.request)
    if not pools:
        return 0.0
    pool = rules.pools[pools[0]]
    return pool.reservation_ttl or (pool.lease_ttl if is_leased else 0.0)


def list_wrong_expiries(rows: Sequence[Row], rules: Rules, moved: dict[str, bool], now: float) -> list[str]:
    """Those of the reservations that were leased (true), or returned to the queue, in this tick whose expiry is wrong.

    "Moved to now + ttl … by the assignment. A return to pending sets the expiry to now + ttl, or to none where only
    `lease_ttl` had set it."
    """
    wrong = []
    for each in rows:
        if isinstance(each, Reservation) and each.id in moved:
            ttl = find_ttl(rules, each, is_leased=moved[each.id])
            expected = now + ttl if ttl else None
            if each.expires_at != expected:
                wrong.append(f"{each.id} expires at {each.expires_at}, not {expected}")
    return wrong
