"""The view: one picture of slots, reservations and holds, on which a tick plans. It may lag behind the truth.

Rows come in any order, more than once and late; the newer copy of each wins. What is derived from them
(who sits on a slot) is kept up with every row, so that a tick never walks all of it.
"""

from collections.abc import Iterable

import msgspec

from scheduler.model.holds import Hold
from scheduler.model.reservations import Lease, Reservation, is_over
from scheduler.model.slots import Slot

Row = Slot | Reservation | Hold
Kind = str

KINDS: dict[type, Kind] = {Slot: "slots", Reservation: "reservations", Hold: "holds"}
ROW_TYPES: dict[Kind, type[Row]] = {"slots": Slot, "reservations": Reservation, "holds": Hold}


class Gone(msgspec.Struct, frozen=True):
    """A row that was deleted; `version` is one more than the last that it had."""

    kind: Kind
    id: str
    version: int


Change = Row | Gone
"""What is published: a whole row as it now is, or that it is gone."""


def is_newer(row: Row, known: Row | None) -> bool:
    """Whether `row` says more than what is known: greater version, or as great with a later mark of time."""
    return known is None or (row.version, row.marked_at) > (known.version, known.marked_at)


class View:
    """Slots, reservations that are not over, and holds; `leases_on` and `pending` are derived from them."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self.slots: dict[str, Slot] = {}
        self.reservations: dict[str, Reservation] = {}
        self.holds: dict[str, Hold] = {}
        self.leases_on: dict[str, dict[tuple[str, str], Lease]] = {}
        for row in rows:
            self.apply(row)

    def apply(self, change: Change) -> None:
        """Take over a row unless the copy here is as new; drop what is gone or over."""
        match change:
            case Gone():
                self._drop(change)
            case Slot():
                if is_newer(change, self.slots.get(change.id)):
                    self.slots[change.id] = change
            case Hold():
                if is_newer(change, self.holds.get(change.id)):
                    self.holds[change.id] = change
            case Reservation():
                known = self.reservations.get(change.id)
                if is_newer(change, known):
                    self._take(change, known)

    def find(self, row: Row) -> Row | None:
        """The copy that stands here of the row with the same kind and id."""
        rows: dict[str, Row] = getattr(self, KINDS[type(row)])
        return rows.get(row.id)

    def leases_of(self, slot_id: str) -> list[tuple[str, Lease]]:
        """(reservation id, lease) of every lease that names this slot, whatever epoch it means."""
        return [(owner, lease) for (owner, _), lease in self.leases_on.get(slot_id, {}).items()]

    def _take(self, reservation: Reservation, known: Reservation | None) -> None:
        self._forget_leases(known)
        if is_over(reservation):
            self.reservations.pop(reservation.id, None)
            return
        self.reservations[reservation.id] = reservation
        for lease in reservation.leases:
            self.leases_on.setdefault(lease.slot, {})[reservation.id, lease.component] = lease

    def _forget_leases(self, reservation: Reservation | None) -> None:
        if reservation is None:
            return
        for lease in reservation.leases:
            held = self.leases_on.get(lease.slot, {})
            held.pop((reservation.id, lease.component), None)
            if not held:
                self.leases_on.pop(lease.slot, None)

    def _drop(self, gone: Gone) -> None:
        rows: dict[str, Row] = getattr(self, gone.kind)
        known = rows.get(gone.id)
        if known is None or known.version >= gone.version:
            return
        if isinstance(known, Reservation):
            self._forget_leases(known)
        del rows[gone.id]
