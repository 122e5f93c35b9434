"""Claims and elastic leases whose slot was lost.

A reservation that claims a lost slot is an ordinary pending one again. A lost elastic instance ends alone, while a lost
essential one ends its reservation (`heal.py`). The reservation stays leased, keeps its rank and counts no restart;
`elastic/` grants it another instance like any that it lacks. Source: Zoe, whose loop skips every second dead component.
"""

from collections.abc import Collection

from scheduler.model.decisions import Requeue, Revoke, RevokeReason
from scheduler.model.reservations import Lease, Reservation
from scheduler.model.transitions import HOLDING
from scheduler.policy.capacity.slot_info import Leases
from scheduler.policy.cycle.state import CycleState


def end_lost_instances(cycle: CycleState, silent: Collection[str]) -> None:
    """Revoke each elastic lease whose slot is gone, silent or interrupted, and end each whose deadline is over.

    On an interrupted slot the instance keeps its lease until the machine goes, or for `interruption_grace`.
    """
    for reservation in sorted(cycle.view.stretching.values(), key=lambda each: each.sequence):
        if reservation.id in cycle.over or reservation.id in cycle.returning:
            continue
        for lease in reservation.leases:
            if lease.kind == "elastic" and (found := _find_loss(cycle, reservation, lease, silent)) is not None:
                _revoke(cycle, reservation, lease, *found)


def end_instances_on(cycle: CycleState, leases: Leases) -> None:
    """End the elastic leases of these now, because their slot goes."""
    for (owner, _), lease in sorted(leases.items()):
        reservation = cycle.view.stretching.get(owner)
        if lease.kind == "elastic" and reservation is not None and owner not in cycle.over:
            _revoke(cycle, reservation, lease, "slot_draining", None)


def _find_loss(
    cycle: CycleState, reservation: Reservation, lease: Lease, silent: Collection[str]
) -> tuple[RevokeReason, float | None] | None:
    """Return why the lease has to end and when (None: now); None if it goes on."""
    slot = cycle.view.slots.get(lease.slot)
    if slot is None or slot.epoch != lease.epoch or slot.state not in HOLDING:
        return "slot_gone", None
    if lease.slot in silent:
        return "slot_offline", None
    if lease.state == "revoking":
        if lease.revoke_by is not None and not cycle.is_due(lease.revoke_by):
            cycle.timers.add(lease.revoke_by)
            return None
        return "reclaimed" if slot.interrupted_at is None else "slot_interrupted", None
    if slot.interrupted_at is None:
        return None
    grace = cycle.settings_of(reservation).interruption_grace
    ends = [end for end in (slot.interrupted_by, None if grace is None else cycle.now + grace) if end is not None]
    return "slot_interrupted", None if not ends or cycle.is_due(min(ends)) else min(ends)


def _revoke(
    cycle: CycleState, reservation: Reservation, lease: Lease, reason: RevokeReason, revoke_by: float | None
) -> None:
    cycle.decide(
        Revoke(
            reservation=reservation.id,
            component=lease.component,
            slot=lease.slot,
            reason=reason,
            epoch=lease.epoch,
            revoke_by=revoke_by,
        )
    )
    if revoke_by is None:
        cycle.end_instance(reservation, lease.component, lease.slot)


def drop_claims(cycle: CycleState) -> None:
    """Requeue each reservation that claims a slot which is gone, drains, is offline or has another machine. What its
    account paid for the claim is not refunded.
    """
    for reservation in cycle.list_claimants():
        reasons = [reason for lease in reservation.leases if (reason := _find_loss_of_claim(cycle, lease)) is not None]
        if reasons:
            cycle.decide(Requeue(reservation=reservation.id, reason=reasons[0]))
            cycle.requeue(reservation)


def _find_loss_of_claim(cycle: CycleState, lease: Lease) -> str | None:
    """Return the reason of the requeue if the claimed machine will not take the lease; None if it will."""
    slot_info = cycle.slot_infos.get(lease.slot)
    if slot_info is None or slot_info.slot.epoch != lease.epoch or slot_info.state not in {"ready", "draining"}:
        return "slot_gone"
    if slot_info.slot.interrupted_at is not None:
        return "slot_interrupted"
    if slot_info.state == "draining":
        return "slot_draining"
    return "slot_offline" if slot_info.stuck else None
