"""Ending leases: what changes when a reservation ends, returns to the queue, or loses some of its elastic instances."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from scheduler.model.reservations import LIMIT, NO_DETAILS, Lease, Reservation, is_at_limit
from scheduler.model.rules import Rules, expiry_of_pending
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.policy.lifecycle.timers import may_restart_again

UNCLAIMED = "reservation_unclaimed"
"""Name of the event that a pending reservation lost its claims (slots promised to it). Its phase does not change."""
REVOKED = "reservation_revoked"
"""Name of the event that an elastic instance lost its lease or got a deadline for it. The phase of the reservation does
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
    """Move a reservation to `phase`, in which it has ended, end its leases and update their slots. Return the new row.
    The reservation keeps its last token.

    `reason`: why the phase changed; None: no reason is stored. `changes`: other fields of the new row. `clean`: whether
    the holder cleaned up its slots; this has an effect only for the phase `released`.
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
    """Return a reservation to the queue at its old position, end its leases and update their slots. Return the new row.
    The ttl of the reservation starts again, as for a pending reservation. `reason`: why the phase changed. `changes`:
    other fields of the new row. A reservation at its limit ends instead.
    """
    if is_at_limit(current):
        return _end_at_limit(work, rules, current)
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


def _end_at_limit(work: UnitOfWork, rules: Rules, current: Reservation, **changes: Any) -> Reservation:
    return end_reservation(work, rules, current, "expired", LIMIT, **changes)


def revoke(
    work: UnitOfWork, current: Reservation, reason: str, by: float, leases: Iterable[Lease], **changes: Any
) -> None:
    """Move a reservation to the phase `revoking`: its holder must give all leases back until the time `by`. `reason`:
    why. `leases`: the reservation's leases with their cost up to now. `changes`: other fields of the new row.
    """
    revoking = tuple(msgspec.structs.replace(lease, state="revoking", revoke_by=by) for lease in leases)
    work.move_reservation(
        current, "revoking", reason=reason, revoke_reason=reason, revoke_by=by, leases=revoking, **changes
    )


def shorten_grace(work: UnitOfWork, current: Reservation, reason: str, by: float) -> None:
    """Set an earlier deadline `by` for all leases of a revoking reservation. Its phase and its reason stay."""
    leases = tuple(msgspec.structs.replace(lease, revoke_by=by) for lease in current.leases)
    work.put(msgspec.structs.replace(current, revoke_by=by, leases=leases))
    for lease in leases:
        add_instance_event(work, REVOKED, current.id, lease, reason)


def drop_claims(work: UnitOfWork, current: Reservation) -> Reservation:
    """Delete the claims of a pending reservation (slots promised to it). Return the new row. What its account has paid
    for the claims is not paid back.
    """
    dropped = work.put(msgspec.structs.replace(current, leases=()))
    work.free_slots(current)
    work.note(UNCLAIMED, reservation=current.id)
    return dropped


def held_of(current: Reservation) -> list[Lease]:
    """Return the leases of a reservation, without its claims (slots that are only promised to it)."""
    return [lease for lease in current.leases if lease.state != "claimed"]


def _without_declined_instances(current: Reservation) -> Reservation:
    """Return the reservation without entries in its list `declined` that concern only the present lease. If the
    reservation is leased or revoking, the entries are instances of the present lease, so the list is emptied. In any
    other phase, the entries are slots that the next lease must not use, so the reservation is returned unchanged.
    """
    is_of_lease = current.declined and current.phase in {"leased", "revoking"}
    return msgspec.structs.replace(current, declined=()) if is_of_lease else current


def end_instances(
    work: UnitOfWork,
    rules: Rules,
    current: Reservation,
    leases: Sequence[Lease],
    reason: str,
    *,
    clean: bool,
    **changes: Any,
) -> Reservation:
    """End `leases`, which are leases of elastic instances, and update their slots. Return the new row of the
    reservation, which keeps its other leases. `clean`: whether the holder cleaned up the slots. `changes`: other fields
    of the new row.
    """
    ended = {each.component for each in leases}
    others = tuple(each for each in current.leases if each.component not in ended)
    left = work.put(msgspec.structs.replace(current, leases=others, **changes))
    for lease in leases:
        work.free_slot(lease)
        if not clean:
            note_unclean(work, rules, lease)
        add_instance_event(work, REVOKED, current.id, msgspec.structs.replace(lease, revoke_by=None), reason)
    return left


def count_restarts(current: Reservation, died: Iterable[str]) -> Reservation:
    """Return the reservation with one more restart for each instance in `died` (names of instances)."""
    counts = Counter(current.component_restarts)
    counts.update(died)
    return msgspec.structs.replace(current, component_restarts=dict(counts) or None)


def end_failed(
    work: UnitOfWork,
    rules: Rules,
    current: Reservation,
    reason: str,
    died: Sequence[str],
    details: Mapping[str, Any] = NO_DETAILS,
    **changes: Any,
) -> Reservation:
    """Move a reservation to the phase `failed`, because its instances `died` (names) were lost for this `reason`.
    Return its new row. If the restart policy will restart the reservation, the restarts of these instances are counted.
    A reservation at its limit ends as expired, so that it is not restarted. `details`: further details of the event;
    `changes`: other fields of the new row.
    """
    if is_at_limit(current):
        return _end_at_limit(work, rules, current, **changes)
    details = {**details, **({"died": list(died)} if died else {})}
    if may_restart_again(current, rules):
        current = count_restarts(current, died)
    return end_reservation(work, rules, current, "failed", reason, failed_at=work.now, details=details, **changes)


def add_instance_event(
    work: UnitOfWork,
    name: str,
    reservation: str,
    lease: Lease,
    reason: str,
    details: Mapping[str, Any] = NO_DETAILS,
) -> None:
    """Stage the event that the lease of one elastic instance was granted, revoked or ended, for this `reason`. `name`:
    the name of the event. `details`: further details.
    """
    detail: dict[str, Any] = {**details, "component": lease.component, "slot": lease.slot, "reason": reason}
    if lease.revoke_by is not None:
        detail["deadline"] = lease.revoke_by
    work.note(name, detail, reservation=reservation)


def _free_slots(work: UnitOfWork, rules: Rules, current: Reservation, *, clean: bool) -> None:
    """Update the slots of a reservation whose leases have ended. Unless `clean`, slots of pools with the rule
    `recycle_unclean` are marked to be drained.
    """
    work.free_slots(current)
    for lease in () if clean else held_of(current):
        note_unclean(work, rules, lease)


def note_unclean(work: UnitOfWork, rules: Rules, lease: Lease) -> None:
    """Mark the slot of a lease to be drained, because the holder did not clean it up. If the rule `recycle_unclean` of
    the slot's pool is not set, change nothing.
    """
    slot, pool = work.slots.get(lease.slot), None
    if slot is not None and slot.epoch == lease.epoch and slot.state == "ready":
        pool = rules.pools.get(slot.pool)
    if slot is not None and pool is not None and pool.recycle_unclean:
        work.put(msgspec.structs.replace(slot, drain_reason="unclean"))


def note_confirmed(work: UnitOfWork, current: Reservation) -> None:
    """Set the counts of unconfirmed leases on the slots of a reservation to 0, because its holder
    confirmed the leases.
    """
    for lease in held_of(current):
        slot = work.slots.get(lease.slot)
        if slot is not None and slot.epoch == lease.epoch and slot.unconfirmed:
            work.put(msgspec.structs.replace(slot, unconfirmed=0))


def note_unconfirmed(work: UnitOfWork, current: Reservation) -> None:
    """Increase the count of unconfirmed leases of each slot of a reservation by one, because its essential leases were
    not confirmed in time.
    """
    for lease in current.leases:
        slot = work.slots.get(lease.slot)
        if slot is not None and slot.epoch == lease.epoch and lease.kind == "essential":
            work.put(msgspec.structs.replace(slot, unconfirmed=slot.unconfirmed + 1))
