"""The Transaction port on SQL databases. A write fails if its row was changed after it was read."""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

import msgspec
from sqlalchemy import Executable
from typing_extensions import override

from scheduler.model.accounts import Account, BalanceSample, Levels, at_level
from scheduler.model.accounts import add as add_levels
from scheduler.model.costs import BookedMachine, Cost, add_costs
from scheduler.model.events import Event
from scheduler.model.launch_backoff import Hold
from scheduler.model.market import InstanceType, Price, PriceChange
from scheduler.model.reservations import Lease, Reservation
from scheduler.model.rules import read_rules
from scheduler.model.run_times import RunTimes
from scheduler.model.runs import Execution, StoredCommand
from scheduler.model.slots import Slot
from scheduler.model.view import KINDS, Gone, Row
from scheduler.ports import (
    ClusterRow,
    CostWriter,
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
    Transaction,
)
from scheduler.ports.run_times import RunTimeWrites
from scheduler.ports.runs import RunWrites
from scheduler.store import statements as fixed
from scheduler.store import tables
from scheduler.store.dialect import Bulk, StatementResult
from scheduler.store.reading import (
    MARKET,
    RulesReader,
    join_leases,
    read_principals,
    read_reservations,
    read_rules_version,
)
from scheduler.store.session import Session, cut
from scheduler.store.shapes import (
    ACCOUNTS,
    ANSWERS,
    BALANCES,
    COMMANDS,
    EXECUTIONS,
    HOLDS,
    INSTANCE_TYPES,
    LEASES,
    OUTGOING,
    PRICE_CHANGES,
    PRICES,
    PRINCIPALS,
    RUN_TIMES,
    SLOTS,
    Shape,
    StoredLease,
)
from scheduler.store.shared_rules import LONG_AGO, WholeOrNothing, take_marks
from scheduler.store.statements import LeaseStatements, RowStatements, Statements


class SqlLedgerWrites(CostWriter):
    """The part of a SqlTransaction that writes into the cost ledger. See CostWriter."""

    _session: Session
    _statements: Statements
    _now: float
    _costs: list[Cost]

    @override
    def book(self, costs: Sequence[Cost]) -> None:
        self._costs += costs

    @override
    def take_unbooked(self, born: Mapping[str, float]) -> dict[str, float]:
        rows = [BookedMachine(name, born[name], max(born[name], self._now)) for name in sorted(born)]
        bulk, bind = self._statements.advance_booked, self._session.dialect.bind_rows
        found: dict[str, float] = {}
        for chunk in cut(rows):
            shared, values = bind(bulk, chunk)
            found |= dict(self._session.fetch(bulk.statement(shared), **values))
        return found


class SqlMarketWrites(MarketWrites):
    """The part of a SqlTransaction that writes instance types and prices. See MarketWrites."""

    _session: Session
    _statements: Statements

    @override
    def save_types(self, types: Sequence[InstanceType]) -> None:
        _put(self._session, self._statements, INSTANCE_TYPES, types)

    @override
    def delete_types(self, names: Iterable[str]) -> None:
        self._session.change_for(self._statements.forget(tables.instance_types.c.name), names)

    @override
    def save_prices(self, prices: Sequence[Price]) -> None:
        _put(self._session, self._statements, PRICES, prices)

    @override
    def save_price_changes(self, changes: Sequence[PriceChange]) -> None:
        _put(self._session, self._statements, PRICE_CHANGES, changes)

    @override
    def count_market_change(self) -> None:
        self._session.fetch(fixed.COUNT, counter=MARKET, count=1)


class SqlRunTimeWrites(RunTimeWrites):
    """The part of a SqlTransaction that counts released leases into run times. See RunTimeWrites."""

    _session: Session
    _statements: Statements

    @override
    def load_counted(self) -> Counted:
        (row,) = self._session.fetch(fixed.LOAD_COUNTED)
        return Counted(*row)

    @override
    def save_counted(self, counted: Counted) -> None:
        self._session.change(fixed.SAVE_COUNTED, at=counted.ended_at, number=counted.sequence)

    @override
    def find_ended(self, after: Counted, before: float, limit: int) -> list[Reservation]:
        rows = self._session.fetch(
            fixed.ENDED_AFTER, after_time=after.ended_at, after_number=after.sequence, before=before, most=limit
        )
        return read_reservations(self._session, self._statements, rows)

    @override
    def load_run_times(self, ids: Iterable[str]) -> dict[str, RunTimes]:
        rows = RUN_TIMES.read_all([*self._session.fetch_for(self._statements.run_times.load, ids)])
        return {row.id: row for row in rows}

    @override
    def find_surplus_run_times(self, kept: int) -> list[RunTimes]:
        ((count,),) = self._session.fetch(fixed.COUNT_RUN_TIMES)
        return RUN_TIMES.read_all(self._session.fetch(fixed.OLDEST_RUN_TIMES, most=max(0, count - kept)))


