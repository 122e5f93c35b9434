"""Step 1, expire: reservations past their time. Source: the autoscaler's tick."""

from scheduler.model.decisions import Expire
from scheduler.model.transitions import ENDED
from scheduler.policy.cycle.state import CycleState


def expire(cycle: CycleState) -> None:
    """End every reservation with now >= its expiry; pending and leased ones alike.

    Its leases are given back in the same tick, so that `place` can give their slots to others; it is never
    assigned in the tick in which it expires.
    """
    alive = (each for each in cycle.view.mortal.values() if each.phase not in ENDED)
    due = [each for each in alive if each.expires_at is not None and cycle.is_due(each.expires_at)]
    for reservation in sorted(due, key=lambda each: each.sequence):
        cycle.decide(Expire(reservation=reservation.id))
        cycle.end(reservation)
