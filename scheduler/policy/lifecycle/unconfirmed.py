"""Heal's part about assignments that nobody confirms: the holder may have died, or the slot may be a black hole."""

from scheduler.model.decisions import Fail, Requeue
from scheduler.model.reservations import Reservation
from scheduler.model.slots import ADOPTED
from scheduler.model.transitions import IN_FLIGHT
from scheduler.policy.cycle.state import CycleState


def requeue_unconfirmed(cycle: CycleState) -> None:
    """An assignment that nobody confirmed for `confirm_timeout` (age >= it) goes back to the queue, at most
    `max_unconfirmed` times (0 = no limit); then it fails.

    Nobody is judged while a machine that was found has not answered yet, for `adoption_timeout` at most: the
    confirmation may be under way from there. Source: Arvados (restart of the scheduler).
    """
    every = (cycle.rules.scheduler, *cycle.rules.scheduler.system.values())
    if not any(settings.confirm_timeout for settings in every) or _awaits_machines(cycle):
        return
    for reservation in cycle.list_in_phase("leased"):
        timeout = cycle.settings_of(reservation).confirm_timeout
        if not timeout or reservation.id in cycle.returning or reservation.confirmed_at is not None:
            continue
        leased_at = cycle.now if reservation.leased_at is None else reservation.leased_at
        if cycle.is_due(leased_at + timeout):
            _take_back(cycle, reservation)


def _take_back(cycle: CycleState, reservation: Reservation) -> None:
    for lease in reservation.leases:
        slot_info = cycle.slot_infos.get(lease.slot)
        if slot_info is not None and lease.kind == "essential":
            slot_info.unconfirmed += 1
            cycle.note_restless(slot_info)
    most = cycle.settings_of(reservation).max_unconfirmed
    if most and reservation.unconfirmed >= most:
        cycle.decide(Fail(reservation=reservation.id, reason="unconfirmed"))
        cycle.end(reservation)
    else:
        cycle.decide(Requeue(reservation=reservation.id, reason="unconfirmed"))
        cycle.requeue(reservation)


def _awaits_machines(cycle: CycleState) -> bool:
    """Whether an adopted machine still boots, or one runs that no slot knows, and has its time to answer."""
    found = [
        slot_info.slot.last_seen
        for slot_info in cycle.all_slots()
        if slot_info.slot.launch_reason == ADOPTED
        and slot_info.state in IN_FLIGHT
        and slot_info.slot.last_seen is not None
    ]
    found += [hold.refused_at for hold in cycle.view.holds.values() if hold.kind == "strangers"]
    return bool(found) and not cycle.is_due(max(found) + cycle.rules.scheduler.adoption_timeout)