class SqlRunWrites(RunWrites):
    """The part of a SqlTransaction that reads and writes commands and their runs. See RunWrites."""

    _session: Session
    _statements: Statements

    @override
    def save_commands(self, rows: Sequence[StoredCommand]) -> None:
        self._session.write(self._statements.insert_commands, rows)

    @override
    def load_commands(self, reservations: Iterable[str]) -> dict[str, str]:
        rows = map(COMMANDS.read, self._session.fetch_for(self._statements.find_commands, reservations))
        return {row.reservation: row.document for row in rows}

    @override
    def load_executions(self, reservations: Iterable[str]) -> list[Execution]:
        return [*map(EXECUTIONS.read, self._session.fetch_for(self._statements.find_executions, reservations))]

    @override
    def save_executions(self, rows: Sequence[Execution]) -> None:
        _put(self._session, self._statements, EXECUTIONS, rows)


# The stored leases of the reservations in one transaction. Only changed leases are written.
#
# A reservation may have 10,000 leases, and most changes concern a few of them.


Write = Callable[[Bulk, Sequence[StoredLease]], None]


class LeaseRows:
    """The stored leases of the reservations that a transaction has loaded and locked."""

    def __init__(self, session: Session, statements: LeaseStatements) -> None:
        """Start without any known leases."""
        self._session, self._statements = session, statements
        self._stored: dict[str, tuple[tuple[Lease, ...], int]] = {}
        """For each loaded reservation, by id: its stored leases, and the position of the last stored lease (-1: it has
        none).
        """

    def note_loaded(self, rows: Iterable[Reservation], last: Mapping[str, int]) -> None:
        """Remember the leases of `rows`, reservations that were read from the database, so that `write` can find the
        leases that changed. `last`: reservation id -> position of its last stored lease.
        """
        for row in rows:
            self._stored[row.id] = row.leases, last.get(row.id, -1)

    def write(self, rows: Sequence[Reservation], write: Write, *, are_new: bool = False) -> None:
        """Write the new and changed leases of `rows` (reservations), and delete stored leases that a reservation no
        longer has. `are_new`: the reservations are new and have no stored leases.

        `write`: a function that writes lease rows by a bulk statement, and raises StaleWriteError if a row was not
        written. It is an argument and no attribute, because it is a method of the transaction that has this object: a
        cycle of references would keep all rows of the transaction in memory until a garbage collection.
        """
        changed: list[StoredLease] = []
        gone: list[StoredLease] = []
        added: list[StoredLease] = []
        whole: list[Reservation] = []
        for row in rows:
            known, last = ((), -1) if are_new else self._stored.get(row.id, (None, -1))
            if known is not None and not (known and row.leases):
                # Speed: most changes give a reservation all of its leases, or end all of them.
                if known:
                    gone += [StoredLease(row.id, 0, lease) for lease in known]
                elif row.leases:
                    added += [StoredLease(row.id, at, lease) for at, lease in enumerate(row.leases, last + 1)]
                self._stored[row.id] = row.leases, last + len(row.leases)
                continue
            kept = None if known is None else _find_kept(known, row.leases)
            if known is None or kept is None:
                whole.append(row)
                added += lay_out_leases([row])
                self._stored[row.id] = row.leases, len(row.leases) - 1
                continue
            before = {lease.component: lease for lease in known}
            changed += (
                StoredLease(row.id, 0, each) for each in row.leases[:kept] if each is not before[each.component]
            )
            staying = {lease.component for lease in row.leases}
            gone += (StoredLease(row.id, 0, lease) for lease in known if lease.component not in staying)
            added += (StoredLease(row.id, last + 1 + at, lease) for at, lease in enumerate(row.leases[kept:]))
            self._stored[row.id] = row.leases, last + len(row.leases) - kept
        if whole:
            self._session.change_for(self._statements.forget, [row.id for row in whole])
        for statement, leases in (
            (self._statements.delete, gone),
            (self._statements.update, changed),
            (self._statements.insert, added),
        ):
            if leases:
                write(statement, leases)


