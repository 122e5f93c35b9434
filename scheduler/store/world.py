"""The committed contents of the memory store: plain dicts, and indexes that make reads cheap."""

from collections.abc import Iterable, Iterator
from heapq import nsmallest
from itertools import islice
from operator import attrgetter
from typing import Any
from uuid import uuid4

from leasehold.common.signing import make_key
from scheduler.model.accounts import Account, BalanceSample
from scheduler.model.events import Event
from scheduler.model.launch_backoff import Hold
from scheduler.model.principals import WORKER
from scheduler.model.reservations import Reservation, is_over
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot
from scheduler.model.transitions import ENDED, PHASES
from scheduler.model.view import Row
from scheduler.ports import (
    AppliedRules,
    EventFilter,
    LeaderTerm,
    OutboxMessage,
    StoredAnswer,
    StoredPrincipal,
    StoredRules,
)
from scheduler.store.retention import RECENT_SECONDS

Key = tuple[type[Row], str]
"""A row's type and id."""


class World:
    """Committed rows by id, and indexes that follow every change.

    occupants: slot -> ids of the reservations with a lease on it. phases: phase -> ids of its reservations.
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
        """The four dicts above, by type of row."""
        self.occupants: dict[str, dict[str, None]] = {}
        self.phases: dict[str, dict[str, None]] = {phase: {} for phase in PHASES}
        self.events: list[Event] = []
        self.balances: dict[str, dict[float, BalanceSample]] = {}
        self.answers: dict[str, StoredAnswer] = {}
        self.outgoing: dict[str, OutboxMessage] = {}
        self.rules = StoredRules(version=0, document={}, rules=Rules())
        self.applied: list[AppliedRules] = []
        self.leader_term = LeaderTerm(term=0, holder="")
        self.identity = uuid4().hex
        self.principals = {WORKER: StoredPrincipal(name=WORKER, role="worker", key=make_key(), created_at=0.0)}
        self.principals_version = 0
        self.restores = self.sequence = self.token = self.event_number = self.buried = 0
        self._written: dict[Key, float] = {}
        self._stamp = float("-inf")

    def put(self, row: Row) -> None:
        """Store a row."""
        match row:
            case Slot():
                self.slots[row.id] = row
            case Reservation():
                self._unlink(self.reservations.get(row.id), row)
                self.reservations[row.id] = row
                self.phases[row.phase][row.id] = None
                for lease in row.leases:
                    self.occupants.setdefault(lease.slot, {})[row.id] = None
            case Hold():
                self.holds[row.id] = row
            case Account():
                self.accounts[row.id] = row
        self._note((type(row), row.id), row.marked_at)

    def drop(self, key: Key) -> None:
        """Delete a row."""
        kind, row_id = key
        if kind is Reservation:
            self._unlink(self.reservations[row_id], None)
        del self.rows[kind][row_id]
        self._written.pop(key, None)

    def present(self) -> Iterator[Row]:
        """Return every slot, hold, account and reservation, whatever its phase."""
        yield from self.slots.values()
        yield from self.holds.values()
        yield from self.accounts.values()
        yield from self.reservations.values()

    def changed_since(self, since: float) -> Iterator[Row]:
        """Return rows with `marked_at` >= since, the latest written first. It reads no older rows."""
        for key, stamp in reversed(self._written.items()):
            if stamp < since:
                return
            row = self.rows[key[0]].get(key[1])
            if row is not None and row.marked_at >= since:
                yield row

    def in_phases(self, phases: Iterable[str], limit: int) -> list[Reservation]:
        """Return the first `limit` reservations of these phases in order of submission."""
        found = (self.reservations[row_id] for phase in set(phases) for row_id in self.phases.get(phase, ()))
        return nsmallest(limit, found, key=attrgetter("sequence"))

    def is_recent(self, row: Row, now: float) -> bool:
        """Return whether a row belongs into a new view: all except reservations that ended more than 10 minutes ago."""
        return (
            not isinstance(row, Reservation)
            or row.phase not in ENDED
            or row.changed_at > now - RECENT_SECONDS
            or not is_over(row)
        )

    def find_events(self, which: EventFilter) -> list[Event]:
        """See Store.read_events."""
        found = (event for event in (reversed(self.events) if which.newest else self.events) if _matches(event, which))
        events = list(islice(found, which.limit))
        return events[::-1] if which.newest else events

    def prune_events(self, before: float) -> int:
        """Delete events and balances from before that time. Return their number."""
        kept = [event for event in self.events if event.at >= before]
        gone = len(self.events) - len(kept)
        self.events[:] = kept
        for samples in self.balances.values():
            old = [at for at in samples if at < before]
            gone += len(old)
            for at in old:
                del samples[at]
        return gone

    def prune_answers(self, before: float) -> int:
        """Delete answers from before that time. Return their number."""
        old = [row_id for row_id, answered in self.answers.items() if answered.at < before]
        for row_id in old:
            del self.answers[row_id]
        return len(old)

    def prune_ended(self, before: float) -> int:
        """Delete reservations that ended before that time. Return their number."""
        over = [
            row_id for phase in ENDED for row_id in self.phases[phase] if self.reservations[row_id].changed_at < before
        ]
        for row_id in over:
            self.drop((Reservation, row_id))
        return len(over)

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

    def _note(self, key: Key, marked_at: float) -> None:
        """Move `key` to the end of the order of writes. The times never decrease, even if the clock does."""
        self._stamp = max(self._stamp, marked_at)
        self._written.pop(key, None)
        self._written[key] = self._stamp


def _matches(event: Event, which: EventFilter) -> bool:
    return (
        event.number > which.after
        and which.reservation in {None, event.reservation}
        and which.slot in {None, event.slot}
        and which.name in {None, event.name}
    )
