"""Claims whose slot was lost: the reservation is an ordinary pending one again."""

from scheduler.model.decisions import Requeue
from scheduler.model.reservations import Lease
from scheduler.policy.cycle.state import CycleState


def drop_claims(cycle: CycleState) -> None:
    """Requeue each reservation that claims a slot which is gone, drains, is offline or has another machine. What its
    account paid for the claim is not refunded.
    """
    for reservation in cycle.list_claimants():
        reasons = [reason for lease in reservation.leases if (reason := _find_loss(cycle, lease)) is not None]
        if reasons:
            cycle.decide(Requeue(reservation=reservation.id, reason=reasons[0]))
            cycle.requeue(reservation)


def _find_loss(cycle: CycleState, lease: Lease) -> str | None:
    """Return the reason of the requeue if the claimed machine will not take the lease; None if it will."""
    slot_info = cycle.slot_infos.get(lease.slot)
    if slot_info is None or slot_info.slot.epoch != lease.epoch or slot_info.state not in {"ready", "draining"}:
        return "slot_gone"
    if slot_info.slot.interrupted_at is not None:
        return "slot_interrupted"
    if slot_info.state == "draining":
        return "slot_draining"
    return "slot_offline" if slot_info.stuck else None
