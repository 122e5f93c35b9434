"""Claims: places that preempted work, or elastic instances, still hold until the grace ends, kept for those who took
them. Source: qscheduler, where a preempted task is gone at once.
"""

from collections.abc import Iterable

import msgspec

from scheduler.model.decisions import Requeue
from scheduler.model.reservations import Lease, Reservation
from scheduler.model.resources import fits, subtract, total
from scheduler.policy.draft import Draft, Queue
from scheduler.policy.places import Place
from scheduler.policy.rounds import Round, name_placements


def drop_claims(draft: Draft) -> None:
    """Who claims a slot that went, drains, is silent or has another machine is an ordinary pending one again; what it
    paid is not given back.
    """
    for reservation in draft.list_claimants():
        reasons = [reason for lease in reservation.leases if (reason := _find_loss(draft, lease)) is not None]
        if reasons:
            draft.decide(Requeue(reservation=reservation.id, reason=reasons[0]))
            draft.requeue(reservation)


def _find_loss(draft: Draft, lease: Lease) -> str | None:
    place = draft.places.get(lease.slot)
    if place is None or place.slot.epoch != lease.epoch or place.state not in {"ready", "draining"}:
        return "slot_gone"
    if place.slot.interrupted_at is not None:
        return "slot_interrupted"
    if place.state == "draining":
        return "slot_draining"
    return "slot_offline" if place.stuck else None


def assign_claims(tick: Round, claimants: Iterable[Reservation]) -> None:
    """Each gets its leases as soon as they fit beside what is held and what is still to be given back, at the level
    that it claimed them for; of several on one slot the earlier claim first. Until then it is given no other slot.
    """
    blocked: set[str] = set()
    for reservation in sorted(claimants, key=lambda each: (each.leases[0].assigned_at, each.sequence)):
        tick.served.add(reservation.id)
        places = [tick.draft.places[name] for name in sorted({lease.slot for lease in reservation.leases})]
        told = f"waits until {', '.join(place.slot.id for place in places)} is given back by those whom it preempted"
        if any(place.slot.cordoned for place in places):
            tick.draft.wait(reservation.id, "cordoned", f"{told}, and is cordoned")
        elif all(place.slot.id not in blocked and _has_room(place, reservation) for place in places):
            _assign(tick, reservation)
            continue
        else:
            tick.draft.wait(reservation.id, "no_capacity", told)
        blocked.update(place.slot.id for place in places)


def assign_claimed(draft: Draft, waiters: Queue) -> Queue:
    """The same in the other queues, where elastic instances give the place back; gives back those who claim nothing."""
    if not draft.list_claimants():
        return waiters
    for reservation in (each for each in waiters.reservations if each.leases):
        places = [draft.places[name] for name in sorted({lease.slot for lease in reservation.leases})]
        names = ", ".join(place.slot.id for place in places)
        if any(place.slot.cordoned for place in places):
            draft.wait(reservation.id, "cordoned", f"waits until {names} is given back, and is cordoned")
        elif all(_has_room(place, reservation) for place in places):
            _hold(draft, reservation)
        else:
            draft.wait(reservation.id, "no_capacity", f"waits until elastic instances of others give {names} back")
    return waiters.filter([not each.leases for each in waiters.reservations])


def _hold(draft: Draft, reservation: Reservation) -> None:
    for lease in reservation.leases:
        place = draft.places[lease.slot]
        place.leases = {**place.leases, (reservation.id, lease.component): _redeem(draft, lease)}
        place.redeemed += 1
        place.wanted = True
        place.count_free()
    draft.assign(reservation, name_placements(reservation.leases))


def _has_room(place: Place, reservation: Reservation) -> bool:
    """Whether what it claims there fits beside what is held and what is still to be given back."""
    if place.slot.stranger is not None:
        return False
    others = [
        lease for (owner, _), lease in place.leases.items() if lease.state != "claimed" or owner == reservation.id
    ]
    if len(others) > place.pool.lease_limit:
        return False
    own = total(lease.resources for (owner, _), lease in place.leases.items() if owner == reservation.id)
    used = total(
        lease.resources
        for (owner, _), lease in place.leases.items()
        if lease.state != "claimed" and owner != reservation.id
    )
    return place.capacity is None or fits(own, subtract(place.capacity, used))


def _assign(tick: Round, reservation: Reservation) -> None:
    leases = tuple(_redeem(tick.draft, lease) for lease in reservation.leases)
    tick.hold(reservation, leases)
    tick.draft.assign(reservation, name_placements(leases), leases[0].level)


def _redeem(draft: Draft, claim: Lease) -> Lease:
    """The lease that a claim becomes: it is assigned now, and `min_run_time` counts from now on."""
    return msgspec.structs.replace(claim, state="held", assigned_at=draft.now)
