"""The view: one picture of slots, reservations, holds and accounts, on which a tick plans. It may lag behind the truth.

Rows come in any order, more than once and late; the newer copy of each wins. What is derived from them
(the leases on a slot) is updated with every row, so that a tick never walks all of it.
"""

from collections.abc import Hashable, Iterable, Mapping

import msgspec

from scheduler.model.accounts import Account, find_account
from scheduler.model.launch_backoff import Hold
from scheduler.model.ordered_slots import OrderedSlots
from scheduler.model.pending_queue import PendingQueue
from scheduler.model.reservations import Lease, Request, Reservation, Shape, is_over, is_special, make_shape, shape_key
from scheduler.model.slots import Slot
from scheduler.model.transitions import PHASES

Row = Slot | Reservation | Hold | Account
Kind = str

KINDS: dict[type, Kind] = {Slot: "slots", Reservation: "reservations", Hold: "holds", Account: "accounts"}
ROW_TYPES: dict[Kind, type[Row]] = {"slots": Slot, "reservations": Reservation, "holds": Hold, "accounts": Account}


class Gone(msgspec.Struct, frozen=True):
    """A row that was deleted; `version` is one more than the last that it had."""

    kind: Kind
    id: str
    version: int


Change = Row | Gone
"""What is published: a whole row as it now is, or that it is gone."""


def is_newer(row: Row, known: Row | None) -> bool:
    """Return whether `row` is newer than the known one: greater version, or as great with a later mark of time.

    Two marks within one tick of the clock cannot be distinguished by their time: the row that comes later is taken.
    """
    if known is None:
        return True
    newer, older = (row.version, row.marked_at), (known.version, known.marked_at)
    return newer > older or (newer == older and row != known)


def count_rows(view: "View") -> dict[Kind, int]:
    """How many rows of each kind a view holds."""
    return {kind: len(view.rows(kind)) for kind in ROW_TYPES}


