"""The ledger: the rows that one transaction reads and changes. Every change of state goes through it, and so
through the tables of moves, and leaves an event; nothing is written before `flush`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from scheduler.model.accounts import Account, Levels, find_account
from scheduler.model.events import Event
from scheduler.model.launch_backoff import Hold
from scheduler.model.principals import Principal
from scheduler.model.reservations import Lease, Reservation, move_reservation
from scheduler.model.slots import Slot, move_slot, without_machine
from scheduler.model.transitions import ENDED, HOLDING, LEASE_MOVES, Cause, Phase, SlotState, check_move
from scheduler.model.view import Gone, Row
from scheduler.operations.notices import describe_notice
from scheduler.policy.quota.accounting import bill
from scheduler.ports import ConflictError, OutboxMessage, Transaction


@dataclass
class ChangeSet:
    """What a transaction changed: the rows as they now are, rows that are gone, events, callbacks to send."""

    rows: list[Row] = field(default_factory=list)
    gone: list[Gone] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    outgoing: list[OutboxMessage] = field(default_factory=list)
    slots: dict[str, Slot] = field(default_factory=dict)
    """The slots that it looked at, changed or not."""
    hosts: list[Slot] = field(default_factory=list)
    """The slots of static hosts of which more than a mark of time was written."""
    spent: dict[str, Levels] = field(default_factory=dict)
    """What accounts paid for the use of leases."""
    is_change: bool = False
    """Whether more than marks of time was written: a tick should hear of that."""

    @property
    def turned_slots(self) -> bool:
        """Whether a slot turned ready or empty: a tick should hear of that at once."""
        return any(event.name in {"slot_ready", "slot_empty"} for event in self.events)


class UnitOfWork:
    """Current rows of one transaction, by id; `seen` copies from a plan never get in here."""

    def __init__(
        self, transaction: Transaction, cause: Cause, term: int | None = None, principal: Principal | None = None
    ) -> None:
        """`term`: the leader's, which its events bear, so that anybody can see that terms never go back. `principal`:
        the sender of the request that is carried out, which its events bear, too; None: no signed message asked for it.
        """
        self.principal = principal
        self.transaction, self.cause, self._term = transaction, cause, term
        self.now = transaction.now()
        self.reservations: dict[str, Reservation] = {}
        self.slots: dict[str, Slot] = {}
        self.holds: dict[str, Hold] = {}
        self.accounts: dict[str, Account] = {}
        self.altered: set[str] = set()
        """Slots with other resources or labels than the plan saw: their hosts were registered anew meanwhile."""
        self.spent: dict[str, Levels] = {}
        """What accounts paid in this transaction for the use of leases."""
        self.submitted = 0
        """The newest reservation's number, where `count_submitted` asked for it."""
        self._leases: dict[str, dict[tuple[str, str], Lease]] = {}
        self._read_slots: set[str] = set()
        """Slots whose leases were all read."""
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
        """Read and lock these rows and the slots of these reservations' leases, and read all leases on those slots.
        `parts`: reservations of which only leases on `slots` change; leases on their other slots are read on demand.
        With them come the accounts that pay for leases of these reservations, or, with `payers`, all that would; with
        `holders`, the reservations that have these leases. Raises ConflictError when a lease came meanwhile.

        Once a transaction: reservations are locked before slots, and these before accounts, as everywhere (see
        Transaction). A slot of a lease cannot change before it is locked, for its reservation is.
        """
        slots = list(slots)
        if holders:
            reservations = [*reservations, *(owner for owner, _ in self._list_leases(slots))]
        whole, wanted, near = set(reservations), set(slots), set(slots)
        for row in self.transaction.load_reservations([*whole, *parts]).values():  # promise: lock-order
            self.reservations[row.id] = row
            self._index(row.id, row.leases)
            wanted.update(lease.slot for lease in row.leases)
            if row.id in whole:
                near.update(lease.slot for lease in row.leases)
        self.slots.update(self.transaction.load_slots(wanted))
        self._read_leases(near)
        if holders and any(owner not in self.reservations for owner, _ in self._list_leases(slots)):
            raise ConflictError("a lease came while the rows of its slot were read")
        names = {*accounts, *self._list_payers(all_of_them=payers)}
        if names:
            self.accounts.update(self.transaction.load_accounts(sorted(names)))

    def _read_leases(self, slots: Collection[str]) -> None:
        """Index the leases on these slots. Those of loaded reservations are known, and may have been changed here."""
        for slot, leases in self.transaction.load_leases(slots).items():
            for owner, lease in leases:
                if owner not in self.reservations:
                    self._leases.setdefault(slot, {})[owner, lease.component] = lease
        self._read_slots.update(slots)

    def _find_leases(self, slot: str) -> Mapping[tuple[str, str], Lease]:
        """All leases that name this slot, in any epoch."""
        if slot in self.slots and slot not in self._read_slots:
            self._read_leases([slot])
        return self._leases.get(slot, {})

    def _list_leases(self, slots: Sequence[str]) -> list[tuple[str, Lease]]:
        """(reservation, lease) of every lease on these slots."""
        return [each for leases in self.transaction.load_leases(slots).values() for each in leases] if slots else []

    def count_submitted(self) -> None:
        """Note up to which one reservations are submitted, and let nobody submit until the end; before all else."""
        self.submitted = self.transaction.last_sequence()

    def _list_payers(self, *, all_of_them: bool) -> Iterator[str]:
        for row in self.reservations.values():
            account = row.request.account
            if account is not None and (all_of_them or any(lease.charged_at is not None for lease in row.leases)):
                yield account

    def account_of(self, reservation: Reservation) -> Account | None:
        """The account that pays for it, as it now is, if it has one that exists and was loaded."""
        return find_account(self.accounts, reservation.request.account, reservation.sequence)

    def _index(self, owner: str, leases: Iterable[Lease]) -> None:
        for lease in leases:
            self._leases.setdefault(lease.slot, {})[owner, lease.component] = lease

    def leases_on(self, slot: Slot) -> dict[tuple[str, str], Lease]:
        """The leases of the slot's present epoch, under (reservation, component)."""
        found = self._find_leases(slot.id)
        return {key: lease for key, lease in found.items() if lease.epoch == slot.epoch}

    def last_epoch(self, slot: str) -> int:
        """The highest epoch of this slot that any lease names, though the slot may be gone; 0 for none."""
        return max((lease.epoch for lease in self._find_leases(slot).values()), default=0)

    def is_there(self, lease: Lease) -> bool:
        """Whether the slot still is the one, in the epoch, that the lease was given on."""
        slot = self.slots.get(lease.slot)
        return slot is not None and slot.epoch == lease.epoch and slot.state in HOLDING

    def put(self, row: Row) -> None:
        """Stage a row to be written with its version bumped."""
        match row:
            case Slot():
                self.slots[row.id] = row
            case Hold():
                self.holds[row.id] = row
            case Account():
                self.accounts[row.id] = row
            case Reservation():
                self._put_reservation(row)
        self._changed[type(row), row.id] = row
        self._marked.pop((type(row), row.id), None)

    def mark(self, row: Slot | Reservation) -> None:
        """Stage marks of time: no version is bumped, unless the row is changed otherwise as well."""
        if (type(row), row.id) in self._changed:
            self.put(row)
            return
        if isinstance(row, Slot):
            self.slots[row.id] = row
        else:
            self._put_reservation(row)
        self._marked[type(row), row.id] = row

    def delete(self, row: Row) -> None:
        """Stage a row to be deleted."""
        if isinstance(row, Slot):
            self.slots.pop(row.id, None)
        self._deleted.append(row)

    def tell(self, event: Event) -> None:
        """Append an event."""
        if self._term is not None:
            event = msgspec.structs.replace(event, detail={**event.detail, "term": self._term})
        self._events.append(self.sign(event))

    def sign(self, event: Event) -> Event:
        """The event with the principal that caused it."""
        return event if self.principal is None else msgspec.structs.replace(event, principal=self.sender)

    @property
    def sender(self) -> str | None:
        """The name of the principal that asked for the changes."""
        return None if self.principal is None else self.principal.name

    def move_slot(self, slot: Slot, to: SlotState, **changes: Any) -> Slot:
        """Make a legal move of a slot, with its event; one that becomes empty forgets its machine."""
        if to == "empty":
            changes = {**without_machine(slot), **changes}
        moved, event = move_slot(slot, to, self.cause, self.now, **changes)
        self.put(moved)
        self.tell(event)
        return moved

    def move_reservation(self, reservation: Reservation, to: Phase, **changes: Any) -> Reservation:
        """Make a legal move of a reservation, with its event."""
        moved, event = move_reservation(reservation, to, self.cause, self.now, **changes)  # promise: table-of-moves
        self.put(moved)
        self.tell(event)
        return moved

    def free_slots(self, reservation: Reservation) -> None:
        """Note on its slots that its leases are gone: each one's version goes up, the last one's end is kept."""
        for slot_id in dict.fromkeys(lease.slot for lease in reservation.leases):
            slot = self.slots.get(slot_id)
            if slot is None:
                continue
            others = [key for key in self.leases_on(slot) if key[0] != reservation.id]
            idle = slot.state in HOLDING and not others
            self.put(msgspec.structs.replace(slot, idle_since=self.now if idle else slot.idle_since))

    def free_slot(self, lease: Lease) -> None:
        """The same for a single lease that is gone while its reservation stays."""
        slot = self.slots.get(lease.slot)
        if slot is not None:
            idle = slot.state in HOLDING and not self.leases_on(slot)
            self.put(msgspec.structs.replace(slot, idle_since=self.now if idle else slot.idle_since))

    def _put_reservation(self, row: Reservation) -> None:
        known = self.reservations.get(row.id)
        held = () if known is None else known.leases
        # An instance that comes or goes leaves the others of its gang as they are, the very same objects.
        kept = {*map(id, held)} & {*map(id, row.leases)}
        gone = [lease for lease in held if id(lease) not in kept]
        come = {lease.component: lease for lease in row.leases if id(lease) not in kept}
        for lease in gone:
            self._check_lease(row, lease, come.get(lease.component))
        for lease in gone:
            self._bill_lease(row, lease, come.get(lease.component))
            self._leases.get(lease.slot, {}).pop((row.id, lease.component), None)
            self._bump_host(lease, come.get(lease.component))
        self.reservations[row.id] = row
        self._index(row.id, come.values())

    def _check_lease(self, row: Reservation, lease: Lease, follower: Lease | None) -> None:
        """Hold what becomes of a lease against its table of moves: one that is no longer there has ended."""
        to = "ended" if follower is None else follower.state
        if to != lease.state:
            check_move(LEASE_MOVES, "lease", f"{row.id}/{lease.component}", (lease.state, to), self.cause)

    def _bump_host(self, lease: Lease, follower: Lease | None) -> None:
        """Raise the version of a static host's slot when a lease on it changes as its host sees it: the host compares
        versions to learn that it has to ask. Leases that come or go raise it in any case.
        """
        slot = self.slots.get(lease.slot)
        if slot is not None and slot.machine is not None and follower is not None and _shown(lease) != _shown(follower):
            self.put(slot)

    def _bill_lease(self, row: Reservation, lease: Lease, follower: Lease | None) -> None:
        """Note as due what a lease that ends, stops or changes its level has used since its account's last charge."""
        account = None if lease.charged_at is None else self.account_of(row)
        # promise: paid-once
        if account is not None and (billed := bill(account, lease, follower, self.now)) != account:
            self.put(billed)

    @property
    def staged(self) -> tuple[list[Row], list[Row]]:
        """The rows that are to be written, and those that are to be deleted."""
        return list(self._changed.values()), list(self._deleted)

    def flush(self) -> ChangeSet:
        """Write everything that was staged, with its events and callbacks."""
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
    """What the host of its slot sees of a lease."""
    return lease.slot, lease.token, lease.resources, lease.cores, lease.state, lease.revoke_by
