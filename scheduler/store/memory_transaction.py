"""The Transaction port implemented with plain dicts. As in SQL, a write fails if its row was changed
after it was read.
"""

import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest
from operator import itemgetter
from types import TracebackType
from typing import Any, Self, TypeVar, cast
from uuid import uuid4

import msgspec
from typing_extensions import override

from scheduler.model.accounts import NOTHING, Account, BalanceSample, Levels, add, find_account
from scheduler.model.costs import Cost, CostKey, book
from scheduler.model.events import Event
from scheduler.model.launch_backoff import Hold
from scheduler.model.market import InstanceType, Price, PriceChange, StoredMarket
from scheduler.model.principals import WORKER
from scheduler.model.reservations import Lease, Reservation
from scheduler.model.rules import Rules, read_rules, with_images
from scheduler.model.run_times import RunTimes
from scheduler.model.runs import Execution, StoredCommand
from scheduler.model.slots import Slot
from scheduler.model.transitions import ENDED, INACTIVE, PHASES
from scheduler.model.view import KINDS, Gone, Row
from scheduler.policy.quota.accounting import sum_running
from scheduler.ports import (
    AppliedRules,
    Counted,
    DeposedError,
    LeaderTerm,
    MarketWrites,
    OutboxMessage,
    Pending,
    StaleWriteError,
    StoredAnswer,
    StoredPrincipal,
    StoredRules,
    StoreUnavailableError,
    Transaction,
)
from scheduler.ports.run_times import RunTimeWrites
from scheduler.ports.runs import RunWrites
from scheduler.protocol.signing import make_key
from scheduler.store.shared_rules import LONG_AGO, WholeOrNothing, take_marks

# The committed contents of the memory store: plain dicts of rows, and indexes that make reads fast.


AnyRow = TypeVar("AnyRow", bound=Row)
RunKey = tuple[str, int, str]
"""The key of a run of a command: see `Execution.key`."""
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
        self.run_times: dict[str, RunTimes] = {}
        self.rows: dict[type[Row], dict[str, Any]] = {
            Slot: self.slots,
            Reservation: self.reservations,
            Hold: self.holds,
            Account: self.accounts,
            RunTimes: self.run_times,
        }
        """The dicts of the slots, reservations, holds, accounts and run times, by type of row."""
        self.occupants: dict[str, dict[str, list[Lease]]] = {}
        self.phases: dict[str, dict[str, None]] = {phase: {} for phase in PHASES}
        self.events: list[Event] = []
        self.balances: dict[str, dict[float, BalanceSample]] = {}
        self.costs: dict[CostKey, Cost] = {}
        self.booked_machines: dict[str, float] = {}
        """Machine without a slot -> the time until which its costs are booked."""
        self.commands: dict[str, str] = {}
        """Reservation id -> its command as JSON text."""
        self.executions: dict[str, dict[RunKey, Execution]] = {}
        """Reservation id -> the runs of its command."""
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
        self.counted = Counted()
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
            self.commands.pop(row_id, None)
            self.executions.pop(row_id, None)
        del self.rows[kind][row_id]
        self.written.pop(key, None)

    def present(self) -> Iterator[Row]:
        """Yield every slot, launch back-off (hold), account, row of run times and reservation, also ended ones."""
        yield from self.slots.values()
        yield from self.holds.values()
        yield from self.accounts.values()
        yield from self.run_times.values()
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


# The writes of a transaction of the memory store to the catalogue of instance types and to the prices.


class MemoryMarketWrites(MarketWrites):
    """The part of a transaction of the memory store that writes instance types and prices. The writes are collected
    until the transaction ends. See MarketWrites.
    """

    _market: StoredMarket
    _price_changes: list[PriceChange]

    @override
    def save_types(self, types: Sequence[InstanceType]) -> None:
        self._keep_types({**self._market.type_by_name, **{each.name: each for each in types}})

    @override
    def delete_types(self, names: Iterable[str]) -> None:
        gone = set(names)
        self._keep_types({name: each for name, each in self._market.type_by_name.items() if name not in gone})

    @override
    def save_prices(self, prices: Sequence[Price]) -> None:
        kept = {each.key: each for each in (*self._market.prices, *prices)}
        self._market = msgspec.structs.replace(self._market, prices=tuple(kept[key] for key in sorted(kept)))

    @override
    def save_price_changes(self, changes: Sequence[PriceChange]) -> None:
        self._price_changes += changes

    @override
    def count_market_change(self) -> None:
        self._market = msgspec.structs.replace(self._market, version=self._market.version + 1)

    def _keep_types(self, types: Mapping[str, InstanceType]) -> None:
        self._market = msgspec.structs.replace(self._market, types=tuple(types[name] for name in sorted(types)))


