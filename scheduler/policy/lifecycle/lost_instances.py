"""Heal's part about elastic instances: an essential one that is lost ends its reservation, an elastic one only itself.

The reservation stays leased, keeps its rank and its work and counts no restart; what it lost is granted anew like
whatever it lacks. Source: Zoe, whose loop overlooks every second dead component.
"""

from collections.abc import Collection

from scheduler.model.decisions import Revoke, RevokeReason
from scheduler.model.reservations import Lease, Reservation
from scheduler.model.transitions import HOLDING
from scheduler.policy.capacity.slot_info import Leases
from scheduler.policy.cycle.state import CycleState


def end_lost_instances(cycle: CycleState, silent: Collection[str]) -> None:
    """Take back each elastic lease whose slot is gone, was not heard of (`silent`) or is interrupted, and each whose
    deadline is over. An interrupted one keeps it until the machine goes, or for `interruption_grace`.
    """
    for reservation in sorted(cycle.view.stretching.values(), key=lambda each: each.sequence):
        if reservation.id in cycle.over or reservation.id in cycle.returning:
            continue
        for lease in reservation.leases:
            if lease.kind == "elastic" and (found := _find_loss(cycle, reservation, lease, silent)) is not None:
                _revoke(cycle, reservation, lease, *found)


def end_instances_on(cycle: CycleState, leases: Leases) -> None:
    """The slot goes now, whoever holds an elastic lease on it."""
    for (owner, _), lease in sorted(leases.items()):
        reservation = cycle.view.stretching.get(owner)
        if lease.kind == "elastic" and reservation is not None and owner not in cycle.over:
            _revoke(cycle, reservation, lease, "slot_draining", None)


def _find_loss(
    cycle: CycleState, reservation: Reservation, lease: Lease, silent: Collection[str]
) -> tuple[RevokeReason, float | None] | None:
    """Why it is to end, and when (None = now)."""
    slot = cycle.view.slots.get(lease.slot)
    if slot is None or slot.epoch != lease.epoch or slot.state not in HOLDING:
        return "slot_gone", None
    if lease.slot in silent:
        return "slot_offline", None
    if lease.state == "revoking":
        is_over = lease.revoke_by is None or cycle.is_due(lease.revoke_by)
        reason: RevokeReason = "reclaimed" if slot.interrupted_at is None else "slot_interrupted"
        return (reason, None) if is_over else None
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
