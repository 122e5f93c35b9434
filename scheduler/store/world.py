"""The committed contents of the memory store: plain dicts of rows, and indexes that make reads fast."""

from collections.abc import Iterator, Mapping
from typing import Any
from uuid import uuid4

from scheduler.model.accounts import Account, BalanceSample
from scheduler.model.costs import Cost, CostKey
from scheduler.model.events import Event
from scheduler.model.launch_backoff import Hold
from scheduler.model.market import PriceChange, StoredMarket
from scheduler.model.principals import WORKER
from scheduler.model.reservations import Lease, Reservation
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot
from scheduler.model.transitions import PHASES
from scheduler.model.view import Row
from scheduler.ports import (
    AppliedRules,
    LeaderTerm,
    OutboxMessage,
    StoredAnswer,
    StoredPrincipal,
    StoredRules,
)
from scheduler.protocol.signing import make_key

Key = tuple[type[Row], str]
"""The key of a row in the memory store: the type and the id of the row."""


class World:
    """The committed rows of the memory store by id, and indexes that follow every change.

    `occupants`: slot id -> reservation id -> the reservation's leases on the slot. `phases`: phase -> ids of the
    reservations in this phase.
    """

    def __init__(self) -> None:
        self.slots: dict[str, Slot] = {}
        self.reservations: dict[str, Reservation] = {}
        self.holds: dict[str, Hold] = {}
        self.accounts: dict[str, Account] = {}
        self.rows: dict[type[Row], dict[str, Any]] = {
            Slot: self.slots,
            Reservation: self.reservations,
            Hold: self.holds,
            Account: self.accounts,
        }
        """The dicts of the slots, reservations, holds and accounts, by type of row."""
        self.occupants: dict[str, dict[str, list[Lease]]] = {}
        self.phases: dict[str, dict[str, None]] = {phase: {} for phase in PHASES}
        self.events: list[Event] = []
        self.balances: dict[str, dict[float, BalanceSample]] = {}
        self.costs: dict[CostKey, Cost] = {}
        self.booked_machines: dict[str, float] = {}
        """Machine without a slot -> the time until which its costs are booked."""
        self.answers: dict[str, StoredAnswer] = {}
        self.outgoing: dict[str, OutboxMessage] = {}
        self.rules = StoredRules(version=0, document={}, rules=Rules())
        self.applied: list[AppliedRules] = []
        self.market = StoredMarket()
        self.price_changes: dict[tuple[str, str, str, float], PriceChange] = {}
        self.leader_term = LeaderTerm(term=0, holder="")
        self.identity = uuid4().hex
        self.principals = {WORKER: StoredPrincipal(name=WORKER, role="worker", key=make_key(), created_at=0.0)}
        self.principals_version = 0
        self.ended_sessions: dict[str, float] = {}
        """Session that was logged out -> the time from which on its cookie is too old."""
        self.restores = self.sequence = self.token = self.event_number = self.buried = 0
        self.written: dict[Key, float] = {}
        """Key of a row -> time of its last write, in the order of the writes. The times never decrease."""
        self._stamp = float("-inf")

    def apply(self, rows: Mapping[Key, Row | None]) -> None:
        """Carry out the writes of a transaction: key -> row to store, or None if the row was deleted."""
        for key, row in rows.items():
            if row is not None:
                self._put(key, row)
            elif key[1] in self.rows[key[0]]:
                self.drop(key)

    def put(self, row: Row) -> None:
        """Store a committed row in the memory store, and update its indexes."""
        self._put((type(row), row.id), row)

    def _put(self, key: Key, row: Row) -> None:
        if isinstance(row, Reservation):
            self._unlink(self.reservations.get(row.id), row)
            self.phases[row.phase][row.id] = None
            for lease in row.leases:
                self.occupants.setdefault(lease.slot, {}).setdefault(row.id, []).append(lease)
        self.rows[key[0]][key[1]] = row
        # Move the row to the end of the order of writes. The times never decrease, even if the clock does.
        self._stamp = max(self._stamp, row.marked_at)
        self.written.pop(key, None)
        self.written[key] = self._stamp

    def drop(self, key: Key) -> None:
        """Delete a committed row from the memory store, and update its indexes."""
        kind, row_id = key
        if kind is Reservation:
            self._unlink(self.reservations[row_id], None)
        del self.rows[kind][row_id]
        self.written.pop(key, None)

    def present(self) -> Iterator[Row]:
        """Yield every slot, launch back-off (hold), account and reservation, also ended reservations."""
        yield from self.slots.values()
        yield from self.holds.values()
        yield from self.accounts.values()
        yield from self.reservations.values()

    def _unlink(self, known: Reservation | None, follower: Reservation | None) -> None:
        if known is None:
            return
        if follower is None or follower.phase != known.phase:
            self.phases[known.phase].pop(known.id, None)
        for lease in known.leases:
            held = self.occupants.get(lease.slot, {})
            held.pop(known.id, None)
            if not held:
                self.occupants.pop(lease.slot, None)
