"""The Store port on SQL databases: reads without locks, and the begin and end of transactions."""

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from heapq import merge
from operator import itemgetter
from time import monotonic
from typing import Final

import msgspec
from sqlalchemy import (
    Engine,
    Table,
    bindparam,
    delete,
    func,
    or_,
    select,
    tuple_,
)

from scheduler.model.accounts import Account, BalanceSample
from scheduler.model.costs import Cost
from scheduler.model.events import Event
from scheduler.model.launch_backoff import Hold
from scheduler.model.market import PriceChange, StoredMarket
from scheduler.model.recent_writes import RecentWrites
from scheduler.model.reservations import Reservation
from scheduler.model.slots import Slot
from scheduler.model.transitions import PHASES
from scheduler.model.view import Row
from scheduler.ports import (
    AppliedRules,
    ClusterRow,
    EventFilter,
    LeaderTerm,
    OutboxMessage,
    RowVersion,
    RulesVersion,
    StoredPrincipal,
    StoredRules,
    StoreUnavailableError,
)
from scheduler.store import sql_ledger, tables
from scheduler.store.cost_reading import ReadsCosts
from scheduler.store.dialect import Dialect
from scheduler.store.fixed import FIND_SESSION
from scheduler.store.reading import (
    RulesReader,
    load_leader_term,
    read_images,
    read_principals,
    read_reservations,
    read_rules_version,
)
from scheduler.store.row_versions import NOT_OVER, RowVersions
from scheduler.store.seen import HighestSeen
from scheduler.store.session import CHUNK_ROWS, Session, open_session
from scheduler.store.shapes import ACCOUNTS, BALANCES, EVENTS, HOLDS, OUTGOING, RESERVATIONS, SLOTS
from scheduler.store.shared_rules import RECENT_SECONDS
from scheduler.store.sql_market import (
    prune_price_changes,
    read_holds,
    read_market,
    read_price_changes,
    read_rules_versions,
)
from scheduler.store.sql_transaction import SqlTransaction
from scheduler.store.statements import Statements

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
_BALANCES = (
    select(*BALANCES.columns)
    .where(tables.balances.c.account == bindparam("of_account"), tables.balances.c.at >= bindparam("since"))
    .order_by(tables.balances.c.at)
)
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


