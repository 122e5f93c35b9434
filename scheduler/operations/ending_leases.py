"""Ending leases: the effects when a reservation ends, returns to the queue, or loses some of its elastic instances."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from scheduler.model.events import Event
from scheduler.model.reservations import Lease, Reservation
from scheduler.model.rules import Rules
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.policy.cycle.deadlines import expiry_of_pending
from scheduler.policy.lifecycle.heal import may_restart_again

UNCLAIMED = "reservation_unclaimed"
"""Name of the event of a pending reservation whose claims on slots were dropped. Its phase does not change."""
REVOKED = "reservation_revoked"
"""Name of the event of an elastic instance whose lease was taken back or got a deadline. The reservation's phase does
not change.
"""


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
    """Move a reservation to an ended phase: end its leases and update their slots. The reservation keeps its last
    token.

    `clean`: whether the holder cleaned up its slots. Only the phase `released` can mean this.
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
    """Return a reservation to its old position in the queue: end its leases, and begin its expiry again by the rule for
    pending reservations.
    """
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


def revoke(
    work: UnitOfWork, current: Reservation, reason: str, by: float, leases: Iterable[Lease], **changes: Any
) -> None:
    """Move a reservation to `revoking`, with all its leases: its holder has until `by` to end them. `leases`: the
    leases to store, with what they cost.
    """
    revoking = tuple(msgspec.structs.replace(lease, state="revoking", revoke_by=by) for lease in leases)
    work.move_reservation(
        current, "revoking", reason=reason, revoke_reason=reason, revoke_by=by, leases=revoking, **changes
    )


def drop_claims(work: UnitOfWork, current: Reservation) -> Reservation:
    """Delete the claims of a pending reservation (slots promised to it). What was paid for the claims is not
    refunded.
    """
    dropped = msgspec.structs.replace(current, leases=())
    work.put(dropped)
    work.free_slots(current)
    work.tell(Event(at=work.now, name=UNCLAIMED, cause=work.cause, reservation=current.id))
    return dropped


def held_of(current: Reservation) -> list[Lease]:
    """Return the leases of a reservation without its claims (slots that are only promised to it)."""
    return [lease for lease in current.leases if lease.state != "claimed"]


def _without_declined_instances(current: Reservation) -> Reservation:
    """Return the reservation, without what its holder declined if it is leased or revoking: this does not apply to the
    next lease.
    """
    return msgspec.structs.replace(current, declined=()) if current.phase in {"leased", "revoking"} else current


def end_instance(
    work: UnitOfWork, rules: Rules, current: Reservation, lease: Lease, reason: str, *, clean: bool, **changes: Any
) -> Reservation:
    """End the lease of one elastic instance and update its slot. The reservation keeps its other leases. `clean`: the
    holder cleaned up.
    """
    others = tuple(each for each in current.leases if each.component != lease.component)
    left = msgspec.structs.replace(current, leases=others, **changes)
    work.put(left)
    work.free_slot(lease)
    if not clean:
        _note_unclean(work, rules, lease)
    tell_instance(work, REVOKED, current.id, msgspec.structs.replace(lease, revoke_by=None), reason)
    return left


class Parting(NamedTuple):
    """An elastic lease that is taken back: at once (`revoke_by` None), or by the end of the holder's grace period."""

    lease: Lease
    reason: str
    revoke_by: float | None


def take_back_instances(
    work: UnitOfWork, rules: Rules, current: Reservation, partings: Sequence[Parting], died: Iterable[str] = ()
) -> None:
    """Take back elastic leases of one reservation, at once or with a deadline. `died`: components whose restarts are
    counted.

    The reservation is changed once for all of these leases: copying 10,000 leases for each one would take minutes.
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
    """Return the reservation with one restart more for each component in `died`, whose instance died and will be
    restarted.
    """
    counts = Counter(current.component_restarts)
    counts.update(died)
    return msgspec.structs.replace(current, component_restarts=dict(counts) or None)


def end_failed(work: UnitOfWork, rules: Rules, current: Reservation, reason: str, died: Sequence[str]) -> Reservation:
    """Move a reservation to `failed` because instances of the components `died` were lost. Count their restarts if the
    restart policy will restart it.
    """
    told = {"died": list(died)} if died else {}
    if may_restart_again(current, rules):
        current = count_restarts(current, died)
    return end_reservation(work, rules, current, "failed", reason, failed_at=work.now, told=told)


def tell_instance(work: UnitOfWork, name: str, reservation: str, lease: Lease, reason: str) -> None:
    """Stage the event of one elastic lease that was given, revoked or ended."""
    detail: dict[str, Any] = {"component": lease.component, "slot": lease.slot, "reason": reason}
    if lease.revoke_by is not None:
        detail["deadline"] = lease.revoke_by
    work.tell(Event(at=work.now, name=name, cause=work.cause, reservation=reservation, detail=detail))


def _free_slots(work: UnitOfWork, rules: Rules, current: Reservation, *, clean: bool) -> None:
    """Update the slots of a reservation whose leases ended. Unless `clean`, slots of pools with the rule
    `recycle_unclean` are drained.
    """
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
    """Reset the counts of unconfirmed leases on the slots of a reservation, because its holder confirmed the leases."""
    for lease in held_of(current):
        slot = work.slots.get(lease.slot)
        if slot is not None and slot.epoch == lease.epoch and slot.unconfirmed:
            work.put(msgspec.structs.replace(slot, unconfirmed=0))


def note_unconfirmed(work: UnitOfWork, current: Reservation) -> None:
    """Add one to the count of unconfirmed leases of each slot of a reservation, because its essential leases were not
    confirmed in time.
    """
    for lease in current.leases:
        slot = work.slots.get(lease.slot)
        if slot is not None and slot.epoch == lease.epoch and lease.kind == "essential":
            work.put(msgspec.structs.replace(slot, unconfirmed=slot.unconfirmed + 1))
