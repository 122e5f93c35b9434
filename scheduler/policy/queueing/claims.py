"""Claims: slots that are promised to a reservation until the preempted leases on them have ended (k8s: nominated node).

Source: qscheduler, where a preempted task ends at once.
"""

from collections.abc import Callable, Iterable

import msgspec

from scheduler.model.reservations import Lease, Reservation
from scheduler.model.resources import fits, subtract, total
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.state import CycleState

Hold = Callable[[Reservation, tuple[Lease, ...]], object]
"""Assigns these leases to a reservation, and spends their capacity."""


def assign_claims(
    cycle: CycleState, claimants: Iterable[Reservation], hold: Hold, givers: str, *, is_exclusive: bool
) -> None:
    """Assign each claimant its leases as soon as they fit beside the held and the revoked leases on its slots.

    Until then a claimant waits and gets no other slot. `is_exclusive`: a later claimant of a slot waits until the
    earlier one has its lease. `givers` completes the sentence of the wait.
    """
    blocked: set[str] = set()
    for reservation in claimants:
        slot_infos = [cycle.slot_infos[name] for name in sorted({lease.slot for lease in reservation.leases})]
        names = [each.slot.id for each in slot_infos]
        told = f"waits until {', '.join(names)} is given back by {givers}"
        if any(each.slot.cordoned for each in slot_infos):
            cycle.wait(reservation.id, "cordoned", f"{told}, and is cordoned")
        elif blocked.isdisjoint(names) and all(_has_room(each, reservation) for each in slot_infos):
            hold(reservation, tuple(_redeem(cycle, lease) for lease in reservation.leases))
            continue
        else:
            cycle.wait(reservation.id, "no_capacity", told)
        if is_exclusive:
            blocked.update(names)


def _has_room(slot_info: SlotInfo, reservation: Reservation) -> bool:
    """Whether what it claims there fits beside what is held and what is still to be given back."""
    if slot_info.slot.stranger is not None:
        return False
    others = [
        lease for (owner, _), lease in slot_info.leases.items() if lease.state != "claimed" or owner == reservation.id
    ]
    if len(others) > slot_info.pool.lease_limit:
        return False
    own = total(lease.resources for (owner, _), lease in slot_info.leases.items() if owner == reservation.id)
    used = total(
        lease.resources
        for (owner, _), lease in slot_info.leases.items()
        if lease.state != "claimed" and owner != reservation.id
    )
    return slot_info.capacity is None or fits(own, subtract(slot_info.capacity, used))


def _redeem(cycle: CycleState, claim: Lease) -> Lease:
    """Return the lease that a claim becomes: it is assigned now, and `min_run_time` counts from now on."""
    return msgspec.structs.replace(claim, state="held", assigned_at=cycle.now)
