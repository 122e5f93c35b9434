"""Requeue assignments that are not confirmed in time: the holder may have died, or the slot may break each holder."""

from scheduler.model.decisions import Fail, Requeue
from scheduler.model.reservations import Reservation
from scheduler.model.slots import ADOPTED
from scheduler.model.transitions import IN_FLIGHT
from scheduler.policy.cycle.state import CycleState


def requeue_unconfirmed(cycle: CycleState) -> None:
    """Requeue each reservation that was not confirmed for `confirm_timeout` (age >= timeout); after `max_unconfirmed`
    times (0: no limit) it fails.

    No reservation is requeued while an adopted machine has not answered, for `adoption_timeout` at most: its holder may
    be about to confirm from there. Source: Arvados (restart of the scheduler).
    """
    every = (cycle.rules.scheduler, *cycle.rules.scheduler.system.values())
    if not any(settings.confirm_timeout for settings in every):
        return
    adopted_by = _find_end_of_adoption(cycle)
    if adopted_by is not None and not cycle.is_due(adopted_by):
        cycle.timers.add(adopted_by)
        return
    for reservation in cycle.list_in_phase("leased"):
        timeout = cycle.settings_of(reservation).confirm_timeout
        if not timeout or reservation.id in cycle.returning or reservation.confirmed_at is not None:
            continue
        deadline = (cycle.now if reservation.leased_at is None else reservation.leased_at) + timeout
        if cycle.is_due(deadline):
            _requeue(cycle, reservation)
        else:
            cycle.timers.add(deadline)


def _requeue(cycle: CycleState, reservation: Reservation) -> None:
    """Requeue the reservation, or fail it after `max_unconfirmed` times. Count the lease against each of its slots."""
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


def _find_end_of_adoption(cycle: CycleState) -> float | None:
    """Return until when machines that were found running may answer: adopted ones that still boot, and machines that
    belong to no slot. None if there are none.
    """
    found = [
        slot_info.slot.last_seen
        for slot_info in cycle.all_slots()
        if slot_info.slot.launch_reason == ADOPTED
        and slot_info.state in IN_FLIGHT
        and slot_info.slot.last_seen is not None
    ]
    found += [hold.refused_at for hold in cycle.view.holds.values() if hold.kind == "strangers"]
    return max(found) + cycle.rules.scheduler.adoption_timeout if found else None
