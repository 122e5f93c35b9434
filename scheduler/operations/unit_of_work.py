"""The unit of work: the rows that one transaction reads and changes.

Every change of state goes through it, is checked against the tables of legal moves, and appends an event. Nothing is
written before `flush`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from scheduler.model.accounts import Account, Levels, find_account
from scheduler.model.events import Event
from scheduler.model.launch_backoff import Hold
from scheduler.model.principals import Principal
from scheduler.model.reservations import Lease, Reservation, move_reservation, usable_cores
from scheduler.model.slots import Slot, move_slot, without_machine
from scheduler.model.transitions import ENDED, HOLDING, LEASE_MOVES, Cause, Phase, SlotState, check_move
from scheduler.model.view import Gone, Row
from scheduler.operations.leases_by_slot import LeasesBySlot
from scheduler.policy.capacity.fits import Occupancy
from scheduler.policy.quota.accounting import bill
from scheduler.ports import ConflictError, OutboxMessage, Transaction


@dataclass
class ChangeSet:
    """What a transaction changed: the present rows, deleted rows, events, and callbacks to send."""

    rows: list[Row] = field(default_factory=list)
    gone: list[Gone] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    outgoing: list[OutboxMessage] = field(default_factory=list)
    slots: dict[str, Slot] = field(default_factory=dict)
    """All slots that the transaction loaded, changed or not, by id."""
    hosts: list[Slot] = field(default_factory=list)
    """The slots of static hosts that changed, by more than time marks such as `last_seen`."""
    spent: dict[str, Levels] = field(default_factory=dict)
    """By account and level: what accounts paid in this transaction for the use of leases."""
    is_change: bool = False
    """Whether the transaction wrote more than time marks such as `last_seen`: then a tick should run."""

    @property
    def turned_slots(self) -> bool:
        """Return whether a slot became ready or empty in this transaction: then a tick should run at once."""
        return any(event.name in {"slot_ready", "slot_empty"} for event in self.events)


class UnitOfWork:
    """The current rows of one transaction and the changes to them. The plan's copies of rows are never used here."""

    def __init__(
        self, transaction: Transaction, cause: Cause, term: int | None = None, principal: Principal | None = None
    ) -> None:
        """Begin a unit of work in this transaction, without rows. `cause`: the cause that the events name.

        `term`: the leader's term, which the events get so that their order can be checked. `principal`: the sender of
        the request that is carried out, which the events name; None: the request was not signed, or there is none.
        """
        self.principal = principal
        self.transaction, self.cause, self._term = transaction, cause, term
        self.now = transaction.now()
        self.reservations: dict[str, Reservation] = {}
        self.slots: dict[str, Slot] = {}
        self.holds: dict[str, Hold] = {}
        self.accounts: dict[str, Account] = {}
        self.altered: set[str] = set()
        """Slots whose resources or labels changed since the plan was made, because their hosts registered again."""
        self.spent: dict[str, Levels] = {}
        """What accounts paid in this transaction for the use of leases, by account."""
        self.submitted = 0
        """The `sequence` of the newest reservation, set by `count_submitted`; 0 before."""
        self._leases = LeasesBySlot()
        self._read_slots: set[str] = set()
        """Ids of the slots of which all leases were read from the database."""
        self._changed: dict[tuple[type, str], Row] = {}
        self._marked: dict[tuple[type, str], Row] = {}
        self._deleted: list[Row] = []
        self._events: list[Event] = []

    def load(
        self,
        *,
        reservations: Iterable[str] = (),
        parts: Iterable[str] = (),
        slots: Iterable[str] = (),
        accounts: Iterable[str] = (),
        payers: bool = False,
        holders: bool = False,
    ) -> None:
        """Lock and read rows by id: these reservations with the slots of their leases, these slots, and these accounts.

        Also reads all leases on these slots. `parts`: reservations of which only the leases on `slots` change; leases
        on their other slots are read on demand. `payers`: load the accounts of all these reservations; default: only
        accounts of reservations with charged leases. `holders`: load the reservations that have leases on `slots`, too.

        Call it once in a transaction: reservations are locked before slots, and slots before accounts (see
        Transaction). The slot of a lease cannot change before it is locked, because its reservation is locked. Raises
        ConflictError if a lease was given on one of `slots` while the rows were read.
        """
        slots = list(slots)
        if holders:
            reservations = [*reservations, *(owner for owner, _ in self._list_leases(slots))]
        whole, wanted, near = set(reservations), set(slots), set(slots)
        for row in self.transaction.load_reservations([*whole, *parts]).values():  # promise: lock-order
            self.reservations[row.id] = row
            for lease in row.leases:
                self._leases.put(row.id, lease)
            wanted.update(lease.slot for lease in row.leases)
            if row.id in whole:
                near.update(lease.slot for lease in row.leases)
        self.slots.update(self.transaction.load_slots(wanted))
        self._read_leases(near)
        if holders and any(owner not in self.reservations for owner, _ in self._list_leases(slots)):
            raise ConflictError("another transaction gave a lease on a slot while the rows of the slot were read")
        paying = [
            row
            for row in self.reservations.values()
            if payers or any(lease.charged_at is not None for lease in row.leases)
        ]
        names = {*accounts, *(row.request.account for row in paying if row.request.account is not None)}
        if names:
            self.accounts.update(self.transaction.load_accounts(sorted(names)))

    def _read_leases(self, slots: Collection[str]) -> None:
        """Read all leases on these slots. Those of loaded reservations are known already, with their changes."""
        for leases in self.transaction.load_leases(slots).values():
            for owner, lease in leases:
                if owner not in self.reservations:
                    self._leases.put(owner, lease)
        self._read_slots.update(slots)

    def _find_leases(self, slot: str) -> Mapping[tuple[str, str], Lease]:
        """Return all leases that name this slot, in any of its epochs (launches), by (reservation, component)."""
        if slot in self.slots and slot not in self._read_slots:
            self._read_leases([slot])
        return self._leases.list_all(slot)

    def _list_leases(self, slots: Sequence[str]) -> list[tuple[str, Lease]]:
        """Read from the database, without locks, (reservation, lease) of every lease on these slots."""
        return [each for leases in self.transaction.load_leases(slots).values() for each in leases] if slots else []

    def count_submitted(self) -> None:
        """Set `submitted` to the newest reservation's number; no reservation is submitted until this transaction ends.
        Call it first in the transaction.
        """
        self.submitted = self.transaction.last_sequence()

    def account_of(self, reservation: Reservation) -> Account | None:
        """Return the present row of the account that pays for this reservation; None if no account pays or it is not
        loaded.
        """
        return find_account(self.accounts, reservation.request.account, reservation.sequence)

    def leases_on(self, slot: Slot) -> dict[tuple[str, str], Lease]:
        """Return the leases on a slot's present machine (in its present epoch), by (reservation, component)."""
        found = self._find_leases(slot.id)
        return {key: lease for key, lease in found.items() if lease.epoch == slot.epoch}

    def sum_leases(self, slot: Slot) -> Occupancy:
        """Return the sums of the leases on a slot's present machine, by state. Callers must not change them."""
        self._find_leases(slot.id)
        return self._leases.sum_on(slot)

    def last_epoch(self, slot: str) -> int:
        """Return the highest epoch of a slot (number of its launches) that a lease names; 0 if there is none."""
        return max((lease.epoch for lease in self._find_leases(slot).values()), default=0)

    def is_there(self, lease: Lease) -> bool:
        """Return whether the slot of a lease still has the machine that was leased, in a state that can hold leases."""
        slot = self.slots.get(lease.slot)
        return slot is not None and slot.epoch == lease.epoch and slot.state in HOLDING

    def put(self, row: Row) -> None:
        """Stage a changed row, to be written by `flush` with a higher version."""
        match row:
            case Slot():
                self.slots[row.id] = row
            case Hold():
                self.holds[row.id] = row
            case Account():
                self.accounts[row.id] = row
            case Reservation():
                self._put_reservation(row)
        key = (type(row), row.id)
        self._changed[key] = row
        if self._marked:
            self._marked.pop(key, None)

    def mark(self, row: Slot | Reservation) -> None:
        """Stage a row of which only time marks such as `last_seen` changed, so that its version does not increase."""
        if (type(row), row.id) in self._changed:
            self.put(row)
            return
        if isinstance(row, Slot):
            self.slots[row.id] = row
        else:
            self._put_reservation(row)
        self._marked[type(row), row.id] = row

    def delete(self, row: Row) -> None:
        """Stage the deletion of a row, to be carried out by `flush`."""
        if isinstance(row, Slot):
            self.slots.pop(row.id, None)
        self._deleted.append(row)

    def tell(self, event: Event) -> None:
        """Stage an event, with the leader's term and the sender of the request if there are any."""
        if self._term is not None:
            event = msgspec.structs.replace(event, detail={**event.detail, "term": self._term})
        self._events.append(self.sign(event))

    def sign(self, event: Event) -> Event:
        """Return the event with the name of the sender of the request that is carried out, if there is a sender."""
        return event if self.principal is None else msgspec.structs.replace(event, principal=self.sender)

    @property
    def sender(self) -> str | None:
        """Return the name of the principal that sent the request; None if it was not signed, or there is none."""
        return None if self.principal is None else self.principal.name

    def move_slot(self, slot: Slot, to: SlotState, *, cause: Cause | None = None, **changes: Any) -> Slot:
        """Change a slot's state by a legal move; stage row and event. A slot that becomes empty loses its machine.

        `cause`: of the event; default: that of the unit of work. Raises IllegalMoveError if the move is forbidden.
        """
        if to == "empty":
            changes = {**without_machine(slot), **changes}
        moved, event = move_slot(slot, to, cause or self.cause, self.now, **changes)
        self.put(moved)
        self.tell(event)
        return moved

    def move_reservation(self, reservation: Reservation, to: Phase, **changes: Any) -> Reservation:
        """Change a reservation's phase; stage row and event. Raises IllegalMoveError if the move is forbidden."""
        moved, event = move_reservation(reservation, to, self.cause, self.now, **changes)  # promise: table-of-moves
        self.put(moved)
        self.tell(event)
        return moved

    def free_slots(self, reservation: Reservation) -> None:
        """Increase the versions of the slots of a reservation that lost its leases. A slot without other leases is idle
        from now on.
        """
        for slot_id in dict.fromkeys(lease.slot for lease in reservation.leases):
            slot = self.slots.get(slot_id)
            if slot is None:
                continue
            # Speed: of many leases on the slot, mostly the first one belongs to another reservation.
            there = self._find_leases(slot.id).items()
            others = any(lease.epoch == slot.epoch and owner != reservation.id for (owner, _), lease in there)
            idle = slot.state in HOLDING and not others
            self.put(msgspec.structs.replace(slot, idle_since=self.now if idle else slot.idle_since))

    def free_slot(self, lease: Lease) -> None:
        """Increase the version of the slot of one lease that ended. A slot without other leases is idle from now on."""
        slot = self.slots.get(lease.slot)
        if slot is not None:
            idle = slot.state in HOLDING and not self.leases_on(slot)
            self.put(msgspec.structs.replace(slot, idle_since=self.now if idle else slot.idle_since))

    def _put_reservation(self, row: Reservation) -> None:
        known = self.reservations.get(row.id)
        held = () if known is None else known.leases
        # Unchanged leases are the same objects in both rows. Comparing identities is quick even for 10,000 leases.
        kept = {*map(id, held)} & {*map(id, row.leases)}
        gone = [lease for lease in held if id(lease) not in kept]
        come = {lease.component: lease for lease in row.leases if id(lease) not in kept}
        for lease in gone:
            # A lease that has no new version in the changed row has ended.
            follower = come.get(lease.component)
            to = "ended" if follower is None else follower.state
            if to != lease.state:
                check_move(LEASE_MOVES, "lease", f"{row.id}/{lease.component}", (lease.state, to), self.cause)
        for lease in gone:
            follower = come.get(lease.component)
            # If a lease ends, stops or changes its level, its account owes for the use since the last charge.
            account = None if lease.charged_at is None else self.account_of(row)
            # promise: paid-once
            if account is not None and (billed := bill(account, lease, follower, self.now)) != account:
                self.put(billed)
            self._leases.remove(row.id, lease)
            slot = self.slots.get(lease.slot)
            is_hosted = slot is not None and slot.machine is not None
            if slot is not None and is_hosted and follower is not None and _shown(lease) != _shown(follower):
                # A static host asks for its leases when its slot has a new version.
                self.put(slot)
        self.reservations[row.id] = row
        for lease in come.values():
            self._leases.put(row.id, lease)

    @property
    def staged(self) -> tuple[list[Row], list[Row]]:
        """Return the rows that `flush` would write with a higher version, and the rows that it would delete."""
        return list(self._changed.values()), list(self._deleted)

    def flush(self) -> ChangeSet:
        """Write all staged rows, deletions and events, and store the callbacks to send. Return what changed."""
        rows = self.transaction.save(list(self._changed.values())) if self._changed else []
        hosts = [row for row in (*rows, *self._deleted) if isinstance(row, Slot) and row.machine is not None]
        if self._marked:
            rows = [*rows, *self.transaction.mark(list(self._marked.values()))]
        gone = self.transaction.delete(self._deleted) if self._deleted else []
        if self._events:
            self.transaction.append_events(self._events)
        outgoing = self._list_callbacks()
        if outgoing:
            self.transaction.save_outgoing(outgoing)
        is_change = bool(self._changed or gone)
        return ChangeSet(rows, gone, self._events, outgoing, self.slots, hosts, self.spent, is_change=is_change)

    def _list_callbacks(self) -> list[OutboxMessage]:
        found = []
        for event in self._events:
            row = self.reservations.get(event.reservation or "")
            if row is None:
                continue
            phase = event.name.removeprefix("reservation_")
            callback = row.request.on_lease if phase == "leased" else row.request.on_end if phase in ENDED else None
            if callback is not None:
                payload = describe_notice(event, row, self.slots)
                name = f"{row.id}/{phase}/{row.token}/{row.restarts}"
                found.append(
                    OutboxMessage(id=name, callback=callback, payload=payload, created_at=event.at, sent_at=event.at)
                )
        return found


