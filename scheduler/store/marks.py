"""Marks of time: the fields that may be written without increasing a row's version, in one place for every store."""

import msgspec

from scheduler.model.reservations import Lease, Reservation
from scheduler.model.slots import Slot
from scheduler.model.view import Row


def take_marks(current: Row, wanted: Row, now: float) -> Row:
    """Return `current` with the time marks of `wanted` and `marked_at` = now. Holds and accounts have
    only `marked_at`.
    """
    match current, wanted:
        case Slot(), Slot():
            return msgspec.structs.replace(
                current,
                last_seen=wanted.last_seen,
                noted_at=wanted.noted_at,
                heartbeat=wanted.heartbeat,
                sent_at=wanted.sent_at,
                not_before=wanted.not_before,
                attempts=wanted.attempts,
                marked_at=now,
            )
        case Reservation(), Reservation():
            return msgspec.structs.replace(
                current,
                expires_at=wanted.expires_at,
                confirmed_at=wanted.confirmed_at,
                leases=current.leases if current.leases == wanted.leases else _mark_leases(current, wanted),
                marked_at=now,
            )
        case _:
            return msgspec.structs.replace(current, marked_at=now)


def _mark_leases(current: Reservation, wanted: Reservation) -> tuple[Lease, ...]:
    """Return the leases with `confirmed_at` taken from the wanted leases of the same component and token."""
    confirmed = {(lease.component, lease.token): lease.confirmed_at for lease in wanted.leases}
    return tuple(
        msgspec.structs.replace(lease, confirmed_at=confirmed[lease.component, lease.token])
        if (lease.component, lease.token) in confirmed
        else lease
        for lease in current.leases
    )
