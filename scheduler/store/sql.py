"""The Store port on SQL databases: reads without locks, and the begin and end of transactions."""

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from heapq import merge
from operator import itemgetter
from time import monotonic
from typing import Any, Final

import msgspec
from sqlalchemy import (
    Engine,
    Select,
    Table,
    bindparam,
    delete,
    func,
    or_,
    select,
    tuple_,
)
from typing_extensions import override

from scheduler.model.accounts import Account, BalanceSample
from scheduler.model.costs import Cost
from scheduler.model.events import Event
from scheduler.model.launch_backoff import Hold
from scheduler.model.market import PriceChange, StoredMarket
from scheduler.model.reservations import Reservation
from scheduler.model.run_times import RunTimes
from scheduler.model.runs import Execution
from scheduler.model.slots import Slot
from scheduler.model.transitions import PHASES
from scheduler.model.view import RecentWrites, Row
from scheduler.ports import (
    AppliedRules,
    ClusterRow,
    EventFilter,
    LeaderTerm,
    OutboxMessage,
    RowVersion,
    RulesVersion,
    Store,
    StoredPrincipal,
    StoredRules,
    StoreUnavailableError,
)
from scheduler.store import tables
from scheduler.store.dialect import Dialect
from scheduler.store.reading import (
    MARKET,
    NOT_OVER,
    RowVersions,
    RulesReader,
    read_images,
    read_principals,
    read_reservations,
    read_rules_version,
)
from scheduler.store.seen import HighestSeen
from scheduler.store.session import CHUNK_ROWS, Session, open_session
from scheduler.store.shapes import (
    ACCOUNTS,
    BALANCES,
    COMMANDS,
    COSTS,
    EVENTS,
    EXECUTIONS,
    HOLDS,
    INSTANCE_TYPES,
    OUTGOING,
    PRICE_CHANGES,
    PRICES,
    RESERVATIONS,
    RUN_TIMES,
    SLOTS,
    Record,
)
from scheduler.store.shared_rules import RECENT_SECONDS, ReadsCosts
from scheduler.store.sql_transaction import SqlTransaction
from scheduler.store.statements import FIND_SESSION, Statements

_RESERVATION = tables.reservations.c
_EVENT = tables.events.c
_OUTGOING = tables.outgoing.c
_RULES = tables.rules.c

_SEQUENCE_OF = itemgetter(RESERVATIONS.place("sequence"))
_PHASE_OF = itemgetter(RESERVATIONS.place("phase"))
_PHASES = select(_RESERVATION.phase, func.count()).group_by(_RESERVATION.phase)
_SUBMITTED = select(*RESERVATIONS.columns).order_by(_RESERVATION.sequence).limit(bindparam("limit"))
_IN_PHASE = _SUBMITTED.where(_RESERVATION.phase == bindparam("wanted_phase"))
_ALL_SLOTS = select(*SLOTS.columns)
_ALL_HOLDS = select(*HOLDS.columns)
_ALL_ACCOUNTS = select(*ACCOUNTS.columns)
_ALL_RUN_TIMES = select(*RUN_TIMES.columns)
_BALANCES = (
    select(*BALANCES.columns)
    .where(tables.balances.c.account == bindparam("of_account"), tables.balances.c.at >= bindparam("since"))
    .order_by(tables.balances.c.at)
)
_COSTS = select(*COSTS.columns).where(tables.costs.c.hour >= bindparam("since"))
_LEADER_TERM = select(tables.leader.c.term, tables.leader.c.holder, tables.leader.c.ticked_at)
_MARKET_VERSION = select(tables.counters.c.value).where(tables.counters.c.name == MARKET)
_VERSIONS = select(
    func.coalesce(select(func.max(_RULES.version)).scalar_subquery(), 0),
    func.coalesce(_MARKET_VERSION.scalar_subquery(), 0),
)
_PRICE = tables.prices.c
_TYPES = select(*INSTANCE_TYPES.columns).order_by(tables.instance_types.c.name)
_PRICES = select(*PRICES.columns).order_by(_PRICE.type, _PRICE.zone, _PRICE.market)
_METERED = _ALL_SLOTS.where(tables.slots.c.meter.is_not(None))
_RECENT = select(*RESERVATIONS.columns).where(or_(NOT_OVER, _RESERVATION.ended_at > bindparam("ended_after")))
BITE_ROWS: Final = 10 * CHUNK_ROWS
"""The most rows that one transaction of `prune` deletes from a table with small rows, so that other transactions never
wait long for it.
"""
_ENDED = (
    select(_RESERVATION.id)
    .where(_RESERVATION.ended_at < bindparam("before"))
    .order_by(_RESERVATION.ended_at)
    .limit(CHUNK_ROWS)
    # Other transactions lock in the order of ids. Rows that they have locked are left to the next run.
    .with_for_update(skip_locked=True)
)
_DUE = (
    select(*OUTGOING.columns)
    .where(_OUTGOING.sent_at < bindparam("sent_before"))
    .order_by(_OUTGOING.created_at, _OUTGOING.id)
    .limit(bindparam("limit"))
)


