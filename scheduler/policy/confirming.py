"""Heal's part about assignments that nobody confirms: the holder may have died, or the slot may be a black hole."""

from scheduler.model.decisions import Fail, Requeue
from scheduler.model.moves import IN_FLIGHT
from scheduler.model.reservations import Reservation
from scheduler.model.slots import ADOPTED
from scheduler.policy.draft import Draft


def requeue_unconfirmed(draft: Draft) -> None:
    """An assignment that nobody confirmed for `confirm_timeout` (age >= it) goes back to the queue, at most
    `max_unconfirmed` times (0 = no limit); then it fails.

    Nobody is judged while a machine that was found has not answered yet, for `adoption_timeout` at most: the
    confirmation may be under way from there. Source: Arvados (restart of the scheduler).
    """
    every = (draft.rules.scheduler, *draft.rules.scheduler.system.values())
    if not any(settings.confirm_timeout for settings in every) or _awaits_machines(draft):
        return
    for reservation in draft.list_in_phase("leased"):
        timeout = draft.settings_of(reservation).confirm_timeout
        if not timeout or reservation.id in draft.returning or reservation.confirmed_at is not None:
            continue
        leased_at = draft.now if reservation.leased_at is None else reservation.leased_at
        if draft.is_due(leased_at + timeout):
            _take_back(draft, reservation)


def _take_back(draft: Draft, reservation: Reservation) -> None:
    for lease in reservation.leases:
        place = draft.places.get(lease.slot)
        if place is not None and lease.kind == "essential":
            place.unconfirmed += 1
            draft.note_restless(place)
    most = draft.settings_of(reservation).max_unconfirmed
    if most and reservation.unconfirmed >= most:
        draft.decide(Fail(reservation=reservation.id, reason="unconfirmed"))
        draft.end(reservation)
    else:
        draft.decide(Requeue(reservation=reservation.id, reason="unconfirmed"))
        draft.requeue(reservation)


def _awaits_machines(draft: Draft) -> bool:
    """Whether an adopted machine still boots, or one runs that no slot knows, and has its time to answer."""
    found = [
        place.slot.last_seen
        for place in draft.all_places()
        if place.slot.launch_reason == ADOPTED and place.state in IN_FLIGHT and place.slot.last_seen is not None
    ]
    found += [hold.refused_at for hold in draft.view.holds.values() if hold.kind == "strangers"]
    return bool(found) and not draft.is_due(max(found) + draft.rules.scheduler.adoption_timeout)