class View:
    """Slots, reservations that are not over, holds and accounts; the other tables are derived from them.

    leases_on: slot id -> (reservation, component) -> lease; by_phase: phase -> id -> reservation;
    shapes: reservation id -> its shape, one object for all that are alike; special: reservation id -> one that is not
    placed by its shape alone, because it is on hold, declined slots, was interrupted or has a claim; mortal:
    reservation id -> one that expires; timed: reservation id -> one with a ttl of its own; waiters: the pending ones;
    stretching: reservation id -> one that is leased and has elastic components;
    has_limits: whether any lease ever had a limit of cores.
    """

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self.slots: dict[str, Slot] = {}
        self.reservations: dict[str, Reservation] = {}
        self.holds: dict[str, Hold] = {}
        self.accounts: dict[str, Account] = {}
        self.leases_on: dict[str, dict[tuple[str, str], Lease]] = {}
        self.by_phase: dict[str, dict[str, Reservation]] = {phase: {} for phase in PHASES}
        self.shapes: dict[str, Shape] = {}
        self.special: dict[str, Reservation] = {}
        self.mortal: dict[str, Reservation] = {}
        self.timed: dict[str, Reservation] = {}
        self.stretching: dict[str, Reservation] = {}
        self.has_limits = False
        self.revision = 0
        """How many changes this view has taken over."""
        self.touched: dict[str, int] = {}
        """Slot id -> the revision in which its row or one of its leases changed last; in order of revision."""
        self._interned: dict[Hashable, Shape] = {}
        self._slots_of: dict[str, OrderedSlots] = {}
        """By pool."""
        self.waiters = PendingQueue(self.by_phase["pending"])
        for row in rows:
            self.apply(row)

    def apply(self, change: Change) -> None:
        """Take over a row unless the copy here is as new; drop what is gone or over."""
        match change:
            case Gone():
                self._drop(change)
            case Slot():
                stood = self.slots.get(change.id)
                if is_newer(change, stood):
                    self._place(change, stood)
            case Hold():
                if is_newer(change, self.holds.get(change.id)):
                    self.holds[change.id] = change
                    self.revision += 1
            case Account():
                if is_newer(change, self.accounts.get(change.id)):
                    self.accounts[change.id] = change
                    self.revision += 1
            case Reservation():
                known = self.reservations.get(change.id)
                if is_newer(change, known):
                    self._take(change, known)

    def account_of(self, reservation: Reservation) -> Account | None:
        """The account that pays for a reservation, if it has one that exists."""
        return find_account(self.accounts, reservation.request.account, reservation.sequence)

    def find(self, row: Row) -> Row | None:
        """The copy that stands here of the row with the same kind and id."""
        return self.rows(KINDS[type(row)]).get(row.id)

    def rows(self, kind: Kind) -> Mapping[str, Row]:
        """The rows of one kind by id."""
        found: Mapping[str, Row] = getattr(self, kind)
        return found

    def leases_of(self, slot_id: str) -> list[tuple[str, Lease]]:
        """(reservation id, lease) of every lease that names this slot, whatever epoch it means."""
        return [(owner, lease) for (owner, _), lease in self.leases_on.get(slot_id, {}).items()]

    @property
    def pools(self) -> Iterable[str]:
        """The pools that have slots here."""
        return self._slots_of

    def list_slots(self, pool: str) -> list[Slot]:
        """The slots of a pool in their order."""
        slots = self._slots_of.get(pool)
        return [] if slots is None else slots.list()

    def _touch(self, slot_id: str) -> None:
        self.touched.pop(slot_id, None)
        self.touched[slot_id] = self.revision

    def _place(self, slot: Slot, known: Slot | None) -> None:
        self.slots[slot.id] = slot
        self.revision += 1
        self._touch(slot.id)
        if known is None or known.pool != slot.pool:
            self._displace(known)
        if slot.pool not in self._slots_of:
            self._slots_of[slot.pool] = OrderedSlots()
        self._slots_of[slot.pool].put(slot)

    def _displace(self, slot: Slot | None) -> None:
        if slot is None:
            return
        slots = self._slots_of[slot.pool]
        slots.remove(slot)
        if not slots:
            del self._slots_of[slot.pool]

    def _take(self, reservation: Reservation, known: Reservation | None) -> None:
        self.revision += 1
        self._forget(known)
        if is_over(reservation):
            return
        self.reservations[reservation.id] = reservation
        self.by_phase[reservation.phase][reservation.id] = reservation
        shape = self.shapes[reservation.id] = self._intern(reservation.request)
        if reservation.phase == "pending":
            self.waiters.add(reservation, shape)
        elif shape.elastic and reservation.phase == "leased":
            self.stretching[reservation.id] = reservation
        if is_special(reservation):
            self.special[reservation.id] = reservation
        if reservation.expires_at is not None:
            self.mortal[reservation.id] = reservation
        if reservation.request.ttl is not None:
            self.timed[reservation.id] = reservation
        for lease in reservation.leases:
            self.leases_on.setdefault(lease.slot, {})[reservation.id, lease.component] = lease
            self._touch(lease.slot)
            if lease.cores is not None:
                self.has_limits = True

    def _intern(self, request: Request) -> Shape:
        key = shape_key(request)
        shape = self._interned.get(key)
        if shape is None:
            shape = self._interned[key] = make_shape(request)
        return shape

    def _forget(self, reservation: Reservation | None) -> None:
        if reservation is None:
            return
        del self.reservations[reservation.id], self.shapes[reservation.id]
        del self.by_phase[reservation.phase][reservation.id]
        if reservation.phase == "pending":
            self.waiters.note_departure()
        self.special.pop(reservation.id, None)
        self.mortal.pop(reservation.id, None)
        self.timed.pop(reservation.id, None)
        self.stretching.pop(reservation.id, None)
        for lease in reservation.leases:
            held = self.leases_on.get(lease.slot, {})
            held.pop((reservation.id, lease.component), None)
            self._touch(lease.slot)
            if not held:
                self.leases_on.pop(lease.slot, None)

    def _drop(self, gone: Gone) -> None:
        rows: dict[str, Row] = getattr(self, gone.kind)
        known = rows.get(gone.id)
        if known is None or known.version >= gone.version:
            return
        self.revision += 1
        if isinstance(known, Reservation):
            self._forget(known)
            return
        del rows[gone.id]
        if isinstance(known, Slot):
            self._touch(known.id)
            self._displace(known)