def lay_out_leases(rows: Iterable[Reservation]) -> list[StoredLease]:
    """Return all leases of `rows` (reservations) as StoredLeases, with positions from 0 for each reservation."""
    return [StoredLease(row.id, position, lease) for row in rows for position, lease in enumerate(row.leases)]


def _find_kept(known: Sequence[Lease], leases: Sequence[Lease]) -> int | None:
    """Return how many leases at the begin of `leases`, the present leases of a reservation, are stored already.
    `known`: its stored leases. Leases with the same component are the same one.

    Return None if all leases of the reservation have to be stored again. This is the case if the stored ones in
    `leases` are in another order than in `known`, or come after a new one. For example, with `known` = A B C, the
    result is 2 for A C D (B has ended), and None for B A or A D C.
    """
    positions = {lease.component: at for at, lease in enumerate(known)}
    last, kept = -1, 0
    for lease in leases:
        at = positions.get(lease.component)
        if at is None:
            break
        if at <= last:
            return None
        last, kept = at, kept + 1
    is_rest_new = all(lease.component not in positions for lease in leases[kept:])
    return kept if is_rest_new else None


MOST_TOKENS: Final = 1000
"""The most fencing tokens that one statement reserves, unless a call of `next_tokens` asks for more."""


class SqlTransaction(SqlLedgerWrites, SqlMarketWrites, SqlRunTimeWrites, SqlRunWrites, WholeOrNothing, Transaction):
    """One transaction of a SqlStore. It is usable until the `with` block of `SqlStore.transaction()` ends."""

    def __init__(self, session: Session, statements: Statements, rules: RulesReader, cluster: ClusterRow) -> None:
        """Use the open transaction of `session`. `cluster`: the row about the cluster, read when it began."""
        self._session, self._statements, self._rules = session, statements, rules
        self._now, self._rules_version, self._identity = cluster.now, cluster.rules_version, cluster.identity
        self._events: list[Event] = []
        self._costs: list[Cost] = []
        self._token = self._last_token = 0
        """`_token`: last fencing token that was returned; `_last_token`: last one reserved in the database."""
        self._has_sequence = False
        """Whether this transaction has locked the counter of reservations."""
        self._block = 0
        """Minimum number of fencing tokens that the next statement for tokens reserves in the database."""
        self._leases = LeaseRows(session, statements.leases)
        self._written: list[tuple[int, Sequence[StatementResult]]] = []
        """The results of writes that may still wait, each with the number of rows that it must have written."""
        self._locked: dict[str, Reservation] = {}
        """The reservations that this transaction has locked, as they are stored now."""

    def finish(self) -> None:
        """Write the collected costs and events. These are the last statements of the transaction, because from here to
        the commit the transaction blocks every other one that has events.
        """
        self.check_whole()
        if self._costs:
            # All transactions lock these rows in the order of their keys, and only for the time of the commit.
            self._session.write_later(self._statements.add_costs, add_costs(self._costs))
        if self._events:
            self._session.queue_for_events()  # promise: event-order
            self._session.write_later(self._statements.append_events, self._events)
        self._settle()

    @override
    def now(self) -> float:
        return self._now

    @override
    def identity(self) -> str:
        return self._identity

    @override
    def rules_version(self) -> int:
        return self._rules_version

    @override
    def take_term(self, holder: str) -> LeaderTerm:
        (row,) = self._session.fetch(fixed.TAKE_TERM, me=holder)
        return LeaderTerm(*row)

    @override
    def jump(self, term: int, token: int) -> None:
        self._session.change(fixed.JUMP_TERM, to=term, long_ago=LONG_AGO)
        self._session.change(fixed.JUMP_TOKEN, to=token)
        self._session.change(fixed.COUNT_RESTORE)

    @override
    def note_tick(self, leader_term: LeaderTerm, now: float) -> None:
        noted = self._session.fetch_later(fixed.NOTE_TICK, my_term=leader_term.term, me=leader_term.holder, now=now)
        if not self._session.dialect.has_one_writer:
            # Rules may have been stored since the begin, and cannot be from now on: see `load_rules`.
            self._rules_version = read_rules_version(self._session)
        if noted.rowcount != 1:
            raise self._lose(DeposedError(f"term {leader_term.term} is over"))

    @override
    def load_reservations(self, ids: Iterable[str]) -> dict[str, Reservation]:
        both = self._statements.reservations.load, self._statements.leases.load
        last: dict[str, int] = {}
        found = {row.id: row for row in join_leases(*self._session.fetch_both_for(*both, ids), last)}
        self._leases.note_loaded(found.values(), last)
        self._locked |= found
        return found

    @override
    def load_slots(self, ids: Iterable[str]) -> dict[str, Slot]:
        return {row.id: row for row in SLOTS.read_all([*self._session.fetch_for(self._statements.slots.load, ids)])}

    @override
    def load_holds(self, ids: Iterable[str]) -> dict[str, Hold]:
        return {row.id: row for row in map(HOLDS.read, self._session.fetch_for(self._statements.holds.load, ids))}

    @override
    def load_accounts(self, ids: Iterable[str]) -> dict[str, Account]:
        rows = self._session.fetch_for(self._statements.accounts.load, ids)
        return {row.id: row for row in map(ACCOUNTS.read, rows)}

    @override
    def load_all_accounts(self) -> list[Account]:
        return ACCOUNTS.read_all(self._session.fetch(fixed.ALL_ACCOUNTS))

    @override
    def sum_running(self, now: float) -> dict[str, Levels]:
        found: dict[str, Levels] = {}
        for account, level, used in self._session.fetch(fixed.RUNNING, now=now):
            sums = at_level(level, used)
            found[account] = add_levels(found[account], sums) if account in found else sums
        return found

    @override
    def last_sequence(self) -> int:
        self._has_sequence = True
        return self._count("sequence", 0).start - 1

    @override
    def count_pending_of_principal(self, principal: str | None, sender: str | None = None) -> Pending:
        if principal is None:
            if sender is not None:
                return self._count_pending(fixed.PENDING_OF_SENDER, name=sender)
            return self._count_pending(fixed.PENDING_UNSIGNED)
        return self._count_pending(fixed.PENDING_OF_PRINCIPAL, name=principal)

    @override
    def count_pending_of_account(self, account: str) -> Pending:
        return self._count_pending(fixed.PENDING_OF_ACCOUNT, name=account)

    @override
    def count_inserted(self, after: int, upto: int) -> dict[tuple[str | None, str | None, str | None], Pending]:
        return {
            (principal, account, sender): Pending(int(count), int(most))
            for principal, account, sender, count, most in self._session.fetch(fixed.INSERTED, after=after, upto=upto)
        }

    def _count_pending(self, statement: Executable, **values: object) -> Pending:
        ((count, instances),) = self._session.fetch(statement, **values)
        return Pending(int(count), int(instances))

    @override
    def load_leases(self, slots: Iterable[str], without: Container[str] = ()) -> dict[str, list[tuple[str, Lease]]]:
        found: dict[str, list[tuple[str, Lease]]] = {slot: [] for slot in slots}
        fetched = self._session.fetch_for(self._statements.leases.on_slots, found)
        rows = [row for row in fetched if row[-1] not in without]
        for row, lease in zip(rows, LEASES.read_all(rows), strict=True):
            found[lease.slot].append((row[-1], lease))
        return found

    @override
    def list_holders(self) -> list[str]:
        return [str(row[0]) for row in self._session.fetch(fixed.HOLDERS)]

    @override
    def load_all_slots(self) -> list[Slot]:
        return SLOTS.read_all(self._session.fetch(fixed.ALL_SLOTS))

    @override
    def count_active(self, pool: str) -> int:
        ((count,),) = self._session.fetch(fixed.ACTIVE, of_pool=pool)
        return int(count)

    @override
    def insert_reservations(self, rows: Sequence[Reservation]) -> list[Reservation]:
        # Lock the counter before reading known ids: no other transaction can insert until this one ends.
        if not self._has_sequence:
            self._session.fetch_later(fixed.COUNT, counter="sequence", count=0)
            self._has_sequence = True
        known = {
            row_id
            for (row_id,) in self._session.fetch_for(self._statements.known_reservations, (row.id for row in rows))
        }
        fresh: dict[str, Reservation] = {}
        for row in rows:
            if row.id not in known:
                fresh.setdefault(row.id, row)
        stored = [
            msgspec.structs.replace(row, sequence=number, version=1, marked_at=self._now)
            for row, number in zip(fresh.values(), self._count("sequence", len(fresh)), strict=True)
        ]
        self._write(self._statements.reservations.insert, stored)
        self._leases.write(stored, self._write, are_new=True)
        return stored

    @override
    def save(self, rows: Sequence[Row]) -> list[Row]:
        first = 1
        if any(row.version == 0 for row in rows):
            # A new row gets a higher version than any deleted row, because the view keeps tombstones.
            ((buried,),) = self._session.fetch(fixed.BURIED)
            first = int(buried) + 1
        stored = [
            msgspec.structs.replace(row, version=row.version + 1 if row.version else first, marked_at=self._now)
            for row in rows
        ]
        new = {(type(row), row.id) for row in rows if row.version == 0}
        for kind, alike in _by_kind(stored).items():
            if kind is Reservation:
                reservations = [row for row in alike if isinstance(row, Reservation)]
                self._write(self._statements.reservations.update, reservations)
                self._leases.write(reservations, self._write)
                self._locked |= {row.id: row for row in reservations}
            else:
                statements = self._statements_for(kind)
                self._write(statements.insert, [row for row in alike if (kind, row.id) in new])
                self._write(statements.update, [row for row in alike if (kind, row.id) not in new])
        self._settle()
        return stored

    @override
    def mark(self, rows: Sequence[Row]) -> list[Row]:
        current = {kind: self._find_stored(kind, [row.id for row in alike]) for kind, alike in _by_kind(rows).items()}
        marked = []
        for row in rows:
            known = current[type(row)].get(row.id)
            if known is None or known.version != row.version:
                raise self._lose(StaleWriteError(f"{KINDS[type(row)]}: row {row.id} has changed since it was read"))
            marked.append(take_marks(known, row, self._now))
        self._locked |= {row.id: row for row in marked if isinstance(row, Reservation)}
        for kind, alike in _by_kind(marked).items():
            self._write(self._statements_for(kind).mark, alike)
        self._session.write_later(
            self._statements.leases.confirm, lay_out_leases(row for row in marked if isinstance(row, Reservation))
        )
        self._settle()
        return marked

    @override
    def delete(self, rows: Sequence[Row]) -> list[Gone]:
        gone = [Gone(KINDS[type(row)], row.id, row.version + 1) for row in rows]
        if gone:
            # Lock this before the rows are deleted: a transaction that inserts one of the ids again waits here, and
            # so gives its row a version above that of the tombstone.
            self._session.fetch(fixed.BURIED)
            self._session.change(fixed.BURY, deepest=max(each.version for each in gone))
        for kind, alike in _by_kind(rows).items():
            self._write(self._statements_for(kind).delete, alike)
        owners = [row.id for row in rows if isinstance(row, Reservation)]
        self._session.change_for(self._statements.leases.forget, owners)
        if running := [row.id for row in rows if isinstance(row, Reservation) and row.run is not None]:
            self._session.change_for(self._statements.forget(tables.commands.c.reservation), running)
            self._session.change_for(self._statements.forget(tables.executions.c.reservation), running)
        self._settle()
        for name in owners:
            self._locked.pop(name, None)
        return gone

    @override
    def next_tokens(self, count: int, likely: int = 0) -> range:
        if self._last_token - self._token < count:
            # Speed: each further statement reserves ten times as many tokens. Those that are left over are not used.
            reserved = self._count("token", max(count, self._block, min(likely, MOST_TOKENS)))
            self._token, self._last_token = reserved[0] - 1, reserved[-1]
            self._block = min(max(10 * self._block, 10), MOST_TOKENS)
        self._token += count
        return range(self._token - count + 1, self._token + 1)

    @override
    def append_events(self, events: Sequence[Event]) -> None:
        self._events += events

    @override
    def find_answers(self, ids: Iterable[str]) -> dict[str, StoredAnswer]:
        return {row.id: row for row in map(ANSWERS.read, self._session.fetch_for(self._statements.find_answers, ids))}

    @override
    def save_answers(self, answers: Sequence[StoredAnswer]) -> None:
        self._write(self._statements.insert_answers, answers)

    @override
    def save_outgoing(self, rows: Sequence[OutboxMessage]) -> None:
        _put(self._session, self._statements, OUTGOING, rows)

    @override
    def delete_outgoing(self, ids: Iterable[str]) -> None:
        self._session.change_for(self._statements.forget(tables.outgoing.c.id), ids)

    @override
    def load_principals(self) -> dict[str, StoredPrincipal]:
        self._session.fetch(fixed.LOCK_PRINCIPALS)
        return {row.name: row for row in read_principals(self._session)}

    @override
    def save_principals(self, rows: Sequence[StoredPrincipal]) -> None:
        self._session.change(fixed.CHANGE_PRINCIPALS)
        self._session.write(self._statements.put(PRINCIPALS), rows)

    @override
    def delete_principals(self, names: Iterable[str]) -> None:
        self._session.change(fixed.CHANGE_PRINCIPALS)
        self._session.change_for(self._statements.forget(tables.principals.c.name), names)

    @override
    def end_session(self, session: str, until: float) -> None:
        self._session.change(fixed.FORGET_SESSIONS, now=self.now())
        if not self._session.fetch(fixed.FIND_SESSION, session=session):
            self._session.change(fixed.END_SESSION, id=session, until=until)

    @override
    def save_balances(self, samples: Sequence[BalanceSample]) -> None:
        _put(self._session, self._statements, BALANCES, samples)

    @override
    def load_rules(self) -> StoredRules:
        self._session.fetch(fixed.LOCK_LEADER)
        return self._rules.load(self._session)

    @override
    def save_rules(self, document: Mapping[str, Any], version: int, images: Mapping[str, str] | None = None) -> int:
        read_rules(dict(document))
        current = read_rules_version(self._session)
        if current != version:
            raise self._lose(StaleWriteError(f"the rules have version {current}, not {version}"))
        text, found = msgspec.json.encode(document).decode(), msgspec.json.encode(images or {}).decode()
        try:
            self._session.change(
                fixed.SAVE_RULES, version=version + 1, document=text, applied_at=self._now, images=found
            )
        except StaleWriteError as error:
            raise self._lose(error) from error
        return version + 1

    def _count(self, counter: str, count: int) -> range:
        """Take the next `count` numbers from a counter in the database, and return them. No other transaction gets
        these numbers.
        """
        ((last,),) = self._session.fetch(fixed.COUNT, counter=counter, count=count)
        return range(last - count + 1, last + 1)

    def _find_stored(self, kind: type[Row], ids: Sequence[str]) -> Mapping[str, Row]:
        """Lock the stored rows of this kind with these ids, and return id -> row. Reservations that this transaction
        has locked already are not read again. The result has all of these reservations, even if `ids` lacks them.
        """
        if kind is not Reservation or not self._locked:
            return self._load(kind, ids)
        missing = [name for name in ids if name not in self._locked]
        return {**self._locked, **(self.load_reservations(missing) if missing else {})}

    def _load(self, kind: type[Row], ids: Sequence[str]) -> Mapping[str, Row]:
        loaders: dict[type[Row], Callable[[Sequence[str]], Mapping[str, Row]]] = {
            Reservation: self.load_reservations,
            Slot: self.load_slots,
            Hold: self.load_holds,
            Account: self.load_accounts,
            RunTimes: self.load_run_times,
        }
        return loaders[kind](ids)

    def _statements_for(self, kind: type[Row]) -> RowStatements:
        known = self._statements
        rows = {
            Reservation: known.reservations,
            Slot: known.slots,
            Hold: known.holds,
            Account: known.accounts,
            RunTimes: known.run_times,
        }
        return rows[kind]

    def _write(self, bulk: Bulk, rows: Sequence[msgspec.Struct]) -> None:
        """Execute the bulk statement `bulk` for changed rows of one kind, together with later statements. `_settle`
        tests whether all rows were written.
        """
        if rows:
            self._written.append((len(rows), self._session.write_later(bulk, rows)))

    def _settle(self) -> None:
        """Execute the writes that wait. Raises StaleWriteError if a row was not written, because its stored version has
        changed.
        """
        self._session.check_whole()
        try:
            self._session.settle()
        except StaleWriteError as error:
            raise self._lose(error) from error
        for wanted, results in self._written:
            if (written := sum(result.rowcount for result in results)) != wanted:
                message = f"{wanted - written} of {wanted} rows have changed since they were read"
                raise self._lose(StaleWriteError(message))
        self._written.clear()


def _by_kind(rows: Sequence[Row]) -> dict[type[Row], list[Row]]:
    """Return the rows grouped by type (slots, reservations and so on), in the order in which all transactions lock the
    types.
    """
    found: dict[type[Row], list[Row]] = {Reservation: [], Slot: [], Hold: [], Account: [], RunTimes: []}
    for row in rows:
        found[type(row)].append(row)
    return {kind: alike for kind, alike in found.items() if alike}


def _put(session: Session, statements: Statements, shape: Shape[Any], rows: Sequence[msgspec.Struct]) -> None:
    """Write rows by an upsert, in the order of their primary keys. Of rows with equal keys the last one counts."""
    key = attrgetter(*shape.table.primary_key.columns.keys())
    by_key = {key(row): row for row in rows}
    session.write(statements.put(shape), [by_key[each] for each in sorted(by_key)])
