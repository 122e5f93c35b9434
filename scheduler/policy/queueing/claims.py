"""Claims: slots that are promised to a reservation until the preempted leases on them have ended (in k8s: the nominated
node of a pod).

Source: qscheduler, where a preempted task ends at once.
"""

from collections.abc import Callable, Iterable

import msgspec

from scheduler.model.reservations import Lease, Reservation
from scheduler.model.resources import subtract, total
from scheduler.policy.capacity.fits import find_obstacle, measure
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.state import CycleState

Hold = Callable[[Reservation, tuple[Lease, ...]], object]
"""A function that assigns these leases to a reservation, and takes their capacity in the scratch copy."""


def assign_claims(
    cycle: CycleState, claimants: Iterable[Reservation], hold: Hold, givers: str, *, is_exclusive: bool
) -> None:
    """Assign each reservation in `claimants` the slots that it claims, once its leases fit there beside the held and
    revoking leases.

    Until then the reservation waits and gets no other slot. `is_exclusive`: whether a later claimant of a slot waits
    until the earlier claimant has its lease. `givers`: a noun phrase for the waiting reason that names what gives the
    slots back, for example "elastic instances of other reservations".
    """
    blocked: set[str] = set()
    for reservation in claimants:
        slot_infos = [cycle.slot_infos[name] for name in sorted({lease.slot for lease in reservation.leases})]
        names = [each.slot.id for each in slot_infos]
        detail = f"waits until {', '.join(names)} is given back by {givers}"
        if any(each.slot.cordoned for each in slot_infos):
            cycle.wait(reservation.id, "cordoned", f"{detail}, and is cordoned")
        elif blocked.isdisjoint(names) and all(_has_room(each, reservation) for each in slot_infos):
            hold(
                reservation,
                tuple(
                    msgspec.structs.replace(claim, state="held", assigned_at=cycle.now) for claim in reservation.leases
                ),
            )
            continue
        else:
            cycle.wait(reservation.id, "no_capacity", detail)
        if is_exclusive:
            blocked.update(names)


def _has_room(slot_info: SlotInfo, reservation: Reservation) -> bool:
    """Return whether the leases that a reservation claims on a slot fit beside the held and the revoking leases there.

    Claims of other reservations do not count: each reservation waits until its own leases fit. The uses of the machine
    (`max_uses`) were counted when the slot was claimed.
    """
    if slot_info.slot.stranger is not None:
        return False
    own = [lease.resources for (owner, _), lease in slot_info.leases.items() if owner == reservation.id]
    usage = measure([lease for (owner, _), lease in slot_info.leases.items() if owner != reservation.id], "now")
    free = None if slot_info.capacity is None else subtract(slot_info.capacity, usage.amounts)
    return find_obstacle(total(own), free, slot_info.pool.lease_limit - usage.count, count=len(own)) is None
