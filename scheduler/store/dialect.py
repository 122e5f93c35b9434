"""The interface between the SQL store and one kind of database. It contains everything in which SQLite and PostgreSQL
differ.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from operator import attrgetter, is_
from typing import Any, Final, Protocol

import msgspec
from msgspec.structs import astuple
from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Engine,
    Executable,
    FromClause,
    Insert,
    Select,
    Table,
    inspect,
    text,
)
from sqlalchemy.exc import SQLAlchemyError

from scheduler.ports import ClusterRow, StandbyError, StoreUnavailableError
from scheduler.store.revisions import SELECT_REVISION, TABLE, judge_revision

Field = tuple[Column[Any], tuple[int | str, ...]]
"""A column of a table, and where its value is in a struct: the position of the struct's field, then the names of nested
fields.
"""


def take_columns(fields: Sequence[Field], rows: Sequence[msgspec.Struct]) -> list[Sequence[Any]]:
    """Return for each of `fields` the list of its values in `rows`, which are structs of one type. Return [] if there
    are no rows.
    """
    if not rows:
        return []
    whole = _split(rows)
    names, nested = rows[0].__struct_fields__, dict[tuple[int | str, ...], Mapping[str, Sequence[Any]]]()
    found = []
    for _, (position, *deeper) in fields:
        values = whole[names[int(position)]]
        path: tuple[int | str, ...] = (position,)
        for name in map(str, deeper):
            if path not in nested:
                nested[path] = _split(values)
            values, path = nested[path][name], (*path, name)
        found.append(values)
    return found


def _split(rows: Sequence[msgspec.Struct]) -> dict[str, Sequence[Any]]:
    """Return the values of each field of `rows`, which are structs of one type, by name of the field.

    Speed: to take all values of a struct at once takes a fifth of the time of taking them one by one.
    """
    names = rows[0].__struct_fields__
    if is_one(rows):
        return {name: (value,) * len(rows) for name, value in zip(names, astuple(rows[0]), strict=True)}
    return dict(zip(names, zip(*map(astuple, rows), strict=True), strict=True))


_PLAIN: Final = (str, int, float)
"""Types for which `are_alike` compares values by equality: equal values of such a type, except zeros, are stored as the
same value. Values of other types are compared by identity.
"""


def is_one(values: Sequence[object]) -> bool:
    return values[0] is values[-1] and all(map(is_, values, repeat(values[0])))


def are_alike(values: Sequence[object]) -> bool:
    """Return whether one bind parameter can stand for all these values of a column: they are equal texts, equal numbers
    other than zero, or the same object.

    Equality is not enough for zeros, because 0.0 and -0.0 are equal and stored differently. It is not enough for
    objects of other types either, because they may contain zeros.
    """
    first = values[0]
    if first is None or (type(first) in _PLAIN and first):
        return first == values[-1] and values.count(first) == len(values)
    return is_one(values)


Merge = Callable[[Column[Any], ColumnElement[Any]], ColumnElement[Any]]
"""A function that returns the new value of a column of an existing row. Its arguments are the column, which has the
present value, and the value of the given row.
"""


def overwrite(_: Column[Any], given: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return the value of the given row, so that it replaces the present value. This is a Merge."""
    return given


MOST_FORMS: Final = 50
"""The most variants of one bulk statement that a process keeps. Each variant passes the values of other fields once for
all rows (see `Bulk.statement`).
"""


