"""Every bulk statement of the SQL store, built once for each dialect. They bind rows, ids or single values."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from sqlalchemy import (
    Column,
    Delete,
    Select,
    delete,
    insert,
    select,
    tuple_,
    update,
)

from scheduler.store import tables
from scheduler.store.dialect import Bulk, Dialect, Field
from scheduler.store.shapes import (
    ACCOUNTS,
    ANSWERS,
    BALANCES,
    EVENTS,
    HOLDS,
    LEASES,
    OUTGOING,
    PRINCIPALS,
    RESERVATIONS,
    SLOTS,
    Shape,
)

_MARKS = {
    "slots": ("last_seen", "noted_at", "heartbeat", "sent_at", "not_before", "attempts", "marked_at"),
    "reservations": ("expires_at", "confirmed_at", "marked_at"),
    "holds": ("marked_at",),
    "accounts": ("marked_at",),
}


class Statements:
    """All statements for one dialect: for rows, leases, events, answers, callbacks, balances and principals."""

    def __init__(self, dialect: Dialect) -> None:
        self.slots = RowStatements(dialect, SLOTS)
        self.holds = RowStatements(dialect, HOLDS)
        self.accounts = RowStatements(dialect, ACCOUNTS)
        self.reservations = RowStatements(dialect, RESERVATIONS)
        self.leases = LeaseStatements(dialect)
        self._dialect = dialect

    @cached_property
    def append_events(self) -> Bulk:
        """Insert events into the history; the database numbers them."""
        columns = [column for column in tables.events.c if column.name != "number"]
        return _insert(self._dialect, EVENTS, columns)

    @cached_property
    def insert_answers(self) -> Bulk:
        """Insert answers to requests."""
        return _insert(self._dialect, ANSWERS, tables.requests.c)

    @cached_property
    def find_answers(self) -> Select[Any]:
        """Select the answers to the requests of these ids."""
        return select(*ANSWERS.columns).where(tables.requests.c.id.in_(self._dialect.ids()))

    @cached_property
    def put_outgoing(self) -> Bulk:
        """Insert or overwrite callbacks in the outbox."""
        fields = tuple(OUTGOING.fields(tables.outgoing.c))
        return Bulk(self._dialect.replace(tables.outgoing, fields), fields)

    @cached_property
    def put_balances(self) -> Bulk:
        """Insert or overwrite balance samples."""
        fields = tuple(BALANCES.fields(tables.balances.c))
        return Bulk(self._dialect.replace(tables.balances, fields), fields)

    @cached_property
    def put_principals(self) -> Bulk:
        """Insert or overwrite principals."""
        fields = tuple(PRINCIPALS.fields(tables.principals.c))
        return Bulk(self._dialect.replace(tables.principals, fields), fields)

    @cached_property
    def delete_principals(self) -> Delete:
        """Delete the principals of these names."""
        return delete(tables.principals).where(tables.principals.c.name.in_(self._dialect.ids()))

    @cached_property
    def delete_outgoing(self) -> Delete:
        """Delete the callbacks of these ids."""
        return delete(tables.outgoing).where(tables.outgoing.c.id.in_(self._dialect.ids()))

    @cached_property
    def known_reservations(self) -> Select[Any]:
        """Lock and select those of these ids that exist, in order, so that none is pruned before the
        transaction ends.
        """
        table = tables.reservations.c
        return select(table.id).where(table.id.in_(self._dialect.ids())).order_by(table.id).with_for_update()


class RowStatements:
    """The statements for one kind of rows: slots, reservations, holds or accounts."""

    def __init__(self, dialect: Dialect, shape: Shape[Any]) -> None:
        self._dialect, self._shape, self._table = dialect, shape, shape.table
        self._id = self._table.c["id"]
        self._version = self._table.c["version"]
        self._marks = [self._table.c[name] for name in _MARKS[self._table.name]]

    @cached_property
    def insert(self) -> Bulk:
        """Insert rows of this kind."""
        columns = [column for column in self._table.c if not column.computed]
        return _insert(self._dialect, self._shape, columns)

    @cached_property
    def update(self) -> Bulk:
        """Write the rows, each over the row of its id whose version is one lower."""
        changing = [c for c in self._table.c if c is not self._id and not (c.computed or c.info.get("fixed"))]
        return self._update(changing, raised=1)

    @cached_property
    def mark(self) -> Bulk:
        """Write the time marks of the rows, each over the row of its id with the same version."""
        return self._update(self._marks, raised=0)

    @cached_property
    def load(self) -> Select[Any]:
        """Lock and select the rows of these ids in the order of their ids."""
        found = select(*self._shape.columns).where(self._id.in_(self._dialect.ids()))
        return found.order_by(self._id).with_for_update()

    @cached_property
    def find(self) -> Select[Any]:
        """Select the rows with these ids from the table of this kind of rows, without locking them."""
        return select(*self._shape.columns).where(self._id.in_(self._dialect.ids()))

    @cached_property
    def find_by_machine(self) -> Select[Any]:
        """Select the slots whose machine is one of `:ids`, without locking. No index: a fleet has few slots, and
        notices are rare.
        """
        return select(*self._shape.columns).where(self._table.c.instance_id.in_(self._dialect.ids()))

    @cached_property
    def delete(self) -> Bulk:
        """Delete the rows with these ids and versions."""
        fields = tuple(self._shape.fields([self._id, self._version]))
        given = self._dialect.given(fields)
        same = tuple_(self._id, self._version).in_(select(given.c.id, given.c.version))
        return Bulk(delete(self._table).where(same), fields)

    @cached_property
    def forget(self) -> Delete:
        """Delete the rows of these ids, whatever their versions."""
        return delete(self._table).where(self._id.in_(self._dialect.ids()))

    def _update(self, columns: Sequence[Column[Any]], raised: int) -> Bulk:
        named = {column.name: column for column in (*columns, self._id, self._version)}
        fields = tuple(self._shape.fields(named.values()))
        given = self._dialect.given(fields)
        values = {column.name: given.c[column.name] for column in columns}
        same_row = self._id == given.c.id
        same_version = self._version == given.c.version - raised  # promise: version-checked
        return Bulk(update(self._table).values(values).where(same_row, same_version), fields)


class LeaseStatements:
    """The statements for leases, which are written with their reservation, and found by it or by their slot."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect, self._shape, self._table = dialect, LEASES, tables.leases

    @cached_property
    def insert(self) -> Bulk:
        """Insert leases, given as StoredLeases."""
        return _insert(self._dialect, self._shape, self._table.c)

    @cached_property
    def update(self) -> Bulk:
        """Write the rows (StoredLeases) over the leases of the same reservation and component; positions stay."""
        table = self._table.c
        key = [table.reservation, table.component]
        changing = [column for column in table if column is not table.position]
        fields = tuple(self._shape.fields(changing))
        given = self._dialect.given(fields)
        values = {column.name: given.c[column.name] for column in changing if column not in set(key)}
        return Bulk(update(self._table).values(values).where(*(each == given.c[each.name] for each in key)), fields)

    @cached_property
    def delete(self) -> Bulk:
        """Delete the leases of the same reservations and components as the rows (StoredLeases)."""
        key = [self._table.c.reservation, self._table.c.component]
        fields = tuple(self._shape.fields(key))
        given = self._dialect.given(fields)
        same = tuple_(*key).in_(select(*(given.c[each.name] for each in key)))
        return Bulk(delete(self._table).where(same), fields)

    @cached_property
    def confirm(self) -> Bulk:
        """Write `confirmed_at` of the rows (StoredLeases) over the leases of the same component and token."""
        table = self._table.c
        key = [table.reservation, table.component, table.token]
        fields = tuple(self._shape.fields([*key, table.confirmed_at]))
        given = self._dialect.given(fields)
        same = [column == given.c[column.name] for column in key]
        return Bulk(update(self._table).values(confirmed_at=given.c.confirmed_at).where(*same), fields)

    @cached_property
    def forget(self) -> Delete:
        """Delete all leases of the reservations of these ids."""
        return delete(self._table).where(self._table.c.reservation.in_(self._dialect.ids()))

    @cached_property
    def load(self) -> Select[Any]:
        """Select (lease's columns..., position, reservation) of the reservations of these ids, in the
        order of leases.
        """
        table = self._table.c
        found = select(*LEASES.columns, table.position, table.reservation).where(
            table.reservation.in_(self._dialect.ids())
        )
        return found.order_by(table.reservation, table.position)

    @cached_property
    def on_slots(self) -> Select[Any]:
        """Select (lease's columns..., reservation) of every lease on the slots of these ids."""
        table = self._table.c
        found = select(*LEASES.columns, table.reservation).where(table.slot.in_(self._dialect.ids()))
        return found.order_by(table.reservation, table.position)


def _insert(dialect: Dialect, shape: Shape[Any], columns: Iterable[Column[Any]]) -> Bulk:
    fields: tuple[Field, ...] = tuple(shape.fields(columns))
    given = select(dialect.given(fields))
    statement = insert(shape.table).from_select([column for column, _ in fields], given, include_defaults=False)
    return Bulk(statement, fields)
