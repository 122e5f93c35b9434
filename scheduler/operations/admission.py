"""Admission: limits on the size of a reservation and on the number of pending reservations (`[limits]` of the rules).

A reservation is refused only after an exact count, but counting rows is slow, so a process avoids most counts.
Reservations are inserted one transaction after the other and numbered by `sequence`. So the last count plus the number
of reservations inserted since then is an upper bound. If this bound exceeds the limit, the reservations inserted since
then are counted. If the bound still exceeds the limit, all pending reservations are counted.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from time import monotonic
from typing import Final

import msgspec

from scheduler.model.command_schemas import MOST_INSTANCES, ReservationDocument
from scheduler.model.reservations import Reservation
from scheduler.model.rules import LimitRules, Rules
from scheduler.model.slots import Slot
from scheduler.model.transitions import INACTIVE
from scheduler.model.validation import Fault, InvalidInputError
from scheduler.model.waits import Reason
from scheduler.policy.queueing.feasibility import find_misfits
from scheduler.ports import Pending, Store, Transaction

_NONE: Final = Pending()

FULL_SECONDS: Final = 1.0
"""Seconds for which a count of pending reservations is used again after it led to a refusal."""
MOST_KNOWN: Final = 10_000
"""The most principals and accounts for which one process keeps a count of pending reservations. Also the most kinds of
requests for which it remembers that they fit on a slot.
"""


class Payer(msgspec.Struct, frozen=True):
    """A principal, a host that sends unsigned requests, or a quota account, to which limits on pending reservations
    apply.
    """

    kind: str
    """`principal` or `account`."""
    name: str | None
    """None: the requests are not signed."""
    sender: str | None = None
    """The host of unsigned requests; None: it is unknown, or the requests are signed."""

    def __str__(self) -> str:
        if self.name is not None:
            return f"{self.kind} {self.name}"
        return "all unsigned requests" + ("" if self.sender is None else f" of the host {self.sender}")

    def limits(self, limits: LimitRules) -> Pending:
        """Return how many pending reservations and instances the rules allow this principal or account;
        0 = no limit.
        """
        if self.kind == "principal":
            return Pending(limits.pending_per_principal, limits.instances_per_principal)
        return Pending(limits.pending_per_account, limits.instances_per_account)

    def count(self, transaction: Transaction) -> Pending:
        """Count the pending reservations of this principal or account, and their instances, in the database. Return
        both counts.
        """
        if self.kind == "principal":
            return transaction.count_pending_of_principal(self.name, self.sender)
        return transaction.count_pending_of_account(self.name or "")

    def count_inserted(self, transaction: Transaction, after: int, upto: int) -> Pending:
        """Count the reservations of this principal or account whose `sequence` is above `after` and at most `upto`, and
        their instances. Return both counts.
        """
        found = transaction.count_inserted(after, upto).items()
        return reduce(_add, (count for names, count in found if self in _list_payers(*names)), _NONE)


@dataclass
class _Count:
    """An exact count of the pending reservations of a principal or account (`pending`), and counts of the reservations
    that were inserted for it after that count.
    """

    pending: Pending
    sequence: int
    """Reservations up to this number (`Reservation.sequence`, which grows with each insertion) are counted in `pending`
    or `later`.
    """
    counted_at: float
    """Time of the count of `pending`, by the monotonic clock of this process."""
    later: Pending = _NONE
    """The reservations of this principal or account that any process has inserted after the count of `pending`, up to
    the number `sequence`.
    """
    own: Pending = _NONE
    """Reservations that this process has inserted after `sequence`."""

    def bound(self, sequence: int) -> Pending:
        """Return an upper bound of the pending reservations and instances of this principal or account. `sequence`: the
        number of the newest reservation.

        Reservations that other processes have inserted after `self.sequence` may belong to this principal or account.
        So each of them is counted, with the maximum number of instances.
        """
        others = sequence - self.sequence - self.own.reservations
        return _add(_add(self.pending, self.later), _add(self.own, Pending(others, others * MOST_INSTANCES)))

    def add(self, inserted: Pending, sequence: int) -> None:
        self.later, self.sequence, self.own = _add(self.later, inserted), sequence, _NONE


@dataclass
class Admission:
    """Decides whether new reservations would exceed limits on pending ones. It keeps counts from one request to the
    next.
    """

    _counts: dict[Payer, _Count] = field(default_factory=dict)

    def admit(
        self, transaction: Transaction, limits: LimitRules, rows: Sequence[Reservation]
    ) -> dict[str, InvalidInputError]:
        """Return the errors, by reservation id, of those new reservations in `rows` that would exceed a limit on
        pending reservations; {} if all are admitted. Reservations that are stored already are never refused. Call it
        before the transaction locks any row.
        """
        asked: dict[Payer, Pending] = {}
        smallest: dict[Payer, int] = {}
        for own in _group(rows):
            sizes = [_count_instances(row) for row in own]
            for payer in _payers_of(own[0]):
                if payer.limits(limits) != _NONE:
                    asked[payer] = _add(asked.get(payer, _NONE), Pending(len(sizes), sum(sizes)))
                    smallest[payer] = min(smallest.get(payer, MOST_INSTANCES), *sizes)
        if not asked:
            return {}
        sequence = transaction.last_sequence()
        tight = [
            payer
            for payer, wanted in asked.items()
            if not self._allows(transaction, limits, payer, wanted, smallest[payer], sequence)
        ]
        if not tight:
            return {}
        known = transaction.load_reservations(row.id for row in rows)
        return self._refuse(limits, [row for row in rows if row.id not in known], tight)

    def note(self, rows: Iterable[object]) -> None:
        """Add the reservations among `rows`, which this process has inserted, to the counts of unended reservations
        that it keeps for the limits. Call it after their commit.
        """
        for own in _group(row for row in rows if isinstance(row, Reservation)):
            for payer in _payers_of(own[0]):
                if (count := self._counts.get(payer)) is not None:
                    later = [_count_instances(row) for row in own if row.sequence > count.sequence]
                    count.own = _add(count.own, Pending(len(later), sum(later)))

    def _allows(
        self,
        transaction: Transaction,
        limits: LimitRules,
        payer: Payer,
        wanted: Pending,
        least_instances: int,
        sequence: int,
    ) -> bool:
        smallest = Pending(1, least_instances)
        count = self._counts.get(payer)
        if count is not None:
            if _fits(payer.limits(limits), count.bound(sequence), wanted):
                return True
            # If the last count did not allow even the smallest reservation, all are refused without another count.
            is_full = not _fits(payer.limits(limits), count.pending, smallest)
            if is_full and monotonic() - count.counted_at < FULL_SECONDS:
                return False
            if sequence - count.sequence <= count.pending.reservations + count.later.reservations:
                count.add(payer.count_inserted(transaction, count.sequence, sequence), sequence)
                if _fits(payer.limits(limits), count.bound(sequence), wanted):
                    return True
        if len(self._counts) >= MOST_KNOWN:
            self._counts.clear()
        count = self._counts[payer] = _Count(payer.count(transaction), sequence, monotonic())
        return _fits(payer.limits(limits), count.pending, wanted)

    def _refuse(
        self, limits: LimitRules, rows: Iterable[Reservation], tight: Sequence[Payer]
    ) -> dict[str, InvalidInputError]:
        """Admit new reservations one by one, while the limits of the principals and accounts in `tight` allow it.
        Return, by id, the errors of those that are refused.
        """
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


def _group(rows: Iterable[Reservation]) -> Iterable[list[Reservation]]:
    """Return the rows in groups. All rows of a group have the same principal, account and sender."""
    groups: dict[tuple[str | None, str | None, str | None], list[Reservation]] = {}
    for row in rows:
        groups.setdefault((row.principal, row.request.account, row.sender), []).append(row)
    return groups.values()


def _count_instances(row: Reservation) -> int:
    return row.request.instances if row.instances is None else row.instances


def _payers_of(row: Reservation) -> Iterator[Payer]:
    return _list_payers(row.principal, row.request.account, row.sender)


def _list_payers(principal: str | None, account: str | None, sender: str | None) -> Iterator[Payer]:
    yield Payer("principal", principal, sender)
    if account is not None:
        yield Payer("account", account)


def _add(one: Pending, other: Pending) -> Pending:
    return Pending(one.reservations + other.reservations, one.instances + other.instances)


def _fits(limits: Pending, pending: Pending, wanted: Pending) -> bool:
    both = _add(pending, wanted)
    return (not limits.reservations or both.reservations <= limits.reservations) and (
        not limits.instances or both.instances <= limits.instances
    )


def _find_fault(limits: LimitRules, payer: Payer, pending: Pending, wanted: Pending) -> Fault | None:
    """Return a fault if a principal or account that has `pending` reservations would exceed one of its limits with
    `wanted` additional reservations. Return None if it would not.
    """
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
    """Return a fault if a submitted reservation has more instances, components or labels than the limits allow for a
    single reservation. Return None if it exceeds no limit.
    """
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


KNOWN_SECONDS: Final = 10.0
"""Maximum age in seconds of slots that were read earlier, if they are used to decide that a request fits. The decision
that a request fits on no slot always uses slots that are read for it.
"""


@dataclass
class KnownSlots:
    """The slots that this process has read last, to decide whether a request fits on any slot. Of slots with equal
    pool, offering, resources and labels, only one active and one inactive slot are kept, because equal slots give equal
    answers.
    """

    slots: Sequence[Slot] = ()
    read_at: float | None = None
    _fitting: set[Hashable] = field(default_factory=set)
    """Kinds of requests that were found to fit on a slot or an offering. Requests that differ in nothing that decides
    about the fit are one kind.
    """
    _found_with: tuple[Rules | None, float | None] = None, None
    """Two values from the call that last emptied `_fitting`: its rules, and the time at which its known slots were read
    (None: there were no slots younger than KNOWN_SECONDS). If one of the two has changed, the set is emptied again.
    Rules None: slots were read since then, so the next call empties the set.
    """

    def fitting(self, rules: Rules) -> set[Hashable]:
        """Return the kinds of requests that are known to fit under these rules, as a set to which the caller adds more.

        The set is emptied when the rules change, when slots are read again, and when the slots are older than
        KNOWN_SECONDS.
        """
        present = rules, self.read_at if self.is_young() else None
        if self._found_with[0] is not rules or self._found_with[1] != present[1] or len(self._fitting) >= MOST_KNOWN:
            self._fitting, self._found_with = set(), present
        return self._fitting

    def read(self, store: Store) -> None:
        """Read the slots from the database again. Of slots with equal pool, offering, resources and labels, only one
        active and one inactive slot are kept.
        """
        self.read_at, self._found_with = monotonic(), (None, None)
        self.slots = list({_kind_of(slot): slot for slot in store.find_slots()}.values())

    def is_young(self) -> bool:
        """Return whether the known slots were read less than KNOWN_SECONDS ago."""
        return self.read_at is not None and monotonic() - self.read_at < KNOWN_SECONDS


def _kind_of(slot: Slot) -> tuple[object, ...]:
    held = None if slot.resources is None else tuple(slot.resources.items())
    return slot.pool, slot.state in INACTIVE, slot.offering, held, tuple(slot.labels.items())


def foresee_misfits(store: Store, known: KnownSlots, rules: Rules, rows: Iterable[Reservation]) -> dict[str, Reason]:
    """Return, by id, the waiting code and sentence of each new reservation that no slot or offering could hold, even an
    empty one. Reservations that fit are missing.

    The known slots are tried first if they are not older than KNOWN_SECONDS. The slots are read from the database only
    if a reservation fits no known slot and no offering.
    """
    asked = list(rows)
    found = find_misfits(asked, known.slots if known.is_young() else (), rules)
    if not found:
        return found
    known.read(store)
    return find_misfits([row for row in asked if row.id in found], known.slots, rules)
