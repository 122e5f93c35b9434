"""Admission: how much one reservation may ask for, and how much may be pending at once (`[limits]` of the rules).

The count of what is pending is exact when it decides about a refusal. Reservations are inserted one transaction after
the other, and `sequence` numbers them. So the last count plus the reservations that were numbered since is a bound
that no other process can exceed, and rows are counted again only when that bound is above the limit.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

import msgspec

from scheduler.model.command_schemas import MOST_INSTANCES, ReservationDocument
from scheduler.model.reservations import Reservation
from scheduler.model.rules import LimitRules
from scheduler.model.validation import Fault, InvalidInputError
from scheduler.ports import Pending, Transaction

FULL_SECONDS: Final = 1.0
"""A count that refused a reservation is not repeated for this time."""
MOST_KNOWN: Final = 10_000
"""Principals and accounts whose counts one process keeps."""


class Payer(msgspec.Struct, frozen=True):
    """What a limit on pending reservations counts for: a principal or an account."""

    kind: str
    """`principal` or `account`."""
    name: str | None

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" if self.name is not None else "all unsigned requests"

    def limits(self, limits: LimitRules) -> Pending:
        """The most that may be pending; 0 = no limit."""
        if self.kind == "principal":
            return Pending(limits.pending_per_principal, limits.instances_per_principal)
        return Pending(limits.pending_per_account, limits.instances_per_account)

    def count(self, transaction: Transaction) -> Pending:
        """What is pending of it now."""
        if self.kind == "principal":
            return transaction.count_pending_of_principal(self.name)
        return transaction.count_pending_of_account(self.name or "")


@dataclass
class _Count:
    """One count of what was pending, and what this process inserted since."""

    pending: Pending
    sequence: int
    """The number of the last reservation when it was counted."""
    counted_at: float
    """On this process' monotonic clock."""
    own: int = 0
    own_instances: int = 0

    def bound(self, sequence: int) -> Pending:
        """At most this is pending when the last reservation has this number: each one that another process inserted may
        be of the same payer and have the most instances.
        """
        inserted = sequence - self.sequence
        others = inserted - self.own
        instances = self.pending.instances + self.own_instances + others * MOST_INSTANCES
        return Pending(self.pending.reservations + inserted, instances)


@dataclass
class Admission:
    """The counts that one process keeps between its requests."""

    _counts: dict[Payer, _Count] = field(default_factory=dict)

    def admit(
        self, transaction: Transaction, limits: LimitRules, rows: Sequence[Reservation]
    ) -> dict[str, InvalidInputError]:
        """By id: the new reservations that would exceed a limit, with the fault; reservations that are stored already
        are never among them. To be called before any row of this transaction is locked.
        """
        asked = {payer: own for payer, own in _list_by_payer(rows).items() if payer.limits(limits) != Pending()}
        if not asked:
            return {}
        sequence = transaction.last_sequence()
        tight = [payer for payer, own in asked.items() if not self._has_room(transaction, limits, payer, own, sequence)]
        if not tight:
            return {}
        known = transaction.load_reservations(row.id for row in rows)
        return self._refuse(limits, [row for row in rows if row.id not in known], tight)

    def note(self, rows: Iterable[object]) -> None:
        """Add reservations that this process inserted, after the commit."""
        for row in (each for each in rows if isinstance(each, Reservation)):
            for payer in _payers_of(row):
                if (count := self._counts.get(payer)) is not None and row.sequence > count.sequence:
                    count.own += 1
                    count.own_instances += row.request.instances

    def _has_room(
        self, transaction: Transaction, limits: LimitRules, payer: Payer, rows: Sequence[Reservation], sequence: int
    ) -> bool:
        wanted = Pending(len(rows), sum(row.request.instances for row in rows))
        smallest = Pending(1, min(row.request.instances for row in rows))
        count = self._counts.get(payer)
        if count is not None:
            if _fits(payer.limits(limits), count.bound(sequence), wanted):
                return True
            # Not even the smallest of them had room: all are refused by the count that is at hand.
            is_full = not _fits(payer.limits(limits), count.pending, smallest)
            if is_full and monotonic() - count.counted_at < FULL_SECONDS:
                return False
        if len(self._counts) >= MOST_KNOWN:
            self._counts.clear()
        count = self._counts[payer] = _Count(payer.count(transaction), sequence, monotonic())
        return _fits(payer.limits(limits), count.pending, wanted)

    def _refuse(
        self, limits: LimitRules, rows: Iterable[Reservation], tight: Sequence[Payer]
    ) -> dict[str, InvalidInputError]:
        """Admit the rows one after the other, as far as the limits allow."""
        pending = {payer: self._counts[payer].pending for payer in tight}
        refused: dict[str, InvalidInputError] = {}
        for row in rows:
            payers = [payer for payer in _payers_of(row) if payer in pending]
            one = Pending(1, row.request.instances)
            faults = [found for payer in payers if (found := _find_fault(limits, payer, pending[payer], one))]
            if faults:
                refused[row.id] = InvalidInputError(faults)
                continue
            pending |= {payer: _add(pending[payer], one) for payer in payers}
        return refused


def _payers_of(row: Reservation) -> Iterator[Payer]:
    yield Payer("principal", row.principal)
    if row.request.account is not None:
        yield Payer("account", row.request.account)


def _list_by_payer(rows: Iterable[Reservation]) -> Mapping[Payer, list[Reservation]]:
    found: dict[Payer, list[Reservation]] = {}
    for row in rows:
        for payer in _payers_of(row):
            found.setdefault(payer, []).append(row)
    return found


def _add(one: Pending, other: Pending) -> Pending:
    return Pending(one.reservations + other.reservations, one.instances + other.instances)


def _fits(limits: Pending, pending: Pending, wanted: Pending) -> bool:
    both = _add(pending, wanted)
    return (not limits.reservations or both.reservations <= limits.reservations) and (
        not limits.instances or both.instances <= limits.instances
    )


def _find_fault(limits: LimitRules, payer: Payer, pending: Pending, wanted: Pending) -> Fault | None:
    """The limit that this many more would exceed."""
    most = payer.limits(limits)
    if not _fits(Pending(most.reservations), pending, wanted):
        key = f"limits.pending_per_{payer.kind}"
        expected = f"at most {most.reservations} pending reservations of {payer} ({key})"
        return Fault(payer.kind, expected, f"{pending.reservations} pending and {wanted.reservations} more")
    if not _fits(Pending(0, most.instances), pending, wanted):
        key = f"limits.instances_per_{payer.kind}"
        expected = f"at most {most.instances} instances of pending reservations of {payer} ({key})"
        return Fault(payer.kind, expected, f"{pending.instances} pending and {wanted.instances} more")
    return None


def find_excess(word: ReservationDocument, limits: LimitRules) -> Fault | None:
    """The limit on a single reservation that this one exceeds."""
    components = word.components
    instances = sum(each.count for each in components)
    labels = len(word.labels) + len(word.prefers) + len(word.tags) + sum(len(each.labels) for each in components)
    found = (
        ("components", instances, limits.instances_per_reservation, "instances", "instances_per_reservation"),
        ("components", len(components), limits.components_per_reservation, "components", "components_per_reservation"),
        ("labels", labels, limits.labels_per_reservation, "labels and tags in all", "labels_per_reservation"),
    )
    for path, count, most, what, key in found:
        if most and count > most:
            return Fault(path, f"at most {most} {what} (limits.{key})", str(count))
    return None