_LOCK_SECONDS = 5.0


class MemoryRunTimeWrites(RunTimeWrites):
    """The part of a transaction of the memory store that counts released leases into run times. See RunTimeWrites."""

    _world: World
    _rows: dict[Key, Row | None]
    _counted: Counted

    @override
    def load_counted(self) -> Counted:
        return self._counted

    @override
    def save_counted(self, counted: Counted) -> None:
        self._counted = counted

    @override
    def find_ended(self, after: Counted, before: float, limit: int) -> list[Reservation]:
        rows = {**self._world.reservations, **self._list_written(Reservation)}
        ended = (row for row in rows.values() if row is not None and row.phase in ENDED and row.changed_at < before)
        return nsmallest(limit, (row for row in ended if _place_of(row) > after), key=_place_of)

    @override
    def load_run_times(self, ids: Iterable[str]) -> dict[str, RunTimes]:
        rows = {**self._world.run_times, **self._list_written(RunTimes)} if self._rows else self._world.run_times
        return {name: row for name in ids if (row := rows.get(name)) is not None}

    @override
    def find_surplus_run_times(self, kept: int) -> list[RunTimes]:
        written = self._list_written(RunTimes)
        if len(self._world.run_times) + len(written) <= kept:
            return []
        rows = [row for row in {**self._world.run_times, **written}.values() if row is not None]
        return nsmallest(len(rows) - kept, rows, key=lambda row: (row.released_at, row.id))

    def _list_written(self, kind: type[AnyRow]) -> dict[str, AnyRow | None]:
        return cast("dict[str, AnyRow | None]", {key[1]: row for key, row in self._rows.items() if key[0] is kind})


class MemoryRunWrites(RunWrites):
    """The part of a transaction of the memory store that reads and writes commands and their runs. See RunWrites."""

    _world: World
    _commands: dict[str, str]
    _executions: dict[RunKey, Execution]

    @override
    def save_commands(self, rows: Sequence[StoredCommand]) -> None:
        self._commands |= {row.reservation: row.document for row in rows}

    @override
    def load_commands(self, reservations: Iterable[str]) -> dict[str, str]:
        both = {**self._world.commands, **self._commands}
        return {name: both[name] for name in reservations if name in both}

    @override
    def load_executions(self, reservations: Iterable[str]) -> list[Execution]:
        wanted = [*reservations]
        both = {name: {**self._world.executions.get(name, {})} for name in wanted}
        for key, row in self._executions.items():
            if key[0] in both:
                both[key[0]][key] = row
        return list_executions(both, wanted)

    @override
    def save_executions(self, rows: Sequence[Execution]) -> None:
        self._executions |= {row.key: row for row in rows}

    def _apply_runs(self) -> None:
        world = self._world
        world.commands.update((name, text) for name, text in self._commands.items() if name in world.reservations)
        for key, run in self._executions.items():
            if key[0] in world.reservations:
                world.executions.setdefault(key[0], {})[key] = run


def list_executions(known: Mapping[str, Mapping[RunKey, Execution]], reservations: Iterable[str]) -> list[Execution]:
    """Return the runs of the commands of these reservations, in the order of `RunWrites.load_executions`."""
    rows = [row for name in {*reservations} for row in known.get(name, {}).values()]
    return sorted(rows, key=lambda row: (row.reservation, row.taken_at, row.component))


def _place_of(row: Reservation) -> Counted:
    return Counted(row.changed_at, row.sequence)