class SqlStore(ReadsCosts, Store):
    """The Store port on the database of `dialect`. Each process has connections of its own, which open on first use."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._statements = Statements(dialect)
        self._versions = RowVersions(dialect)
        self._rules = RulesReader()
        self._seen = HighestSeen()
        self._engines: dict[int, Engine] = {}
        """Process id -> the database engine of the process. After a fork the parent's engine stays open in the child,
        because the parent still uses its connections.
        """

    @property
    def engine(self) -> Engine:
        process = os.getpid()
        engine = self._engines.get(process)
        if engine is None:
            # Another thread may set an engine first. Then that engine is used; the new one has not connected yet.
            engine = self._engines.setdefault(process, self._dialect.create_engine())
        return engine

    @override
    def close(self) -> None:
        engine = self._engines.pop(os.getpid(), None)
        if engine is not None:
            self._dialect.dispose(engine)

    @contextmanager
    @override
    def transaction(self) -> Iterator[SqlTransaction]:
        with open_session(self.engine, self._dialect, writes=True) as session:
            began = monotonic()
            transaction = SqlTransaction(session, self._statements, self._rules, self._seen.read_to_write(session))
            yield transaction
            transaction.finish()
            seconds = monotonic() - began
            if seconds > self._dialect.longest_seconds:  # promise: no-late-commit
                raise StoreUnavailableError(
                    f"a transaction took {seconds:.0f} seconds, which is too long: it was not committed"
                )

    @override
    def now(self) -> float:
        return self.read_cluster().now

    @override
    def read_cluster(self) -> ClusterRow:
        with self._reading() as session:
            return self._seen.read(session.read_cluster)

    @override
    def accept_restores(self, restores: int) -> None:
        self._seen.accept_restores(restores)

    @override
    def rules_version(self) -> int:
        with self._reading() as session:
            return read_rules_version(session)

    @override
    def rules_versions(self) -> RulesVersion:
        ((document, market),) = self._fetch(_VERSIONS)
        return RulesVersion(int(document), int(market))

    @override
    def load_market(self) -> StoredMarket:
        with self._reading() as session:
            version = next((int(value) for (value,) in session.fetch(_MARKET_VERSION)), 0)
            types = tuple(INSTANCE_TYPES.read_all(session.fetch(_TYPES)))
            return StoredMarket(version=version, types=types, prices=tuple(PRICES.read_all(session.fetch(_PRICES))))

    @override
    def find_holds(self) -> list[Hold]:
        return HOLDS.read_all(self._fetch(_ALL_HOLDS.order_by(tables.holds.c.id)))

    @override
    def load_rules(self) -> StoredRules:
        with self._reading() as session:
            return self._rules.load(session)

    @override
    def read_rules_history(self, *, version: int | None = None, limit: int = 1000) -> list[AppliedRules]:
        found = select(_RULES.version, _RULES.applied_at, _RULES.document, _RULES.images)
        if version is not None:
            found = found.where(_RULES.version == version)
        return [
            AppliedRules(number, at, msgspec.json.decode(text), read_images(images))
            for number, at, text, images in reversed(self._fetch(found.order_by(_RULES.version.desc()).limit(limit)))
        ]

    @override
    def find_principals(self) -> list[StoredPrincipal]:
        with self._reading() as session:
            return read_principals(session)

    @override
    def is_session_ended(self, session: str) -> bool:
        return bool(self._fetch(FIND_SESSION, session=session))

    @override
    def load_leader_term(self) -> LeaderTerm:
        for row in self._fetch(_LEADER_TERM):
            return LeaderTerm(*row)
        raise StoreUnavailableError("the database has no row for the leader: run `leasehold migrate`")

    @override
    def read_rows(self) -> Iterator[Row]:
        with self._reading() as session:
            ended_after = session.read_cluster().now - RECENT_SECONDS
            for chunk in session.stream(_ALL_SLOTS):
                yield from SLOTS.read_all(chunk)
            for chunk in session.stream(_ALL_HOLDS):
                yield from HOLDS.read_all(chunk)
            for chunk in session.stream(_ALL_ACCOUNTS):
                yield from ACCOUNTS.read_all(chunk)
            for chunk in session.stream(_ALL_RUN_TIMES):
                yield from RUN_TIMES.read_all(chunk)
            for chunk in session.stream(_RECENT, ended_after=ended_after):
                yield from read_reservations(session, self._statements, chunk)

    @override
    def read_stamps(self) -> Iterator[RowVersion]:
        with self._reading() as session:
            yield from self._versions.read_live(session)

    @override
    def read_versions_since(self, since: float, known: RecentWrites | None = None) -> list[RowVersion]:
        with self._reading() as session:
            return list(self._versions.read_since(session, since, known))

    @override
    def find_reservations(
        self, *, ids: Sequence[str] | None = None, phases: Sequence[str] | None = None, limit: int = 1000
    ) -> list[Reservation]:
        with self._reading() as session:
            if ids is not None:
                found = sorted(session.fetch_for(self._statements.reservations.find, ids), key=_SEQUENCE_OF)
                rows = [row for row in found if phases is None or _PHASE_OF(row) in phases]
            elif phases is not None:
                # One query for each phase, in the order of its index, so that no whole phase is sorted.
                parts = [session.fetch(_IN_PHASE, wanted_phase=phase, limit=limit) for phase in set(phases)]
                rows = list(merge(*parts, key=_SEQUENCE_OF))
            else:
                rows = list(session.fetch(_SUBMITTED, limit=limit))
            return read_reservations(session, self._statements, rows[:limit])

    @override
    def find_slots(
        self,
        *,
        ids: Sequence[str] | None = None,
        states: Sequence[str] | None = None,
        pools: Sequence[str] | None = None,
    ) -> list[Slot]:
        wanted = {"state": states, "pool": pools}
        given = {name: list(values) for name, values in wanted.items() if values is not None}
        with self._reading() as session:
            if ids is None:
                same = [tables.slots.c[name].in_(values) for name, values in given.items()]
                return SLOTS.read_all(session.fetch(_ALL_SLOTS.where(*same) if same else _ALL_SLOTS))
            rows = SLOTS.read_all([*session.fetch_for(self._statements.slots.find, ids)])
            return [row for row in rows if all(getattr(row, name) in given[name] for name in given)]

    @override
    def find_slots_of_machines(self, machines: Sequence[str]) -> list[Slot]:
        with self._reading() as session:
            return SLOTS.read_all(list(session.fetch_for(self._statements.slots.find_by_machine, machines)))

    @override
    def find_accounts(self) -> list[Account]:
        return ACCOUNTS.read_all(self._fetch(_ALL_ACCOUNTS.order_by(tables.accounts.c.id)))

    @override
    def find_run_times(self, ids: Sequence[str] | None = None) -> list[RunTimes]:
        with self._reading() as session:
            if ids is None:
                return RUN_TIMES.read_all(session.fetch(_ALL_RUN_TIMES.order_by(tables.run_times.c.id)))
            rows = RUN_TIMES.read_all([*session.fetch_for(self._statements.run_times.find, ids)])
            return sorted(rows, key=lambda row: row.id)

    @override
    def find_command(self, reservation: str) -> str | None:
        with self._reading() as session:
            rows = map(COMMANDS.read, session.fetch_for(self._statements.find_commands, [reservation]))
            return next((row.document for row in rows), None)

    @override
    def find_executions(self, reservation: str) -> list[Execution]:
        with self._reading() as session:
            return [*map(EXECUTIONS.read, session.fetch_for(self._statements.find_executions, [reservation]))]

    @override
    def read_balances(self, account: str, since: float = 0.0) -> list[BalanceSample]:
        return BALANCES.read_all(self._fetch(_BALANCES, of_account=account, since=since))

    @override
    def load_costs(self, since: float) -> tuple[list[Cost], list[Slot], float]:
        with self._reading() as session:
            now = session.read_cluster().now
            return COSTS.read_all(session.fetch(_COSTS, since=since)), SLOTS.read_all(session.fetch(_METERED)), now

    @override
    def read_price_changes(self, types: Sequence[str]) -> list[PriceChange]:
        with self._reading() as session:
            statement = select(*PRICE_CHANGES.columns).where(tables.price_changes.c.type.in_(self._dialect.ids()))
            return sorted(map(PRICE_CHANGES.read, session.fetch_for(statement, types)), key=lambda each: each.key)

    @override
    def find_outgoing(self, *, sent_before: float, limit: int = 1000) -> list[OutboxMessage]:
        return OUTGOING.read_all(self._fetch(_DUE, sent_before=sent_before, limit=limit))

    @override
    def count_phases(self) -> dict[str, int]:
        counted = dict(tuple(row) for row in self._fetch(_PHASES))
        return {phase: counted.get(phase, 0) for phase in PHASES}

    @override
    def read_events(self, which: EventFilter) -> list[Event]:
        wanted = {"reservation": which.reservation, "slot": which.slot, "name": which.name}
        same = [_EVENT[name] == value for name, value in wanted.items() if value is not None]
        same += [] if which.without is None else [_EVENT.name != which.without]
        order = _EVENT.number.desc() if which.newest else _EVENT.number
        chosen = select(*EVENTS.columns).where(_EVENT.number > which.after, *same).order_by(order).limit(which.limit)
        found = EVENTS.read_all(self._fetch(chosen))
        return found[::-1] if which.newest else found

    @override
    def prune(self, *, events_before: float, requests_before: float, ended_before: float) -> int:
        total = self._prune_before(tables.events, events_before)
        total += self._prune_before(tables.balances, events_before)
        total += self._prune_before(tables.requests, requests_before)
        while True:
            with self._writing() as session:
                ids = [name for (name,) in session.fetch(_ENDED, before=ended_before)]
                session.change_for(self._statements.leases.forget, ids)
                session.change_for(self._statements.forget(tables.commands.c.reservation), ids)
                session.change_for(self._statements.forget(tables.executions.c.reservation), ids)
                total += session.change_for(self._statements.reservations.forget, ids)
            if len(ids) < CHUNK_ROWS:
                return total

    @override
    def prune_ledger(self, *, costs_before: float, machines_before: float, prices_before: float) -> int:
        total = 0
        for time, before in (
            (tables.costs.c.hour, costs_before),
            (tables.booked_machines.c.until, machines_before),
            (tables.price_changes.c.hour, prices_before),
        ):
            with self._writing() as session:
                total += session.change(delete(time.table).where(time < before))
        return total

    def _prune_before(self, table: Table, before: float) -> int:
        """Delete the rows of `table` whose time `at` is before `before`. Return the number of deleted rows."""
        key = tuple(table.primary_key.columns)
        bite = select(*key).where(table.c.at < bindparam("before")).order_by(table.c.at).limit(BITE_ROWS)
        statement = delete(table).where(tuple_(*key).in_(bite.with_for_update(skip_locked=True)))
        total = 0
        while True:
            with self._writing() as session:
                gone = session.change(statement, before=before)
            total += gone
            if gone < BITE_ROWS:
                return total

    def _fetch(self, statement: Select[Any], **values: object) -> Sequence[Record]:
        with self._reading() as session:
            return session.fetch(statement, **values)

    def _reading(self) -> AbstractContextManager[Session]:
        return open_session(self.engine, self._dialect, writes=False)

    def _writing(self) -> AbstractContextManager[Session]:
        return open_session(self.engine, self._dialect, writes=True)
