"""Rules that all implementations of the Store port share: time marks, lost writes, and the constants of restores and of
the view.
"""

from typing import Final, TypeVar

import msgspec

from scheduler.model.reservations import Lease, Reservation
from scheduler.model.slots import Slot
from scheduler.model.view import Row
from scheduler.ports import DeposedError, LeaderTerm, StaleWriteError

Lost = TypeVar("Lost", StaleWriteError, DeposedError)

LONG_AGO: Final = 1.0
"""A time (in seconds since the epoch) before everything: the last tick before a restore."""
VERSIONS_A_RESTORE: Final = 10**6
"""Increase of the principals' version by a restore: more than the changes since any backup."""
RECENT_SECONDS: Final = 600.0
"""Ended reservations stay in the view for ten minutes (docs/reference/protocol.md, "Rows")."""


class WholeOrNothing:
    """The base of each transaction. It remembers a lost write: a block that caught the error must not commit."""

    _lost: StaleWriteError | DeposedError | None = None

    def check_whole(self) -> None:
        """Raise the error of an earlier write of this transaction again, if one failed: its other writes must not be
        committed.
        """
        if self._lost is not None:
            raise self._lost

    def _lose(self, error: Lost) -> Lost:
        self._lost = error
        return error

    def _compare_terms(self, current: LeaderTerm, mine: LeaderTerm) -> None:
        """Raise DeposedError unless the leader term of the caller is the present one."""
        if (current.term, current.holder) != (mine.term, mine.holder):
            raise self._lose(DeposedError(f"term {mine.term} is over: it is {current.term} now"))


def take_marks(current: Row, wanted: Row, now: float) -> Row:
    """Return the row `current` with the time marks of `wanted`, and with `marked_at` = now. Time marks are the fields
    that may be written without increasing a row's version. Holds and accounts have only `marked_at`.
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
