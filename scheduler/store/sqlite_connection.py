"""Connections to an SQLite file that pass SQLAlchemy's statements to the driver directly.

Speed: SQLAlchemy's own connection runs several times as much code for each transaction and each statement. After a
pause of some milliseconds, no cache of the processor contains that code any more. The code then takes four to seven
times as long as when it runs in a loop. Here SQLAlchemy only compiles each statement once. No value and no result needs
a conversion: the columns of this database are texts and numbers, and flags are read as numbers.
"""

import sqlite3
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, NamedTuple, cast
from weakref import WeakKeyDictionary

from sqlalchemy import ClauseElement, Engine, Executable
from sqlalchemy.sql.compiler import SQLCompiler

MOST_IDLE: Final = 5
"""The most connections without a transaction that a process keeps open for later transactions."""
_NONE: Final[Mapping[str, object]] = {}


class _Form(NamedTuple):
    """A compiled SQL statement as the driver takes it. `text`: the SQL; `names`: the names of its parameters in order;
    `own`: name -> value of the parameters whose values are a part of the statement.
    """

    text: str
    names: tuple[str, ...]
    own: Mapping[str, object]


class SqliteConnection:
    """One connection to an SQLite file, with at most one transaction at a time. It raises the errors of the driver
    (sqlite3).
    """

    def __init__(self, connections: "SqliteConnections", engine: Engine) -> None:
        """Open the connection. `connections`: the object that keeps the connection between two transactions."""
        self._connections = connections
        self._pooled = engine.raw_connection()
        self._driver = cast("sqlite3.Connection", self._pooled.dbapi_connection)

    def begin(self, *, writes: bool) -> None:
        """Begin a transaction. A transaction that will write (`writes`) takes the write lock at once, because SQLite
        refuses a write after a read if another transaction has written in between.
        """
        self._driver.execute("BEGIN IMMEDIATE" if writes else "BEGIN")

    def execute(
        self,
        statement: Executable,
        values: Mapping[str, object] = _NONE,
        *,
        execution_options: object = None,  # noqa: ARG002 - only SQLAlchemy's connections have options
    ) -> sqlite3.Cursor:
        """Execute a statement with these bind values (name -> value), and return its result."""
        form = self._connections.find_form(statement, values)
        given = {**form.own, **values}
        return self._driver.execute(form.text, [given[name] for name in form.names])

    def commit(self) -> None:
        """Commit the transaction."""
        self._driver.commit()

    def rollback(self) -> None:
        """Roll the transaction back, if SQLite has not done so."""
        self._driver.rollback()

    def invalidate(self) -> None:
        """Close the connection, even if its transaction is still open. The connection is not used again."""
        self._pooled.invalidate()

    def close(self) -> None:
        """Keep the connection for another transaction, or close it if it is not usable or enough are kept."""
        self._connections.keep(self)

    @property
    def is_usable(self) -> bool:
        """Whether the connection is open and has no transaction."""
        return self._pooled.is_valid and not self._driver.in_transaction

    def release(self) -> None:
        """Return the connection to the pool of the SQLAlchemy engine, which closes it when the engine is disposed."""
        self._pooled.close()


class SqliteConnections:
    """The idle connections of one SQLAlchemy engine, and the compiled statements that they have executed.

    Thread-safe.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._idle: list[SqliteConnection] = []
        self._forms: WeakKeyDictionary[Executable, _Form] = WeakKeyDictionary()

    def begin(self, *, writes: bool) -> SqliteConnection:
        """Return a connection with a new transaction."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = SqliteConnection(self, self._engine)
        try:
            connection.begin(writes=writes)
        except BaseException:
            connection.close()
            raise
        return connection

    def keep(self, connection: SqliteConnection) -> None:
        """Keep a connection open for another transaction; release it if it is not usable or enough are kept."""
        if len(self._idle) < MOST_IDLE and connection.is_usable:
            self._idle.append(connection)
        else:
            connection.release()

    def dispose(self) -> None:
        """Close all connections that have no transaction."""
        with suppress(IndexError):
            while True:
                self._idle.pop().release()

    def find_form(self, statement: Executable, values: Mapping[str, object]) -> _Form:
        """Return the compiled SQL of a statement, from a cache. `values`: the parameters, of which only the names
        matter. The cache is keyed by the statement alone, so a statement must always be executed with parameters of the
        same names.
        """
        form = self._forms.get(statement)
        if form is None:
            form = self._forms[statement] = self._make_form(statement, values)
        return form

    def _make_form(self, statement: Executable, values: Mapping[str, object]) -> _Form:
        element = cast("ClauseElement", statement)
        compiled = cast("SQLCompiler", element.compile(dialect=self._engine.dialect, column_keys=[*values]))
        # The lists of IN get a place for each of their values, which are a part of the statement.
        state = compiled.construct_expanded_state(dict(values))
        own = {name: value for name, value in state.parameters.items() if name not in values}
        return _Form(state.statement, tuple(state.positiontup or ()), own)