@dataclass(frozen=True)
class Bulk:
    """An SQL statement that writes many structs at once. `fields`: the columns, and where their values are in a struct.
    `make`: a function that returns the statement. Its argument is the table expression that `Dialect.given` returns: a
    table with one row for each struct.
    """

    dialect: "Dialect"
    fields: tuple[Field, ...]
    make: Callable[[FromClause], Executable]
    _forms: dict[tuple[int, ...], Executable] = field(default_factory=dict)
    _readers: dict[type[msgspec.Struct], Callable[[msgspec.Struct], tuple[Any, ...]]] = field(default_factory=dict)

    def read(self, rows: Sequence[msgspec.Struct]) -> list[tuple[Any, ...]]:
        """Return for each row, a struct, the values of `fields`. The rows are structs of one type.

        Speed: for a few rows this takes less time than `take_columns`, which compares the values of many rows.
        """
        kind = type(rows[0])
        reader = self._readers.get(kind)
        if reader is None:
            names = kind.__struct_fields__
            paths = [".".join(map(str, (names[int(first)], *deeper))) for _, (first, *deeper) in self.fields]
            get = attrgetter(*paths)
            reader = self._readers[kind] = get if len(paths) > 1 else lambda row: (get(row),)
        return [*map(reader, rows)]

    def statement(self, shared: tuple[int, ...] = ()) -> Executable:
        """Return the variant of the statement in which the values of the fields `shared` (positions in `fields`) are
        passed once for all structs. `Dialect.bind_rows` returns `shared` and the parameters of the statement.
        """
        found = self._forms.get(shared)
        if found is None:
            if len(self._forms) >= MOST_FORMS:
                self._forms.clear()
            found = self._forms[shared] = self.make(self.dialect.given(self.fields, shared))
        return found


class StatementResult(Protocol):
    """The result of an SQL statement: the methods that the results of SQLAlchemy and of SQLite's driver have in common.
    A row of the result is a sequence of values.
    """

    @property
    def rowcount(self) -> int:
        """The number of rows that a statement changed."""

    def fetchone(self) -> Any:
        """Return the next row, or None after the last one."""

    def fetchmany(self, size: int) -> Sequence[Any]:
        """Return at most `size` further rows."""

    def fetchall(self) -> Sequence[Any]:
        """Return all further rows."""


class Executor(Protocol):
    """Executes statements in a transaction, as SQLAlchemy's Connection does."""

    def execute(
        self, statement: Executable, values: Any = ..., *, execution_options: Mapping[str, Any] = ...
    ) -> StatementResult:
        """Execute a statement with these bind values (name -> value), and return its result."""


class StoreConnection(Executor, Protocol):
    """A database connection in a transaction."""

    def execute_later(self, statement: Executable, values: Any = ...) -> StatementResult:
        """Do what `execute` does, but the statement may wait for the next one whose result is asked for, or for
        `settle`, so that both are sent together. Its error is raised then.
        """

    def settle(self) -> None:
        """Execute the statements that wait, and raise the first error."""

    def commit(self) -> None:
        """Commit the transaction."""

    def rollback(self) -> None:
        """Roll the transaction back."""

    def invalidate(self) -> None:
        """Close the connection, even if its transaction is still open. The connection is not used again."""

    def close(self) -> None:
        """End the use of the connection by the caller. The connection may stay open for another transaction."""