class MemoryTransaction(MemoryMarketWrites, MemoryRunTimeWrites, MemoryRunWrites, WholeOrNothing, Transaction):
    """A transaction of the memory store. It collects its writes, and carries all of them out when the `with` block ends
    without an error.
    """

    def __init__(self, world: World, lock: threading.Lock, clock: Callable[[], float]) -> None:
        self._world, self._lock, self._clock = world, lock, clock
        self._rows: dict[Key, Row | None] = {}
        self._events: list[Event] = []
        self._answers: dict[str, StoredAnswer] = {}
        self._outgoing: dict[str, OutboxMessage | None] = {}
        self._balances: list[BalanceSample] = []
        self._costs: list[Cost] = []
        self._booked: dict[str, float] = {}
        self._principals: dict[str, StoredPrincipal | None] = {}
        self._ended_sessions: dict[str, float] = {}
        self._commands: dict[str, str] = {}
        self._executions: dict[RunKey, Execution] = {}

    def __enter__(self) -> Self:
        if not self._lock.acquire(timeout=_LOCK_SECONDS):
            raise StoreUnavailableError("the store is locked by another transaction")
        self._now = self._clock()
        self._sequence, self._token = self._world.sequence, self._world.token
        self._buried, self._restores = self._world.buried, self._world.restores
        self._leader_term, self._rules = self._world.leader_term, self._world.rules
        self._market, self._price_changes = self._world.market, []
        self._counted = self._world.counted
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.check_whole()
                self._apply()
        finally:
            self._lock.release()

    @override
    def now(self) -> float:
        return self._now

    @override
    def identity(self) -> str:
        return self._world.identity

    @override
    def rules_version(self) -> int:
        return self._rules.version

    @override
    def take_term(self, holder: str) -> LeaderTerm:
        self._leader_term = LeaderTerm(self._leader_term.term + 1, holder, self._leader_term.ticked_at)
        return self._leader_term

    @override
    def jump(self, term: int, token: int) -> None:
        self._leader_term, self._token = LeaderTerm(term, "", LONG_AGO), token
        self._restores += 1

    @override
    def note_tick(self, leader_term: LeaderTerm, now: float) -> None:
        current = self._leader_term
        if (current.term, current.holder) != (leader_term.term, leader_term.holder):
            raise self._lose(DeposedError(f"term {leader_term.term} is over: the present term is {current.term}"))
        self._leader_term = LeaderTerm(leader_term.term, leader_term.holder, now)

    @override
    def load_reservations(self, ids: Iterable[str]) -> dict[str, Reservation]:
        return cast("dict[str, Reservation]", self._load(Reservation, ids))

    @override
    def load_slots(self, ids: Iterable[str]) -> dict[str, Slot]:
        return cast("dict[str, Slot]", self._load(Slot, ids))

    @override
    def load_holds(self, ids: Iterable[str]) -> dict[str, Hold]:
        return cast("dict[str, Hold]", self._load(Hold, ids))

    @override
    def load_accounts(self, ids: Iterable[str]) -> dict[str, Account]:
        return cast("dict[str, Account]", self._load(Account, ids))

    @override
    def load_all_accounts(self) -> list[Account]:
        return list(self.load_accounts(sorted({*self._world.accounts, *self._list_written(Account)})).values())

    @override
    def sum_running(self, now: float) -> dict[str, Levels]:
        accounts = {account.id: account for account in self.load_all_accounts()}
        owners = {owner for held in self._world.occupants.values() for owner in held}
        owners |= {row.id for row in self._rows.values() if isinstance(row, Reservation)}
        found: dict[str, Levels] = {}
        for row in self.load_reservations(sorted(owners) if accounts else ()).values():
            account = find_account(accounts, row.request.account, row.sequence)
            used = NOTHING if account is None else sum_running(account, row.leases, now)
            if account is not None and any(used):
                found[account.id] = add(found.get(account.id, NOTHING), used)
        return found

    @override
    def last_sequence(self) -> int:
        return self._sequence

    @override
    def count_pending_of_principal(self, principal: str | None, sender: str | None = None) -> Pending:
        return self._count_pending(lambda row: (row.principal, row.sender) == (principal, sender))

    @override
    def count_pending_of_account(self, account: str) -> Pending:
        return self._count_pending(lambda row: row.request.account == account)

    @override
    def count_inserted(self, after: int, upto: int) -> dict[tuple[str | None, str | None, str | None], Pending]:
        names = {*self._world.reservations, *self._list_written(Reservation)}
        found: dict[tuple[str | None, str | None, str | None], Pending] = {}
        for row in self.load_reservations(names).values():
            if after < row.sequence <= upto:
                key = row.principal, row.request.account, row.sender
                known = found.get(key, Pending())
                found[key] = Pending(known.reservations + 1, known.instances + (row.instances or 1))
        return found

    def _count_pending(self, counts: Callable[[Reservation], bool]) -> Pending:
        names = {*self._world.phases["pending"], *self._list_written(Reservation)}
        rows = [row for row in self.load_reservations(names).values() if row.phase == "pending" and counts(row)]
        return Pending(len(rows), sum(row.instances or 1 for row in rows))

    @override
    def load_leases(self, slots: Iterable[str], without: Container[str] = ()) -> dict[str, list[tuple[str, Lease]]]:
        written = self._list_written(Reservation)
        found: dict[str, list[tuple[str, Lease]]] = {}
        for slot in slots:
            held = self._world.occupants.get(slot)
            if held is None:
                found[slot] = []
                continue
            others = [owner for owner in sorted(held) if owner not in written and owner not in without]
            found[slot] = [(owner, lease) for owner in others for lease in held[owner]]
        for owner, row in written.items():
            for lease in row.leases if row is not None and owner not in without else ():
                if lease.slot in found:
                    found[lease.slot].append((owner, lease))
        if written:
            for there in found.values():
                there.sort(key=itemgetter(0))
        return found

    @override
    def list_holders(self) -> list[str]:
        written = self._list_written(Reservation)
        held = {owner for owners in self._world.occupants.values() for owner in owners} - written.keys()
        return sorted(held | {name for name, row in written.items() if row is not None and row.leases})

    @override
    def load_all_slots(self) -> list[Slot]:
        return list(self.load_slots(dict.fromkeys([*self._world.slots, *self._list_written(Slot)])).values())

    @override
    def count_active(self, pool: str) -> int:
        return sum(slot.pool == pool and slot.state not in INACTIVE for slot in self.load_all_slots())

    @override
    def insert_reservations(self, rows: Sequence[Reservation]) -> list[Reservation]:
        inserted = []
        for row in rows:
            if self._find((Reservation, row.id)) is not None:
                continue
            self._sequence += 1
            stored = msgspec.structs.replace(row, sequence=self._sequence, version=1, marked_at=self._now)
            self._rows[Reservation, row.id] = stored
            inserted.append(stored)
        return inserted

    @override
    def save(self, rows: Sequence[Row]) -> list[Row]:
        saved: list[Row] = []
        now, kept, known, replace = self._now, self._rows, self._world.rows, msgspec.structs.replace
        for row in rows:
            key = kind, name = type(row), row.id
            current = kept[key] if key in kept else known[kind].get(name)
            if current is None or current.version != row.version:
                self._guard(row)
            version = row.version + 1 if row.version else self._buried + 1
            stored = kept[key] = replace(row, version=version, marked_at=now)
            saved.append(stored)
        return saved

    @override
    def mark(self, rows: Sequence[Row]) -> list[Row]:
        marked = []
        for row in rows:
            current = self._guard(row)
            if current is None:
                raise self._lose(StaleWriteError(_stale(row, None)))
            changed = take_marks(current, row, self._now)
            self._rows[type(row), row.id] = changed
            marked.append(changed)
        return marked

    @override
    def delete(self, rows: Sequence[Row]) -> list[Gone]:
        gone = []
        for row in rows:
            if self._guard(row) is None:
                raise self._lose(StaleWriteError(_stale(row, None)))
            self._rows[type(row), row.id] = None
            gone.append(Gone(KINDS[type(row)], row.id, row.version + 1))
            self._buried = max(self._buried, row.version + 1)
        return gone

    @override
    def next_tokens(self, count: int, likely: int = 0) -> range:
        first = self._token + 1
        self._token += count
        return range(first, first + count)

    @override
    def append_events(self, events: Sequence[Event]) -> None:
        self._events.extend(events)

    @override
    def find_answers(self, ids: Iterable[str]) -> dict[str, StoredAnswer]:
        both = {**self._world.answers, **self._answers} if self._answers else self._world.answers
        return {row_id: both[row_id] for row_id in ids if row_id in both}

    @override
    def save_answers(self, answers: Sequence[StoredAnswer]) -> None:
        for answered in answers:
            if answered.id in self._answers or answered.id in self._world.answers:
                raise self._lose(StaleWriteError(f"request {answered.id} has an answer already"))
            self._answers[answered.id] = answered

    @override
    def save_outgoing(self, rows: Sequence[OutboxMessage]) -> None:
        self._outgoing.update((row.id, row) for row in rows)

    @override
    def delete_outgoing(self, ids: Iterable[str]) -> None:
        self._outgoing.update(dict.fromkeys(ids))

    @override
    def load_principals(self) -> dict[str, StoredPrincipal]:
        both = {**self._world.principals, **self._principals}
        return {name: row for name, row in sorted(both.items()) if row is not None}

    @override
    def save_principals(self, rows: Sequence[StoredPrincipal]) -> None:
        self._principals.update((row.name, row) for row in rows)

    @override
    def delete_principals(self, names: Iterable[str]) -> None:
        self._principals.update(dict.fromkeys(names))

    @override
    def end_session(self, session: str, until: float) -> None:
        self._ended_sessions[session] = until

    @override
    def save_balances(self, samples: Sequence[BalanceSample]) -> None:
        self._balances.extend(samples)

    @override
    def book(self, costs: Sequence[Cost]) -> None:
        self._costs += costs

    @override
    def take_unbooked(self, born: Mapping[str, float]) -> dict[str, float]:
        found = {name: self._booked.get(name, self._world.booked_machines.get(name, at)) for name, at in born.items()}
        self._booked |= {name: max(at, self._now) for name, at in found.items()}
        return found

    @override
    def load_rules(self) -> StoredRules:
        return self._rules

    @override
    def save_rules(self, document: Mapping[str, Any], version: int, images: Mapping[str, str] | None = None) -> int:
        if version != self._rules.version:
            raise self._lose(StaleWriteError(f"the rules have version {self._rules.version}, not {version}"))
        stored, found = dict(document), dict(images or {})
        self._rules = StoredRules(version + 1, stored, with_images(read_rules(stored), found), found)
        return version + 1

    def _find(self, key: Key) -> Row | None:
        return self._rows[key] if key in self._rows else self._world.rows[key[0]].get(key[1])

    def _load(self, kind: type[Row], ids: Iterable[str]) -> dict[str, Row]:
        stored = self._world.rows[kind]
        if not self._rows:
            return {row_id: stored[row_id] for row_id in ids if row_id in stored}
        found = ((row_id, self._find((kind, row_id))) for row_id in ids)
        return {row_id: row for row_id, row in found if row is not None}

    def _guard(self, row: Row) -> Row | None:
        """Return the present copy of a row that will be written, or None if the row will be inserted.

        Raises StaleWriteError if the present copy has another version than `row`.
        """
        current = self._find((type(row), row.id))
        if current is not None and current.version == row.version:
            return current
        if not (current is None and row.version == 0 and type(row) is not Reservation):
            raise self._lose(StaleWriteError(_stale(row, current)))
        return current

    def _apply(self) -> None:
        world = self._world
        world.apply(self._rows)
        for event in self._events:
            world.event_number += 1
            world.events.append(msgspec.structs.replace(event, number=world.event_number))
        world.answers.update(self._answers)
        self._apply_runs()
        for sample in self._balances:
            world.balances.setdefault(sample.account, {})[sample.at] = sample
        if self._costs:
            book(world.costs, self._costs)
        world.booked_machines |= self._booked
        for row_id, outgoing in self._outgoing.items():
            if outgoing is None:
                world.outgoing.pop(row_id, None)
            else:
                world.outgoing[row_id] = outgoing
        if self._principals:
            world.principals = self.load_principals()
            world.principals_version += 1
        if self._ended_sessions:
            ended = {**world.ended_sessions, **self._ended_sessions}
            world.ended_sessions = {name: until for name, until in ended.items() if until >= self._now}
        world.sequence, world.token, world.restores = self._sequence, self._token, self._restores
        world.buried, world.counted = self._buried, self._counted
        if self._rules.version != world.rules.version:
            world.applied.append(AppliedRules(self._rules.version, self._now, self._rules.document, self._rules.images))
        world.price_changes.update((each.key, each) for each in self._price_changes)
        world.leader_term, world.rules, world.market = self._leader_term, self._rules, self._market


def _stale(row: Row, current: Row | None) -> str:
    found = "it was deleted" if current is None else f"it has version {current.version}"
    return f"{KINDS[type(row)]}: row {row.id} was read with version {row.version}, {found}"
