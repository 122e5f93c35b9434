"""How a reservation lets go of what it holds: for good, or back into the queue."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from scheduler.model.events import Event
from scheduler.model.reservations import Lease, Reservation
from scheduler.model.rules import Rules
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.policy.cycle.ttl import expiry_of_pending
from scheduler.policy.lifecycle.heal import may_restart_again

UNCLAIMED = "reservation_unclaimed"
"""The event of one whose claim on a place was dropped: no change of phase."""
REVOKED = "reservation_revoked"
"""The event of an elastic instance that is taken back or has a deadline: no change of phase."""


def end_reservation(
    work: UnitOfWork,
    rules: Rules,
    current: Reservation,
    phase: Any,
    reason: str | None,
    *,
    clean: bool = True,
    **changes: Any,
) -> Reservation:
    """End it: its leases are over, its slots are told, its token stays the last one that it had. `clean`: whether a
    release is its holder's, who has cleaned up.
    """
    ended = work.move_reservation(
        _without_declined_instances(current),
        phase,
        reason=reason,
        leases=(),
        revoke_by=None,
        revoke_reason=None,
        **changes,
    )
    _free_slots(work, rules, current, clean=clean and phase == "released")
    return ended


def return_to_queue(work: UnitOfWork, rules: Rules, current: Reservation, reason: str, **changes: Any) -> Reservation:
    """It waits again with its place in the queue: leases over, expiry counted anew by the rule for waiting."""
    changes.setdefault("unconfirmed", current.unconfirmed if current.confirmed_at is None else 0)
    returned = work.move_reservation(
        _without_declined_instances(current),
        "pending",
        reason=reason,
        leases=(),
        leased_at=None,
        confirmed_at=None,
        revoke_by=None,
        revoke_reason=None,
        expires_at=expiry_of_pending(current.request, rules, work.now),
        **changes,
    )
    _free_slots(work, rules, current, clean=False)
    return returned


def drop_claims(work: UnitOfWork, current: Reservation) -> Reservation:
    """It waits for no place in particular any more; what it paid for that is not refunded."""
    dropped = msgspec.structs.replace(current, leases=())
    work.put(dropped)
    work.free_slots(current)
    work.tell(Event(at=work.now, name=UNCLAIMED, cause=work.cause, reservation=current.id))
    return dropped


def held_of(current: Reservation) -> list[Lease]:
    """The leases that it has, not those that it only claims."""
    return [lease for lease in current.leases if lease.state != "claimed"]


def _without_declined_instances(current: Reservation) -> Reservation:
    """What its holder gave back was said of this lease, not of the next one."""
    return msgspec.structs.replace(current, declined=()) if current.phase in {"leased", "revoking"} else current


def end_instance(
    work: UnitOfWork, rules: Rules, current: Reservation, lease: Lease, reason: str, *, clean: bool, **changes: Any
) -> Reservation:
    """One of its elastic leases is over; it stays as it is, and its slot is told."""
    others = tuple(each for each in current.leases if each.component != lease.component)
    left = msgspec.structs.replace(current, leases=others, **changes)
    work.put(left)
    work.free_slot(lease)
    if not clean:
        _note_unclean(work, rules, lease)
    tell_instance(work, REVOKED, current.id, msgspec.structs.replace(lease, revoke_by=None), reason)
    return left


class Parting(NamedTuple):
    """An elastic lease that is taken back: at once, or with time for its holder until `revoke_by`."""

    lease: Lease
    reason: str
    revoke_by: float | None


def take_back_instances(
    work: UnitOfWork, rules: Rules, current: Reservation, partings: Sequence[Parting], died: Iterable[str] = ()
) -> None:
    """Take back elastic leases of one reservation, which stays as it is. Its row is put once, however many they are:
    a copy of 10,000 leases for each of them would take minutes. `died`: components whose restarts are counted.
    """
    by_component = {each.lease.component: each for each in partings}
    left = []
    for lease in current.leases:
        parting = by_component.get(lease.component)
        if parting is None:
            left.append(lease)
        elif parting.revoke_by is not None:
            left.append(msgspec.structs.replace(parting.lease, state="revoking", revoke_by=parting.revoke_by))
    if died := list(died):
        current = count_restarts(current, died)
    work.put(msgspec.structs.replace(current, leases=tuple(left)))
    for lease, reason, revoke_by in partings:
        if revoke_by is None:
            work.free_slot(lease)
            _note_unclean(work, rules, lease)
        else:
            work.put(work.slots[lease.slot])
        tell_instance(work, REVOKED, current.id, msgspec.structs.replace(lease, revoke_by=revoke_by), reason)


def count_restarts(current: Reservation, died: Iterable[str]) -> Reservation:
    """One more for each of these instances, which died and are to be started again."""
    counts = Counter(current.component_restarts)
    counts.update(died)
    return msgspec.structs.replace(current, component_restarts=dict(counts) or None)


def end_failed(work: UnitOfWork, rules: Rules, current: Reservation, reason: str, died: Sequence[str]) -> Reservation:
    """It fails, for these instances of it died; each counts as restarted if its policy will restart the whole."""
    told = {"died": list(died)} if died else {}
    if may_restart_again(current, rules):
        current = count_restarts(current, died)
    return end_reservation(work, rules, current, "failed", reason, failed_at=work.now, told=told)


def tell_instance(work: UnitOfWork, name: str, reservation: str, lease: Lease, reason: str) -> None:
    """The event of one elastic lease that comes or goes."""
    detail: dict[str, Any] = {"component": lease.component, "slot": lease.slot, "reason": reason}
    if lease.revoke_by is not None:
        detail["deadline"] = lease.revoke_by
    work.tell(Event(at=work.now, name=name, cause=work.cause, reservation=reservation, detail=detail))


def _free_slots(work: UnitOfWork, rules: Rules, current: Reservation, *, clean: bool) -> None:
    """Its slots are told; one of a pool that recycles what was not released goes as soon as a tick sees it."""
    work.free_slots(current)
    for lease in () if clean else held_of(current):
        _note_unclean(work, rules, lease)


def _note_unclean(work: UnitOfWork, rules: Rules, lease: Lease) -> None:
    slot, pool = work.slots.get(lease.slot), None
    if slot is not None and slot.epoch == lease.epoch and slot.state == "ready":
        pool = rules.pools.get(slot.pool)
    if slot is not None and pool is not None and pool.recycle_unclean:
        work.put(msgspec.structs.replace(slot, drain_reason="unclean"))


def note_confirmed(work: UnitOfWork, current: Reservation) -> None:
    """Its holder works: the slots that it is leased on are no black holes."""
    for lease in held_of(current):
        slot = work.slots.get(lease.slot)
        if slot is not None and slot.epoch == lease.epoch and slot.unconfirmed:
            work.put(msgspec.structs.replace(slot, unconfirmed=0))


def note_unconfirmed(work: UnitOfWork, current: Reservation) -> None:
    """Nobody confirmed its leases: one more in a row for each of its slots."""
    for lease in current.leases:
        slot = work.slots.get(lease.slot)
        if slot is not None and slot.epoch == lease.epoch and lease.kind == "essential":
            work.put(msgspec.structs.replace(slot, unconfirmed=slot.unconfirmed + 1))
