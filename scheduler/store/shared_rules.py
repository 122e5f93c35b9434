"""Rules that all implementations of the Store port share: which fields are time marks (fields that are written without
a new version of the row), what happens after a failed write, and constants of restores and of the view.
"""

from collections import defaultdict
from typing import Final, Protocol, TypeVar

import msgspec

from scheduler.model.costs import Cost, add_costs, begin_of_hour, measure_bill
from scheduler.model.reservations import Lease, Reservation
from scheduler.model.slots import Slot
from scheduler.model.view import Row
from scheduler.ports import DeposedError, PoolCost, StaleWriteError

Lost = TypeVar("Lost", StaleWriteError, DeposedError)

LONG_AGO: Final = 1.0
"""A time in seconds since the epoch that is earlier than any real one. A restore stores it as the time of the last
tick, so that the time since the backup counts as an outage.
"""
VERSIONS_A_RESTORE: Final = 10**6
"""By how much a restore increases `principals_version`, the number of changes of the principals: by more than the
principals can have changed since the backup, so that every process reads the principals again.
"""
RECENT_SECONDS: Final = 600.0
"""Seconds for which an ended reservation stays in the view, the copy of the rows in Redis. See
docs/reference/protocol.md, "Rows".
"""


class WholeOrNothing:
    """The base class of transactions of all stores. After a write that failed with StaleWriteError or DeposedError the
    transaction cannot be committed, even if the caller has caught the error.
    """

    _lost: StaleWriteError | DeposedError | None = None

    def check_whole(self) -> None:
        """If a write of this transaction has failed with StaleWriteError or DeposedError, raise this error again, even
        if the caller has caught it. Called before a commit.

        Otherwise the transaction's other writes would be committed without the failed one.
        """
        if self._lost is not None:
            raise self._lost

    def _lose(self, error: Lost) -> Lost:
        self._lost = error
        return error


def take_marks(current: Row, wanted: Row, now: float) -> Row:
    """Return the row `current` with the time marks of the row `wanted`, and with `marked_at` = now.

    Time marks are the fields that may be written without increasing the version of the row. Slots and reservations have
    several, such as `last_seen`. In other rows only `marked_at` changes.
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
    """Return the leases of `current`. A lease gets the `confirmed_at` of the lease of `wanted` with the same component
    and fencing token, if `wanted` has one.
    """
    confirmed = {(lease.component, lease.token): lease.confirmed_at for lease in wanted.leases}
    return tuple(
        msgspec.structs.replace(lease, confirmed_at=confirmed[lease.component, lease.token])
        if (lease.component, lease.token) in confirmed
        else lease
        for lease in current.leases
    )


# Reads the cost ledger: the booked costs, and what machines have cost from their last booking until now.


class ReadsCosts(Protocol):
    """A base class of stores: it implements the methods of the port CostLedger that read costs, by one method,
    `load_costs`, which each store provides.
    """

    def load_costs(self, since: float) -> tuple[list[Cost], list[Slot], float]:
        """Return three things of one moment: the booked costs of the hours that begin at or after `since`, the slots
        with a meter (an interval of costs that is not booked yet), and cluster time.
        """

    def read_costs(self, since: float = 0.0) -> list[Cost]:
        """Return the costs of the hour that contains `since` and of all later hours. See CostLedger."""
        booked, slots, now = self.load_costs(begin_of_hour(since))
        for slot in slots:
            if slot.meter is not None:
                booked += measure_bill(slot.pool, slot.meter, now, since)
        return add_costs(booked)

    def sum_costs(self, since: float) -> list[PoolCost]:
        """Return, for each pool and account, the sum in dollars of the costs that `read_costs(since)` returns, without
        adjustments. See CostLedger.
        """
        found: dict[tuple[str, str], float] = defaultdict(float)
        for cost in self.read_costs(since):
            found[cost.pool, cost.account] += cost.spent
        return [PoolCost(*key, found[key]) for key in sorted(found)]