class SqlStore(ReadsCosts):
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
        """The database engine of this process. All its threads share one engine."""
        process = os.getpid()
        engine = self._engines.get(process)
        if engine is None:
            # Another thread may set an engine first. Then that engine is used; the new one has not connected yet.
            engine = self._engines.setdefault(process, self._dialect.create_engine())
        return engine

    def close(self) -> None:
        """Close all database connections of this process. See Store."""
        engine = self._engines.pop(os.getpid(), None)
        if engine is not None:
            self._dialect.dispose(engine)

    @contextmanager
    def transaction(self) -> Iterator[SqlTransaction]:
        """Begin a transaction. It is committed when the `with` block ends without an error. See Store."""
        with open_session(self.engine, self._dialect, writes=True) as session:
            began = monotonic()
            cluster = self._seen.read_to_write(session)
            transaction = SqlTransaction(session, self._statements, self._rules, cluster)
            yield transaction
            transaction.finish()
            seconds = monotonic() - began
            if seconds > self._dialect.longest_seconds:  # promise: no-late-commit
                raise StoreUnavailableError(
                    f"a transaction took {seconds:.0f} seconds, which is too long: it was not committed"
                )

    def now(self) -> float:
        """Return cluster time, outside a transaction. See Store."""
        return self.read_cluster().now

    def read_cluster(self) -> ClusterRow:
        """Return the row about the cluster; its field `now` is cluster time. See Store."""
        with self._reading() as session:
            return self._seen.read(session)

    def accept_restores(self, restores: int) -> None:
        """Permit transactions while the database has this number of restores (`ClusterRow.restores`, how often a backup
        was restored). If the number changes, `transaction` raises DatabaseWentBackError. See Store.
        """
        self._seen.accept_restores(restores)

    def rules_version(self) -> int:
        """Return the version of the scheduling rules in force. See Store."""
        with self._reading() as session:
            return read_rules_version(session)

    def rules_versions(self) -> RulesVersion:
        """Return the version of the scheduling rules in force and the version of the market. See Store."""
        with self._reading() as session:
            return read_rules_versions(session)

    def load_market(self) -> StoredMarket:
        """Return the catalogue of instance types and all prices, of one moment. See Store."""
        with self._reading() as session:
            return read_market(session)

    def find_holds(self) -> list[Hold]:
        """Return every launch back-off (hold), sorted by id, without locking. See Store."""
        with self._reading() as session:
            return read_holds(session)

    def load_rules(self) -> StoredRules:
        """Return the scheduling rules in force. See Store."""
        with self._reading() as session:
            return self._rules.load(session)

    def read_rules_history(self, *, version: int | None = None, limit: int = 1000) -> list[AppliedRules]:
        """Return the newest `limit` entries in the history of the rules, oldest first; with `version` only the entry of
        this version. See Store.
        """
        with self._reading() as session:
            found = select(_RULES.version, _RULES.applied_at, _RULES.document, _RULES.images)
            if version is not None:
                found = found.where(_RULES.version == version)
            newest = session.fetch(found.order_by(_RULES.version.desc()).limit(limit))
            return [
                AppliedRules(number, at, msgspec.json.decode(text), read_images(images))
                for number, at, text, images in reversed(newest)
            ]

    def find_principals(self) -> list[StoredPrincipal]:
        """Return every principal (sender of signed messages), sorted by name, without locking. See Store."""
        with self._reading() as session:
            return read_principals(session)

    def is_session_ended(self, session: str) -> bool:
        """Return whether the session with this id was logged out. See Store."""
        with self._reading() as found:
            return bool(found.fetch(FIND_SESSION, session=session))

    def load_leader_term(self) -> LeaderTerm:
        """Return the term and holder of the present leadership; term 0 before the first leader. See Store."""
        with self._reading() as session:
            return load_leader_term(session)

    def read_rows(self) -> Iterator[Row]:
        """Yield every slot, launch back-off (hold) and account, and every reservation except those that ended over 10
        minutes ago. See Store.
        """
        with self._reading() as session:
            ended_after = session.read_cluster().now - RECENT_SECONDS
            for chunk in session.stream(_ALL_SLOTS):
                yield from SLOTS.read_all(chunk)
            for chunk in session.stream(_ALL_HOLDS):
                yield from HOLDS.read_all(chunk)
            for chunk in session.stream(_ALL_ACCOUNTS):
                yield from ACCOUNTS.read_all(chunk)
            for chunk in session.stream(_RECENT, ended_after=ended_after):
                yield from read_reservations(session, self._statements, chunk)

    def read_stamps(self) -> Iterator[RowVersion]:
        """Yield the version of every slot, launch back-off (hold) and account, and of every reservation that has not
        ended. See Store.
        """
        with self._reading() as session:
            yield from self._versions.read_live(session)

    def read_versions_since(self, since: float, known: RecentWrites | None = None) -> list[RowVersion]:
        """Return the versions of all rows that were written at or after `since`, also of ended reservations. Rows whose
        present version the caller has, as `known` shows, may be missing. See Store.
        """
        with self._reading() as session:
            return list(self._versions.read_since(session, since, known))

    def find_reservations(
        self, *, ids: Sequence[str] | None = None, phases: Sequence[str] | None = None, limit: int = 1000
    ) -> list[Reservation]:
        """Return up to `limit` reservations that match all conditions that are not None, in order of submission,
        without locking. See Store.
        """
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

    def find_slots(
        self,
        *,
        ids: Sequence[str] | None = None,
        states: Sequence[str] | None = None,
        pools: Sequence[str] | None = None,
    ) -> list[Slot]:
        """Return the slots that match all conditions that are not None, in any order, without locking. See Store."""
        wanted = {"state": states, "pool": pools}
        given = {name: list(values) for name, values in wanted.items() if values is not None}
        with self._reading() as session:
            if ids is None:
                same = [tables.slots.c[name].in_(values) for name, values in given.items()]
                return SLOTS.read_all(session.fetch(_ALL_SLOTS.where(*same) if same else _ALL_SLOTS))
            rows = SLOTS.read_all([*session.fetch_for(self._statements.slots.find, ids)])
            return [row for row in rows if all(getattr(row, name) in given[name] for name in given)]

    def find_slots_of_machines(self, machines: Sequence[str]) -> list[Slot]:
        """Return the slots whose `instance_id` is one of `machines`, in any order, without locking. See Store."""
        with self._reading() as session:
            return SLOTS.read_all(list(session.fetch_for(self._statements.slots.find_by_machine, machines)))

    def find_accounts(self) -> list[Account]:
        """Return every account, deleted (forgotten) ones too, in the order of their ids, without locking. See Store."""
        with self._reading() as session:
            return ACCOUNTS.read_all(session.fetch(_ALL_ACCOUNTS.order_by(tables.accounts.c.id)))

    def read_balances(self, account: str, since: float = 0.0) -> list[BalanceSample]:
        """Return the stored balances of this account at or after `since`, oldest first. See Store."""
        with self._reading() as session:
            return BALANCES.read_all(session.fetch(_BALANCES, of_account=account, since=since))

    def load_costs(self, since: float) -> tuple[list[Cost], list[Slot], float]:
        """Return the booked costs of the hours that begin at or after `since`, the slots with costs that are not booked
        yet, and cluster time. See ReadsCosts.
        """
        with self._reading() as session:
            now = session.read_cluster().now
            booked = sql_ledger.COSTS.read_all(session.fetch(sql_ledger.SINCE, since=since))
            return booked, SLOTS.read_all(session.fetch(_METERED)), now

    def prune_costs(self, before: float) -> int:
        """Delete the costs of hours that began before `before`. Return the number of deleted rows. See CostLedger."""
        with self._writing() as session:
            return session.change(sql_ledger.prune_costs(before))

    def prune_booked_machines(self, before: float) -> int:
        """Delete the stored booking times that are before `before`. A booking time is the time until which the costs of
        a machine without a slot are booked. Return the number of deleted rows. See CostLedger.
        """
        with self._writing() as session:
            return session.change(sql_ledger.prune_booked_machines(before))

    def read_price_changes(self, types: Sequence[str]) -> list[PriceChange]:
        """Return the stored price changes of these instance types, sorted by type, zone, market and hour. See
        PriceHistory.
        """
        with self._reading() as session:
            return read_price_changes(session, types)

    def prune_price_changes(self, before: float) -> int:
        """Delete the price changes of hours that began before `before`. Return the number of deleted rows. See
        PriceHistory.
        """
        with self._writing() as session:
            return prune_price_changes(session, before)

    def find_outgoing(self, *, sent_before: float, limit: int = 1000) -> list[OutboxMessage]:
        """Return up to `limit` messages of the outbox that were last sent before `sent_before`. See Store."""
        with self._reading() as session:
            return OUTGOING.read_all(session.fetch(_DUE, sent_before=sent_before, limit=limit))

    def count_phases(self) -> dict[str, int]:
        """Return the number of reservations in each phase; 0 for a phase without any. See Store."""
        with self._reading() as session:
            counted = dict(tuple(row) for row in session.fetch(_PHASES))
            return {phase: counted.get(phase, 0) for phase in PHASES}

    def read_events(self, which: EventFilter) -> list[Event]:
        """Return the events that match the filter, oldest first. See Store."""
        wanted = {"reservation": which.reservation, "slot": which.slot, "name": which.name}
        same = [_EVENT[name] == value for name, value in wanted.items() if value is not None]
        order = _EVENT.number.desc() if which.newest else _EVENT.number
        chosen = select(*EVENTS.columns).where(_EVENT.number > which.after, *same).order_by(order).limit(which.limit)
        with self._reading() as session:
            found = EVENTS.read_all(session.fetch(chosen))
            return found[::-1] if which.newest else found

    def prune(self, *, events_before: float, requests_before: float, ended_before: float) -> int:
        """Delete old rows: events and balances from before `events_before`, answers to requests from before
        `requests_before`, and reservations that ended before `ended_before`. Return the number of deleted rows. See
        Store.
        """
        total = self._prune_before(tables.events, events_before)
        total += self._prune_before(tables.balances, events_before)
        total += self._prune_before(tables.requests, requests_before)
        while True:
            with self._writing() as session:
                ids = [name for (name,) in session.fetch(_ENDED, before=ended_before)]
                session.change_for(self._statements.leases.forget, ids)
                total += session.change_for(self._statements.reservations.forget, ids)
            if len(ids) < CHUNK_ROWS:
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

    def _reading(self) -> AbstractContextManager[Session]:
        return open_session(self.engine, self._dialect, writes=False)

    def _writing(self) -> AbstractContextManager[Session]:
        return open_session(self.engine, self._dialect, writes=True)
