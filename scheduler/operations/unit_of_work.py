"""The unit of work: the rows that one transaction reads and the changes to them.

Each change of state is made here: it is checked against the tables of legal moves, and it appends an event. Nothing is
written before `flush`.
"""

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeVar

import msgspec

from scheduler.model.accounts import Account, Levels, find_account
from scheduler.model.costs import meter_slots
from scheduler.model.events import Event
from scheduler.model.launch_backoff import Hold
from scheduler.model.principals import Principal
from scheduler.model.reservations import NO_DETAILS, Lease, Reservation, move_reservation
from scheduler.model.runs import Outcome
from scheduler.model.slots import Slot, has_machine_of, move_slot, without_machine
from scheduler.model.transitions import ENDED, HOLDING, LEASE_MOVES, Cause, Phase, SlotState, check_move
from scheduler.model.view import Row
from scheduler.operations.change_set import ChangeSet, describe_notice
from scheduler.policy.capacity.fits import Occupancy
from scheduler.policy.quota.accounting import bill
from scheduler.ports import ConflictError, OutboxMessage, Transaction

Key = tuple[str, str]
"""The id of a reservation and the name of the component that the lease is for."""
_NONE: Final[Mapping[Key, Lease]] = MappingProxyType({})
Read = Callable[[Collection[str], Container[str]], Mapping[str, Sequence[tuple[str, Lease]]]]
"""A function that reads the leases on some slots from the database. Its arguments are the ids of the slots and of
reservations to omit. It returns pairs (reservation id, lease) by slot.
"""


class LeasesBySlot:
    """The leases on each slot, in any of its epochs (launches), by reservation and component. The leases on a slot are
    read from the database when they are first needed.

    Speed: the sums of a slot's leases are updated with every lease, so that the test of one more lease does not add up
    all the others.
    """

    def __init__(self, load: Read, loaded: Container[str]) -> None:
        """Begin without leases. `load`: the function that reads leases. `loaded`: the reservations whose rows the
        transaction has loaded. Their leases are not read, because the caller adds them, with all changes, by `replace`.
        """
        self._load, self._loaded = load, loaded
        self._read: set[str] = set()
        """Ids of the slots whose leases were all read from the database."""
        self._leases: dict[str, dict[Key, Lease]] = {}
        self._sums: dict[tuple[str, int], Occupancy] = {}
        """(slot, epoch) -> the sums of the leases there. A pair that no caller has asked for is missing."""

    def read(self, slots: Collection[str]) -> None:
        """Read all leases on these slots from the database, without locks."""
        for leases in self._load(slots, self._loaded).values():
            for owner, lease in leases:
                self._put(owner, lease)
        self._read.update(slots)

    def replace(self, owner: str, gone: Iterable[Lease], come: Iterable[Lease]) -> None:
        for lease in gone:
            ended = self._leases.get(lease.slot, {}).pop((owner, lease.component), None)
            if self._sums and ended is not None:
                self._count(ended, -1)
        for lease in come:
            self._put(owner, lease)

    def _put(self, owner: str, lease: Lease) -> None:
        there, key = self._leases.setdefault(lease.slot, {}), (owner, lease.component)
        if self._sums:
            if (former := there.get(key)) is not None:
                self._count(former, -1)
            self._count(lease, 1)
        there[key] = lease

    def list_all(self, slot: str) -> Mapping[Key, Lease]:
        """Return the leases on this slot, in any epoch, by (reservation id, component)."""
        if slot not in self._read:
            self.read([slot])
        return self._leases.get(slot, _NONE)

    def list_on(self, slot: Slot) -> dict[Key, Lease]:
        """Return the leases on the present machine (epoch) of a slot, by (reservation id, component)."""
        return {key: lease for key, lease in self.list_all(slot.id).items() if lease.epoch == slot.epoch}

    def last_epoch(self, slot: str) -> int:
        """Return the highest epoch in which a lease on this slot was given; 0 if there is no such lease."""
        return max((lease.epoch for lease in self.list_all(slot).values()), default=0)

    def sum_on(self, slot: Slot) -> Occupancy:
        """Return the sums of the resources of the leases on a slot's present machine, by state of the lease. Callers
        must not change the result.
        """
        there = self._sums.get((slot.id, slot.epoch))
        if there is None:
            there = self._sums[slot.id, slot.epoch] = Occupancy(self.list_on(slot).values())
        return there

    def _count(self, lease: Lease, times: int) -> None:
        there = self._sums.get((lease.slot, lease.epoch))
        if there is not None:
            there.add(lease.state, lease.resources, times)