class Dialect(Protocol):
    """The operations that differ between kinds of databases. There is one implementation for SQLite and one for
    PostgreSQL.

    The number of bind parameters of a bulk statement does not grow with the number of its rows.
    """

    @property
    def longest_seconds(self) -> float:
        """The most seconds after the begin of a transaction at which it may still be committed. The rows that it writes
        carry the time of its begin; after a later commit, a search for recent changes would miss the rows.
        """

    @property
    def has_one_writer(self) -> bool:
        """Whether a transaction that writes ends before another one begins. Then the rows that such a transaction has
        read at its begin stay unchanged until its end.
        """

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """The errors that connections and statements raise, and that `explain` converts."""

    def create_engine(self) -> Engine:
        """Return a new SQLAlchemy engine for this process. It connects on first use."""

    def begin(self, engine: Engine, *, writes: bool) -> StoreConnection:
        """Return a connection of this engine with a new transaction."""

    def dispose(self, engine: Engine) -> None:
        """Close all connections of this engine that have no transaction."""

    def options(self, *, writes: bool) -> Mapping[str, Any]:
        """Return the SQLAlchemy execution options for a connection that is used for one transaction."""

    def given(self, fields: Sequence[Field], shared: Sequence[int] = ()) -> FromClause:
        """Return an SQL table expression with the columns of `fields` in this order. Its rows are the structs that are
        passed with `bind_rows`. Nested values are JSON text. `shared`: the positions of the fields whose value is
        passed once for all rows, as `bind_rows` returns them.
        """

    def bind_rows(self, bulk: Bulk, rows: Sequence[msgspec.Struct]) -> tuple[tuple[int, ...], dict[str, object]]:
        """Return (shared, parameters): the bind parameters with which `bulk.statement(shared)` writes `rows` (at least
        one struct). `shared`: positions in `bulk.fields` of values that all rows have in common and that are passed
        once.
        """

    def ids(self) -> Select[tuple[str]]:
        """Return an SQL select that yields the ids passed with `bind_ids`, one in each row, for use in `IN (...)`."""

    def bind_ids(self, ids: Sequence[str]) -> dict[str, object]:
        """Return the bind parameters that pass `ids` to a statement that was built with `ids()`."""

    def gather(self, column: Column[Any]) -> ColumnElement[str]:
        """Return an SQL aggregate: the JSON text of an array of all values of `column`, in any order."""

    def upsert(self, table: Table, given: FromClause, merge: Merge) -> Insert:
        """Return a statement that inserts the rows of `given` (a table expression) into `table`. If a row with the same
        primary key exists, each of its other columns gets the value that `merge` returns. No two of the given rows may
        have the same key.
        """

    def prepare_clock(self, engine: Engine) -> None:
        """Make sure that the database has a valid base from which cluster time is computed. Called before each session.

        Raises SQLAlchemyError or StoreUnavailableError if the base cannot be stored; the session then continues without
        one.
        """

    def read_cluster(self, connection: StoreConnection) -> ClusterRow:
        """Return the row about the cluster with cluster time, by one statement."""

    def queue_for_events(self, connection: StoreConnection) -> None:
        """Wait until no other open transaction has assigned numbers to events. So event numbers are committed in
        ascending order. The caller makes this call after all its other locks: afterwards its transaction must wait for
        no lock. The wait may begin with the next statement.
        """

    def prepare_migration(self, connection: Connection) -> None:
        """Check that the encoding of the database can store every text, and wait until no other process migrates the
        database. Raises StoreUnavailableError if the encoding cannot.
        """

    def check_primary(self, connection: Connection) -> None:
        """Check that the server is no standby, unless the URL asks for one. Raises StandbyError if it is one."""

    def check_direct(self, connection: Connection) -> None:
        """Check that a connection of the database's own programs would have a session of the server for itself. Raises
        StoreUnavailableError if a pooler is in between.
        """

    def explain(self, error: Exception) -> Exception:
        """Return the error of the Store port that stands for `error`, which is one of `errors`. The message is one line
        without passwords.
        """


# Compares the schema of a database with the schema that this program needs. It works without Alembic and is cheap, so
# it can run after every failed statement.


_REVISION: Final = text(SELECT_REVISION)


class SchemaError(StoreUnavailableError):
    """Raised when the tables of the database do not fit this program. The message states whether they are older or
    newer than the program, and what to do.
    """


def find_schema_fault(dialect: Dialect) -> str | None:
    """Return a text about why the tables of this dialect's database do not fit this program and what to do. Return None
    if they fit, or if the database cannot be reached. A standby fits no program, unless the URL asks for one.
    """
    engine = dialect.create_engine()
    try:
        with engine.connect().execution_options(**dialect.options(writes=False)) as connection, connection.begin():
            dialect.check_primary(connection)
            has_revision = inspect(connection).has_table(TABLE)
            return judge_revision(connection.execute(_REVISION).scalar() if has_revision else None)
    except StandbyError as error:
        return str(error)
    except SQLAlchemyError as error:
        explained = dialect.explain(error)
        return str(explained) if isinstance(explained, StandbyError) else None
    finally:
        engine.dispose()