def _shown(lease: Lease) -> tuple[object, ...]:
    """Return the fields of a lease that the host of its slot can see, to detect changes that the host must learn."""
    return lease.slot, lease.token, lease.resources, lease.cores, lease.state, lease.revoke_by


def describe_notice(event: Event, reservation: Reservation, slots: Mapping[str, Slot]) -> dict[str, Any]:
    """Return the notice that is published when an event happened to a reservation.

    It has `event` without its prefix (`leased`, `revoking`, `released` …), phase, reason and deadline. A leased
    reservation also has its leases with token, slot, instance id, address, type, zone, resources and usable cores.
    """
    return {
        "event": event.name.removeprefix("reservation_"),
        "at": event.at,
        "reservation": reservation.id,
        "phase": reservation.phase,
        "reason": reservation.reason,
        "token": reservation.token,
        "expires_at": reservation.expires_at,
        "deadline": reservation.revoke_by,
        "leases": [_describe_lease(lease, slots) for lease in reservation.leases],
    }


def describe_row(reservation: Reservation, slots: Mapping[str, Slot]) -> dict[str, Any]:
    """Return a reservation as plain data, without its key's hash. Each lease also has instance id, address, type and
    zone of its machine, as long as the slot still has this machine.
    """
    row: dict[str, Any] = msgspec.to_builtins(reservation)
    del row["key_hash"]
    for lease in row["leases"]:
        slot = slots.get(lease["slot"])
        if slot is not None and slot.epoch == lease["epoch"]:
            lease.update(_describe_machine(slot))
    return row


def _describe_lease(lease: Lease, slots: Mapping[str, Slot]) -> dict[str, Any]:
    slot = slots.get(lease.slot)
    return {
        "component": lease.component,
        "kind": lease.kind,
        "state": lease.state,
        "deadline": lease.revoke_by,
        "slot": lease.slot,
        "token": lease.token,
        "resources": lease.resources,
        "cores": usable_cores(lease),
        **(_describe_machine(slot) if slot else dict.fromkeys(("instance_id", "address", "type", "zone"))),
    }


def _describe_machine(slot: Slot) -> dict[str, Any]:
    return {
        "instance_id": slot.instance_id,
        "address": slot.address,
        "type": slot.instance_type,
        "zone": slot.zone,
    }
