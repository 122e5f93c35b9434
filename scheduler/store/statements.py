"""The bulk statements of the SQL store: each reads or writes any number of rows at once. They are built once for each
dialect (the interface to one kind of database).
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Delete,
    FromClause,
    Insert,
    Select,
    Update,
    bindparam,
    case,
    delete,
    func,
    insert,
    literal_column,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.sql.dml import ReturningInsert

from scheduler.model.accounts import FREE
from scheduler.model.transitions import INACTIVE
from scheduler.store import tables
from scheduler.store.dialect import Bulk, Dialect, Field, overwrite
from scheduler.store.shapes import (
    ACCOUNTS,
    ANSWERS,
    BOOKED,
    COMMANDS,
    COSTS,
    EVENTS,
    EXECUTIONS,
    HOLDS,
    LEASES,
    RESERVATIONS,
    RUN_TIMES,
    SLOTS,
    Shape,
)
from scheduler.store.shared_rules import VERSIONS_A_RESTORE

# SQL statements of transactions that are the same for every kind of database.


_LEADER = tables.leader.c
COUNT = (
    update(tables.counters)
    .where(tables.counters.c.name == bindparam("counter"))
    .values(value=tables.counters.c.value + bindparam("count"))
    .returning(tables.counters.c.value)
)
BURIED = select(tables.counters.c.value).where(tables.counters.c.name == "buried").with_for_update()
BURY = (
    update(tables.counters)
    .where(tables.counters.c.name == "buried", tables.counters.c.value < bindparam("deepest"))
    .values(value=bindparam("deepest"))
)
TAKE_TERM = (
    update(tables.leader)
    .values(term=_LEADER.term + 1, holder=bindparam("me"))
    .returning(_LEADER.term, _LEADER.holder, _LEADER.ticked_at)
)
ALL_SLOTS = select(*SLOTS.columns).order_by(tables.slots.c.id).with_for_update()
ACTIVE = select(func.count()).where(
    tables.slots.c.pool == bindparam("of_pool"), tables.slots.c.state.not_in(sorted(INACTIVE))
)
_ACCOUNT, _LEASE, _OWNER = tables.accounts.c, tables.leases.c, tables.reservations.c
ALL_ACCOUNTS = select(*ACCOUNTS.columns).order_by(_ACCOUNT.id).with_for_update()
# The time up to which the use of a lease is charged: see policy/quota/accounting.py.
_USED_FROM = case((_LEASE.charged_at > _ACCOUNT.charged_at, _LEASE.charged_at), else_=_ACCOUNT.charged_at)
RUNNING = (
    select(_ACCOUNT.id, _LEASE.level, func.sum(_LEASE.weight * (bindparam("now") - _USED_FROM)))
    .where(_LEASE.reservation == _OWNER.id, _OWNER.account == _ACCOUNT.id)
    .where(_ACCOUNT.forgotten.is_(False), _OWNER.sequence > _ACCOUNT.forgotten_upto)
    .where(_LEASE.charged_at.is_not(None), _LEASE.level < FREE, bindparam("now") > _USED_FROM)
    .group_by(_ACCOUNT.id, _LEASE.level)
)
_COUNTED, _RUN_TIMES = tables.run_time_cursor.c, tables.run_times.c
LOAD_COUNTED = select(_COUNTED.ended_at, _COUNTED.sequence).with_for_update()
SAVE_COUNTED = update(tables.run_time_cursor).values(ended_at=bindparam("at"), sequence=bindparam("number"))
ENDED_AFTER = (
    select(*RESERVATIONS.columns)
    .where(_OWNER.ended_at >= bindparam("after_time"), _OWNER.ended_at < bindparam("before"))
    .where(or_(_OWNER.ended_at > bindparam("after_time"), _OWNER.sequence > bindparam("after_number")))
    .order_by(_OWNER.ended_at, _OWNER.sequence)
    .limit(bindparam("most"))
)
COUNT_RUN_TIMES = select(func.count()).select_from(tables.run_times)
OLDEST_RUN_TIMES = select(*RUN_TIMES.columns).order_by(_RUN_TIMES.released_at, _RUN_TIMES.id).limit(bindparam("most"))
HOLDERS = select(_LEASE.reservation).distinct().order_by(_LEASE.reservation)
SAVE_RULES = insert(tables.rules)
LOCK_LEADER = select(_LEADER.term).with_for_update()
NOTE_TICK = (
    update(tables.leader)
    .where(_LEADER.term == bindparam("my_term"), _LEADER.holder == bindparam("me"))
    .values(ticked_at=bindparam("now"))
)

LOCK_PRINCIPALS = select(tables.cluster.c.principals_version).with_for_update()
CHANGE_PRINCIPALS = update(tables.cluster).values(principals_version=tables.cluster.c.principals_version + 1)
FIND_SESSION = select(tables.ended_sessions.c.id).where(tables.ended_sessions.c.id == bindparam("session"))
END_SESSION = insert(tables.ended_sessions)
FORGET_SESSIONS = delete(tables.ended_sessions).where(tables.ended_sessions.c.until < bindparam("now"))
_INSTANCES = func.coalesce(func.sum(func.coalesce(_OWNER.instances, 1)), 0)
_PENDING = select(func.count(), _INSTANCES).where(_OWNER.phase == literal_column("'pending'"))
PENDING_UNSIGNED = _PENDING.where(_OWNER.principal.is_(None), _OWNER.sender.is_(None))
PENDING_OF_SENDER = _PENDING.where(_OWNER.principal.is_(None), _OWNER.sender == bindparam("name"))
PENDING_OF_PRINCIPAL = _PENDING.where(_OWNER.principal == bindparam("name"))
PENDING_OF_ACCOUNT = _PENDING.where(_OWNER.account.is_not(None), _OWNER.account == bindparam("name"))
INSERTED = (
    select(_OWNER.principal, _OWNER.account, _OWNER.sender, func.count(), _INSTANCES)
    # Both ends: without statistics, PostgreSQL would read the whole table for one.
    .where(_OWNER.sequence > bindparam("after"), _OWNER.sequence <= bindparam("upto"))
    .group_by(_OWNER.principal, _OWNER.account, _OWNER.sender)
)

JUMP_TERM = update(tables.leader).values(term=bindparam("to"), holder="", ticked_at=bindparam("long_ago"))
JUMP_TOKEN = update(tables.counters).where(tables.counters.c.name == "token").values(value=bindparam("to"))
COUNT_RESTORE = update(tables.cluster).values(
    restores=tables.cluster.c.restores + 1,
    # A process may have cached principals under a version that is used again after the restore.
    principals_version=tables.cluster.c.principals_version + VERSIONS_A_RESTORE,
)


_MARKS = {
    "slots": ("last_seen", "noted_at", "heartbeat", "sent_at", "not_before", "attempts", "marked_at"),
    "reservations": ("expires_at", "confirmed_at", "marked_at"),
    "holds": ("marked_at",),
    "accounts": ("marked_at",),
    "run_times": ("marked_at",),
}


class Statements:
    """All bulk statements for one dialect. Each kind of row has an object with its statements (`slots`, `reservations`
    and so on); the properties are the statements for other tables.
    """

    def __init__(self, dialect: Dialect) -> None:
        self.slots = RowStatements(dialect, SLOTS)
        self.holds = RowStatements(dialect, HOLDS)
        self.accounts = RowStatements(dialect, ACCOUNTS)
        self.run_times = RowStatements(dialect, RUN_TIMES)
        self.reservations = RowStatements(dialect, RESERVATIONS)
        self.leases = LeaseStatements(dialect)
        self._dialect = dialect
        self._puts: dict[Shape[Any], Bulk] = {}
        self._forgets: dict[Column[Any], Delete] = {}

    def put(self, shape: Shape[Any]) -> Bulk:
        """Return the statement that inserts rows of this kind. It overwrites a stored row with the same primary key."""
        if shape not in self._puts:
            fields = tuple(shape.fields(shape.table.c))
            self._puts[shape] = Bulk(
                self._dialect, fields, lambda given: self._dialect.upsert(shape.table, given, overwrite)
            )
        return self._puts[shape]

    def forget(self, key: Column[Any]) -> Delete:
        """Return the statement that deletes the rows that have one of the given ids in this column."""
        if key not in self._forgets:
            self._forgets[key] = delete(key.table).where(key.in_(self._dialect.ids()))
        return self._forgets[key]

    @cached_property
    def append_events(self) -> Bulk:
        """The statement that inserts events into the history. The database gives each event its number."""
        return _insert(self._dialect, EVENTS, [column for column in tables.events.c if column.name != "number"])

    @cached_property
    def insert_answers(self) -> Bulk:
        return _insert(self._dialect, ANSWERS, tables.requests.c)

    @cached_property
    def insert_commands(self) -> Bulk:
        return _insert(self._dialect, COMMANDS, tables.commands.c)

    @cached_property
    def find_commands(self) -> Select[Any]:
        return select(*COMMANDS.columns).where(tables.commands.c.reservation.in_(self._dialect.ids()))

    @cached_property
    def find_executions(self) -> Select[Any]:
        table = tables.executions.c
        found = select(*EXECUTIONS.columns).where(table.reservation.in_(self._dialect.ids()))
        return found.order_by(table.reservation, table.taken_at, table.component)

    @cached_property
    def find_answers(self) -> Select[Any]:
        return select(*ANSWERS.columns).where(tables.requests.c.id.in_(self._dialect.ids()))

    @cached_property
    def add_costs(self) -> Bulk:
        """The statement that adds costs to the rows of the ledger with the same keys; it inserts a row of a new key."""
        costs = tables.costs
        return Bulk(
            self._dialect,
            tuple(COSTS.fields(costs.c)),
            lambda given: self._dialect.upsert(costs, given, lambda column, added: column + added),
        )

    @cached_property
    def advance_booked(self) -> Bulk:
        """The statement that stores a new booked interval for each given machine. The interval begins where the
        machine's last one ended, and ends at the given time. The result of the statement has the begins of the new
        intervals.
        """
        booked = tables.booked_machines
        until = booked.c.until

        def advance(column: Column[Any], given: ColumnElement[Any]) -> ColumnElement[Any]:
            return until if column is booked.c.since else case((given > until, given), else_=until)

        def make(given: FromClause) -> ReturningInsert[Any]:
            return self._dialect.upsert(booked, given, advance).returning(booked.c.machine, booked.c.since)

        return Bulk(self._dialect, tuple(BOOKED.fields(booked.c)), make)

    @cached_property
    def known_reservations(self) -> Select[Any]:
        """The statement that locks the stored reservations with the given ids and returns their ids in ascending order.
        A locked row cannot be pruned before the transaction ends.
        """
        table = tables.reservations.c
        return select(table.id).where(table.id.in_(self._dialect.ids())).order_by(table.id).with_for_update()


class RowStatements:
    """The statements for one kind of rows: slots, reservations, launch back-offs (holds), accounts or run times."""

    def __init__(self, dialect: Dialect, shape: Shape[Any]) -> None:
        self._dialect, self._shape, self._table = dialect, shape, shape.table
        self._id = self._table.c["id"]
        self._version = self._table.c["version"]
        self._marks = [self._table.c[name] for name in _MARKS[self._table.name]]

    @cached_property
    def insert(self) -> Bulk:
        return _insert(self._dialect, self._shape, [column for column in self._table.c if not column.computed])

    @cached_property
    def update(self) -> Bulk:
        """The statement that overwrites stored rows with the given rows that have the same ids. It changes a stored row
        only if the stored version is one lower than the given version, so that no other write is lost.
        """
        changing = [c for c in self._table.c if c is not self._id and not (c.computed or c.info.get("fixed"))]
        return self._update(changing, raised=1)

    @cached_property
    def mark(self) -> Bulk:
        """The statement that writes the time marks of the given rows: the fields, such as `last_seen`, that are written
        without a new version. It changes a stored row only if the stored version equals the given one.
        """
        return self._update(self._marks, raised=0)

    @cached_property
    def load(self) -> Select[Any]:
        """The statement that locks and selects the rows with the given ids, sorted by id."""
        found = select(*self._shape.columns).where(self._id.in_(self._dialect.ids()))
        return found.order_by(self._id).with_for_update()

    @cached_property
    def find(self) -> Select[Any]:
        return select(*self._shape.columns).where(self._id.in_(self._dialect.ids()))

    @cached_property
    def find_by_machine(self) -> Select[Any]:
        """The statement that selects, without locking, the slots whose `instance_id` (the EC2 machine) is one of the
        given ids. The column needs no index, because a fleet has few slots and the statement is rarely used.
        """
        return select(*self._shape.columns).where(self._table.c.instance_id.in_(self._dialect.ids()))

    @cached_property
    def delete(self) -> Bulk:
        """The statement that deletes the stored rows with the ids of the given rows. It deletes a stored row only if
        the stored version equals the given one.
        """
        fields = tuple(self._shape.fields([self._id, self._version]))

        def make(given: FromClause) -> Delete:
            return delete(self._table).where(tuple_(self._id, self._version).in_(select(given.c.id, given.c.version)))

        return Bulk(self._dialect, fields, make)

    @cached_property
    def forget(self) -> Delete:
        """The statement that deletes the rows with the given ids, whatever their versions."""
        return delete(self._table).where(self._id.in_(self._dialect.ids()))

    def _update(self, columns: Sequence[Column[Any]], raised: int) -> Bulk:
        named = {column.name: column for column in (*columns, self._id, self._version)}
        fields = tuple(self._shape.fields(named.values()))

        def make(given: FromClause) -> Update:
            values = {column.name: given.c[column.name] for column in columns}
            same_row = self._id == given.c.id
            same_version = self._version == given.c.version - raised  # promise: version-checked
            return update(self._table).values(values).where(same_row, same_version)

        return Bulk(self._dialect, fields, make)


class LeaseStatements:
    """The statements for leases. A lease is written together with its reservation, and found by its reservation or its
    slot.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect, self._shape, self._table = dialect, LEASES, tables.leases

    @cached_property
    def insert(self) -> Bulk:
        return _insert(self._dialect, self._shape, self._table.c)

    @cached_property
    def update(self) -> Bulk:
        """The statement that overwrites stored leases with the given leases (StoredLeases) of the same reservations and
        components. The positions of the stored leases stay.
        """
        table = self._table.c
        key = [table.reservation, table.component]
        changing = [column for column in table if column is not table.position]
        fields = tuple(self._shape.fields(changing))

        def make(given: FromClause) -> Update:
            values = {column.name: given.c[column.name] for column in changing if column not in set(key)}
            return update(self._table).values(values).where(*(each == given.c[each.name] for each in key))

        return Bulk(self._dialect, fields, make)

    @cached_property
    def delete(self) -> Bulk:
        """The statement that deletes the stored leases of the given reservations and components (StoredLeases)."""
        key = [self._table.c.reservation, self._table.c.component]
        fields = tuple(self._shape.fields(key))

        def make(given: FromClause) -> Delete:
            return delete(self._table).where(tuple_(*key).in_(select(*(given.c[each.name] for each in key))))

        return Bulk(self._dialect, fields, make)

    @cached_property
    def confirm(self) -> Bulk:
        """The statement that writes `confirmed_at` of the given leases (StoredLeases) into the stored leases that have
        the same reservation, component and fencing token.
        """
        table = self._table.c
        key = [table.reservation, table.component, table.token]
        fields = tuple(self._shape.fields([*key, table.confirmed_at]))

        def make(given: FromClause) -> Update:
            same = [column == given.c[column.name] for column in key]
            return update(self._table).values(confirmed_at=given.c.confirmed_at).where(*same)

        return Bulk(self._dialect, fields, make)

    @cached_property
    def forget(self) -> Delete:
        return delete(self._table).where(self._table.c.reservation.in_(self._dialect.ids()))

    @cached_property
    def load(self) -> Select[Any]:
        """The statement that selects the leases of the reservations with the given ids, in their order within each
        reservation. A row of the result has the columns of the lease, then its position and the id of its reservation.
        """
        table = self._table.c
        found = select(*LEASES.columns, table.position, table.reservation).where(
            table.reservation.in_(self._dialect.ids())
        )
        return found.order_by(table.reservation, table.position)

    @cached_property
    def on_slots(self) -> Select[Any]:
        """The statement that selects every lease on the slots with the given ids. A row of the result has the columns
        of the lease, then the id of its reservation.
        """
        table = self._table.c
        found = select(*LEASES.columns, table.reservation).where(table.slot.in_(self._dialect.ids()))
        return found.order_by(table.reservation, table.position)


def _insert(dialect: Dialect, shape: Shape[Any], columns: Iterable[Column[Any]]) -> Bulk:
    fields: tuple[Field, ...] = tuple(shape.fields(columns))
    names = [column for column, _ in fields]

    def make(given: FromClause) -> Insert:
        return insert(shape.table).from_select(names, select(given), include_defaults=False)

    return Bulk(dialect, fields, make)
