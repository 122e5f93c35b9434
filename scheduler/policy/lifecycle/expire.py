"""Step 1, expire: end the reservations whose time is over. Source: the autoscaler's tick."""

from scheduler.model.decisions import Expire
from scheduler.model.transitions import ENDED
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.cycle.step_values import Unexpired


def expire(cycle: CycleState) -> Unexpired:
    """End each pending or leased reservation with now >= `expires_at`.

    Its leases end in this cycle, so that `place` can give the slots to others. A reservation that expires is never
    assigned in the same cycle.
    """
    mortal = [
        (each.expires_at, each)
        for each in cycle.view.mortal.values()
        if each.phase not in ENDED and each.expires_at is not None
    ]
    due = [each for instant, each in mortal if cycle.is_due(instant)]
    cycle.timers.add(min((instant for instant, _ in mortal if not cycle.is_due(instant)), default=None))
    for reservation in sorted(due, key=lambda each: each.sequence):
        cycle.decide(Expire(reservation=reservation.id))
        cycle.end(reservation)
    return Unexpired(cycle)
