"""Step 1, expire: reservations past their time. Source: the autoscaler's tick."""

from scheduler.model.decisions import Expire
from scheduler.model.moves import ENDED
from scheduler.policy.draft import Draft


def expire(draft: Draft) -> None:
    """End every reservation with now >= its expiry; pending and leased ones alike.

    Its leases are given back in the same tick, so that `place` can give their slots to others; it is never
    assigned in the tick in which it expires.
    """
    due = []
    for reservation in draft.view.reservations.values():
        if reservation.expires_at is None or reservation.phase in ENDED:
            continue
        if draft.is_due(reservation.expires_at):
            due.append(reservation)
    for reservation in sorted(due, key=lambda each: each.sequence):
        draft.decide(Expire(reservation=reservation.id))
        draft.end(reservation)