Staged = TypeVar("Staged", bound=Row)
Changed = TypeVar("Changed", Slot, Reservation, Account)
Marked = TypeVar("Marked", Slot, Reservation)


class UnitOfWork:
    """The rows of one transaction, as the transaction has read them, and the changes to them. Operations change only
    these rows, and never the copies of rows on which a plan was made, because the copies may be outdated.
    """

    def __init__(
        self,
        transaction: Transaction,
        cause: Cause,
        term: int | None = None,
        principal: Principal | None = None,
        *,
        tick: int = 0,
    ) -> None:
        """Begin a unit of work in this transaction, without rows.

        `cause`: the cause that events get. `term`: the leader's term, which events get so that their order can be
        checked. `tick`: the number of the tick in its term, which events get too; 0: no tick. `principal`: the sender
        of the request that is carried out, whose name events get; None: there is no signed request.
        """
        self.principal = principal
        self.transaction, self.cause = transaction, cause
        self._origin = ({} if term is None else {"term": term}) | ({"tick": tick} if tick else {})
        self.now = transaction.now()
        self.reservations: dict[str, Reservation] = {}
        self.slots: dict[str, Slot] = {}
        self.holds: dict[str, Hold] = {}
        self.accounts: dict[str, Account] = {}
        self.altered: set[str] = set()
        """Ids of slots whose resources or labels changed since the plan was made, because their hosts
        registered again.
        """
        self.heard: Mapping[str, float] = {}
        """Slot id -> the time of the last heartbeat of the host's agent, for registrations by another run of it."""
        self.outcomes: list[Outcome] = []
        """How commands have ended, by the reports of this transaction."""
        self.spent: dict[str, Levels] = {}
        """Account id -> what the account paid in this transaction for the use of leases, by level."""
        self.submitted = 0
        """The `sequence` of the newest reservation, set by `count_submitted`; 0 before."""
        self.leases = LeasesBySlot(transaction.load_leases, self.reservations)
        """The leases on each slot, with the changes of this transaction."""
        self._changed: dict[tuple[type, str], Row] = {}
        self._marked: dict[tuple[type, str], Row] = {}
        self._parted: dict[str, float] = {}
        """Machine -> the time at which the slot of the machine became empty in this transaction."""
        self._ending: set[str] = set()
        self._taken_back: set[str] = set()
        """Slots whose machines EC2 shuts down, and slots whose machines EC2 has taken back by an interruption."""
        self._noted: dict[str, dict[str, float]] = {}
        """Slot -> the new prices of its meter, by field."""
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
        whole: bool = False,
    ) -> None:
        """Lock and read rows by id: these reservations, the slots of their leases, these slots, and these accounts.
        Also read all leases on the slots.

        `parts`: reservations of which only the leases on `slots` change. The slots of their other leases are locked
        too, but the leases of other reservations on them are read only when they are needed. `payers`: load the
        accounts of all these reservations (default: only of reservations with charged leases). `holders`: also load the
        reservations that have leases on `slots`. `whole`: load all slots and all accounts.

        Call it once in a transaction, because all transactions lock reservations before slots, and slots before
        accounts. Raises ConflictError if another transaction gave a lease on one of `slots` meanwhile.
        """
        slots = list(slots)
        if holders:
            reservations = [*reservations, *(owner for owner, _ in self._list_leases(slots))]
        complete, wanted, near = dict.fromkeys(reservations), set(slots), set(slots)
        for row in self.transaction.load_reservations([*complete, *parts]).values():  # promise: lock-order
            self.reservations[row.id] = row
            if row.leases:
                self.leases.replace(row.id, (), row.leases)
                wanted.update(lease.slot for lease in row.leases)
                if row.id in complete:
                    near.update(lease.slot for lease in row.leases)
        if whole:
            self.slots.update((slot.id, slot) for slot in self.transaction.load_all_slots())
        else:
            self.slots.update(self.transaction.load_slots(wanted))
        self.leases.read(near)
        if holders and any(owner not in self.reservations for owner, _ in self._list_leases(slots)):
            raise ConflictError("another transaction granted a lease on a slot while its rows were read")
        paying = [
            row
            for row in self.reservations.values()
            if payers or (row.leases and any(lease.charged_at is not None for lease in row.leases))
        ]
        names = {*accounts, *(row.request.account for row in paying if row.request.account is not None)}
        if whole:
            self.accounts.update((account.id, account) for account in self.transaction.load_all_accounts())
        elif names:
            self.accounts.update(self.transaction.load_accounts(sorted(names)))

    def _list_leases(self, slots: Sequence[str]) -> list[tuple[str, Lease]]:
        """Read every lease on these slots from the database, without locks. Return pairs (reservation id, lease)."""
        return [each for leases in self.transaction.load_leases(slots).values() for each in leases] if slots else []

    def count_submitted(self) -> None:
        """Set `submitted` to the `sequence` of the newest reservation. No other transaction can submit reservations
        until this one ends. Call it first in the transaction.
        """
        self.submitted = self.transaction.last_sequence()

    def account_of(self, reservation: Reservation) -> Account | None:
        """Return the loaded row of the account that pays for this reservation; None if no account pays or it is not
        loaded.
        """
        return find_account(self.accounts, reservation.request.account, reservation.sequence)

    def is_there(self, lease: Lease) -> bool:
        """Return whether the lease is still on a machine: its slot has the epoch of the lease, and is in a state in
        which slots have leases.
        """
        slot = self.slots.get(lease.slot)
        return slot is not None and has_machine_of(slot, lease.epoch)

    def put(self, row: Staged) -> Staged:
        """Stage a changed row, and return it. `flush` writes it with a higher version."""
        if isinstance(row, Reservation):
            self._put_reservation(row)
        elif isinstance(row, Slot):
            self.slots[row.id] = row
        elif isinstance(row, Hold):
            self.holds[row.id] = row
        elif isinstance(row, Account):
            self.accounts[row.id] = row
        key = (type(row), row.id)
        self._changed[key] = row
        if self._marked:
            self._marked.pop(key, None)
        return row

    def put_slots(self, rows: Sequence[Slot]) -> None:
        """Stage changed slots, as `put` does with each of them. Speed: a gang changes many slots."""
        for row in rows:
            self.slots[row.id] = self._changed[Slot, row.id] = row
        for row in rows if self._marked else ():
            self._marked.pop((Slot, row.id), None)

    def change(self, row: Changed, **fields: Any) -> Changed:
        """Stage the row with these fields changed, and return it. If the row has these values already, nothing is
        staged.
        """
        changed = msgspec.structs.replace(row, **fields)
        if changed != row:
            self.put(changed)
        return changed

    def mark(self, row: Marked) -> Marked:
        """Stage a row of which only time marks such as `last_seen` have changed, and return it. `flush` writes it with
        the same version.
        """
        if (type(row), row.id) in self._changed:
            return self.put(row)
        if isinstance(row, Slot):
            self.slots[row.id] = row
        else:
            self._put_reservation(row)
        self._marked[type(row), row.id] = row
        return row

    def delete(self, row: Row) -> None:
        """Stage the deletion of a row. `flush` deletes it."""
        if isinstance(row, Slot):
            self.slots.pop(row.id, None)
        self._deleted.append(row)

    def add_event(self, event: Event) -> None:
        """Stage an event. It gets the leader's term, the number of the tick and the name of the sender of the request,
        if there are any.
        """
        if self._origin:
            event = msgspec.structs.replace(event, detail={**event.detail, **self._origin})
        self._events.append(self.sign(event))

    def note(
        self,
        name: str,
        detail: dict[str, Any] | None = None,
        *,
        cause: Cause | None = None,
        slot: str | None = None,
        reservation: str | None = None,
    ) -> None:
        """Stage the event `name` of this moment. `cause`: its cause; None: that of the unit of work."""
        self.add_event(
            Event(
                at=self.now,
                name=name,
                cause=cause or self.cause,
                slot=slot,
                reservation=reservation,
                detail=detail or {},
            )
        )

    def sign(self, event: Event) -> Event:
        """Return the event with the name of the sender of the request that is carried out. Return it unchanged if there
        is no sender.
        """
        return event if self.principal is None else msgspec.structs.replace(event, principal=self.sender)

    @property
    def sender(self) -> str | None:
        """The name of the principal that sent the request; None if there is no request or it was not signed."""
        return None if self.principal is None else self.principal.name

    def move_slot(self, slot: Slot, to: SlotState, *, cause: Cause | None = None, **changes: Any) -> Slot:
        """Change the state of a slot to `to`; stage its row and the event. Return the new row. A slot that becomes
        empty loses its machine.

        `cause`: the cause of the event (default: that of the unit of work). `changes`: other fields of the new row;
        `reason` goes into the event. Raises IllegalMoveError if the move is forbidden.
        """
        if to == "empty":
            if slot.instance_id is not None:
                # A stale answer of the cloud may show the machine again: then its time until now is booked already.
                self._parted[slot.instance_id] = self.now
            changes = {**without_machine(slot), **changes}
        moved, event = move_slot(slot, to, cause or self.cause, self.now, **changes)
        self.put(moved)
        self.add_event(event)
        return moved

    def note_ending(self, slot: Slot) -> None:
        """Record in the cost ledger that EC2 shuts the slot's machine down, and no longer bills it."""
        if slot.meter is not None and slot.meter.phase != "ending":
            self._ending.add(slot.id)
            self.put(self.slots.get(slot.id, slot))

    def note_prices(self, slot: Slot, **prices: float) -> None:
        """Record in the cost ledger prices that AWS bills for the slot's machine from now on, in dollars per hour.
        `prices`: fields of its meter (`spot`, `volume`, `address`).
        """
        if slot.meter is not None and any(getattr(slot.meter, name) != price for name, price in prices.items()):
            self._noted.setdefault(slot.id, {}).update(prices)
            self.put(self.slots.get(slot.id, slot))

    def note_taken_back(self, slot: Slot) -> None:
        """Record that EC2 took the slot's machine back by an interruption. The slot becomes empty in this
        transaction.
        """
        self._taken_back.add(slot.id)

    def move_reservation(
        self, reservation: Reservation, to: Phase, details: Mapping[str, Any] = NO_DETAILS, **changes: Any
    ) -> Reservation:
        """Change the phase of a reservation; stage its row and the event. Return the new row. Raises IllegalMoveError
        if the move is forbidden. `details`: further details of the event.
        """
        details = {**details, **self._origin} if details else self._origin  # speed: `add_event` would copy the event
        # promise: table-of-moves
        moved, event = move_reservation(reservation, to, self.cause, self.now, details, **changes)
        self.put(moved)
        self._events.append(event if self.principal is None else self.sign(event))
        return moved

    def free_slots(self, reservation: Reservation) -> None:
        """Stage the slots on which `reservation` had leases, after these leases have ended: the slots will be written
        at the commit. A slot without other leases is idle from now on.
        """
        freed: list[Slot] = []
        for slot_id in dict.fromkeys([lease.slot for lease in reservation.leases]):
            slot = self.slots.get(slot_id)
            if slot is None:
                continue
            # Speed: of many leases on the slot, mostly the first one belongs to another reservation.
            there = self.leases.list_all(slot_id)
            others = bool(there) and any(
                lease.epoch == slot.epoch and owner != reservation.id for (owner, _), lease in there.items()
            )
            idle = slot.state in HOLDING and not others
            freed.append(msgspec.structs.replace(slot, idle_since=self.now if idle else slot.idle_since))
        self.put_slots(freed)

    def free_slot(self, lease: Lease) -> None:
        """Stage the slot of one lease that has ended. If the slot has no other leases, it is idle from now on."""
        slot = self.slots.get(lease.slot)
        if slot is not None:
            idle = slot.state in HOLDING and not self.leases.list_on(slot)
            self.put(msgspec.structs.replace(slot, idle_since=self.now if idle else slot.idle_since))

    def _put_reservation(self, row: Reservation) -> None:
        held = () if (known := self.reservations.get(row.id)) is None else known.leases
        if not held:  # speed: most reservations that a tick changes get their first leases
            self.reservations[row.id] = row
            self.leases.replace(row.id, (), row.leases)
            return
        # Unchanged leases are the same objects in both rows. Comparing identities is quick even for 10,000 leases.
        kept = {*map(id, held)} & {*map(id, row.leases)} if row.leases else ()
        gone = [lease for lease in held if id(lease) not in kept]
        come = {lease.component: lease for lease in row.leases if id(lease) not in kept}
        checked: set[tuple[str, str]] = set()
        for lease in gone:
            # A lease that has no new version in the changed row has ended.
            follower = come.get(lease.component)
            move = lease.state, "ended" if follower is None else follower.state
            if move[0] != move[1] and move not in checked:  # speed: a gang's leases make the same move
                check_move(LEASE_MOVES, "lease", f"{row.id}/{lease.component}", move, self.cause)
                checked.add(move)
        for lease in gone:
            follower = come.get(lease.component)
            # If a lease ends, stops or changes its level, its account owes for the use since the last charge.
            account = None if lease.charged_at is None else self.account_of(row)
            # promise: paid-once
            if account is not None and (billed := bill(account, lease, follower, self.now)) != account:
                self.put(billed)
            slot = None if follower is None else self.slots.get(lease.slot)
            is_hosted = slot is not None and slot.machine is not None
            if slot is not None and is_hosted and follower is not None and _shown(lease) != _shown(follower):
                # A static host asks for its leases when its slot has a new version.
                self.put(slot)
        self.reservations[row.id] = row
        self.leases.replace(row.id, gone, come.values())

    @property
    def staged(self) -> tuple[list[Row], list[Row]]:
        """Return the rows that `flush` would write with a higher version, and the rows that it would delete."""
        return list(self._changed.values()), list(self._deleted)

    def flush(self) -> ChangeSet:
        """Write all staged rows, deletions and events, book what the machines of changed slots cost, and store the
        callbacks to send. Return what changed.
        """
        slots = [row for row in self._changed.values() if isinstance(row, Slot)]
        gone_slots = [row for row in self._deleted if isinstance(row, Slot)]
        metered, costs = meter_slots(
            slots, gone_slots, self.now, ending=self._ending, taken_back=self._taken_back, noted=self._noted
        )
        for slot in metered:
            # The meter is a part of the row: a change that is written twice fails, and so does its booking.
            self._changed[Slot, slot.id] = self.slots[slot.id] = slot  # promise: seconds-booked-once
        if costs:
            self.transaction.book(costs)
        rows = self.transaction.save(list(self._changed.values())) if self._changed else []
        hosts = [row for row in (*rows, *self._deleted) if isinstance(row, Slot) and row.machine is not None]
        if self._marked:
            rows = [*rows, *self.transaction.mark(list(self._marked.values()))]
        gone = self.transaction.delete(self._deleted) if self._deleted else []
        if self._parted:
            self.transaction.take_unbooked(self._parted)
        if self._events:
            self.transaction.append_events(self._events)
        if outgoing := self._list_callbacks():
            self.transaction.save_outgoing(outgoing)
        is_change = bool(self._changed or gone)
        return ChangeSet(
            rows, gone, self._events, outgoing, self.slots, hosts, self.spent, self.now, is_change, self.outcomes
        )

    def _list_callbacks(self) -> list[OutboxMessage]:
        found = []
        for event in self._events:
            row = self.reservations.get(event.reservation or "")
            if row is None or (row.request.on_lease is None and row.request.on_end is None):
                continue
            phase = event.name.removeprefix("reservation_")
            callback = row.request.on_lease if phase == "leased" else row.request.on_end if phase in ENDED else None
            if callback is not None:
                name, payload = f"{row.id}/{phase}/{row.token}/{row.restarts}", describe_notice(event, row, self.slots)
                call = OutboxMessage(id=name, callback=callback, payload=payload, created_at=event.at, sent_at=event.at)
                found.append(call)
        return found


def _shown(lease: Lease) -> tuple[object, ...]:
    """Return the fields of a lease that the host of its slot gets. The host must be informed if one of them changes."""
    return lease.slot, lease.token, lease.resources, lease.cores, lease.state, lease.revoke_by
