"""A session: one database connection in one transaction. It executes statements for limited numbers of rows, and
converts driver errors into errors of the Store port.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from types import TracebackType
from typing import Final, TypeVar

import msgspec
from sqlalchemy import Engine, Executable

from scheduler.ports import ClusterRow, StoreUnavailableError
from scheduler.store.dialect import Bulk, Dialect, SchemaError, StatementResult, StoreConnection, find_schema_fault
from scheduler.store.shapes import Record

CHUNK_ROWS: Final = 1000
"""The most rows in one SQL statement. More rows would make its values large; fewer rows would make the cost per row
high.
"""

_COUNTED: Final = {"preserve_rowcount": True}
"""Execution option without which psycopg does not report the number of inserted rows."""

Item = TypeVar("Item")


class explaining:  # noqa: N801 - used like a function
    """A context manager that converts driver errors within its block into errors of the Store port. If the tables do
    not fit this program, the message states whether they are older or newer than the program.

    Speed: a class and not a generator, because a session enters it for each statement.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self.failure: Exception | None = None
        """The last exception that left a `with` block of this object; None: there was none. If the exception was an
        error of the database driver, this is the error of the Store port into which it was converted.
        """

    def __enter__(self) -> None:
        """Begin the block. Nothing is done here, because `__exit__` converts the errors."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """If the block raised an error of the database driver, convert it into an error of the Store port and raise
        this one. Other errors are passed on.
        """
        if isinstance(error, Exception):
            is_of_driver = isinstance(error, self._dialect.errors)
            self.failure = _explain(self._dialect, error) if is_of_driver else error
            if is_of_driver:
                raise self.failure from error


class Session:
    """One database connection in one transaction, on which the store executes its statements."""

    def __init__(self, connection: StoreConnection, dialect: Dialect) -> None:
        self._connection, self.dialect = connection, dialect
        self._explaining = explaining(dialect)

    def check_whole(self) -> None:
        """If a statement of this transaction has failed, raise its error again, even if the caller has caught it.
        Called before a commit.

        After an error the database may have rolled the transaction back, and a commit would not report this.
        """
        if self._explaining.failure is not None:
            raise self._explaining.failure

    def read_cluster(self) -> ClusterRow:
        """Return the row about the cluster with cluster time, by one statement."""
        with self._explaining:
            return self.dialect.read_cluster(self._connection)

    def queue_for_events(self) -> None:
        """Wait until no other open transaction has numbered events, so that event numbers are committed in ascending
        order. See Dialect.
        """
        with self._explaining:
            self.dialect.queue_for_events(self._connection)

    def fetch(self, statement: Executable, **values: object) -> Sequence[Record]:
        """Execute a statement with these bind values and return all rows of its result."""
        with self._explaining:
            return self._connection.execute(statement, values).fetchall()

    def fetch_for(self, statement: Executable, ids: Iterable[str]) -> Iterator[Record]:
        """Execute `statement` with at most CHUNK_ROWS of the `ids` at a time, in sorted order. Yield all rows of the
        results.
        """
        for chunk in cut(sorted(set(ids))):
            yield from self.fetch(statement, **self.dialect.bind_ids(chunk))

    def stream(self, statement: Executable, **values: object) -> Iterator[Sequence[Record]]:
        """Execute a statement and yield the rows of its result in lists of at most CHUNK_ROWS. The whole result is
        never in memory.
        """
        with self._explaining:
            result = self._connection.execute(statement, values, execution_options={"yield_per": CHUNK_ROWS})
            while chunk := result.fetchmany(CHUNK_ROWS):
                yield chunk

    def change(self, statement: Executable, **values: object) -> int:
        """Execute a statement that writes, with these bind values. Return the number of changed rows."""
        with self._explaining:
            return self._connection.execute(statement, values, execution_options=_COUNTED).rowcount

    def change_for(self, statement: Executable, ids: Iterable[str]) -> int:
        """Execute a statement that writes, with at most CHUNK_ROWS of the `ids` at a time. Return the number of changed
        rows.
        """
        return sum(self.change(statement, **self.dialect.bind_ids(chunk)) for chunk in cut(sorted(set(ids))))

    def fetch_later(self, statement: Executable, **values: object) -> StatementResult:
        """Execute a statement together with a later one, or when its rows are asked for. See StoreConnection."""
        with self._explaining:
            return self._connection.execute_later(statement, values)

    def fetch_both_for(
        self, first: Executable, second: Executable, ids: Iterable[str]
    ) -> tuple[list[Record], list[Record]]:
        """Execute both statements, one after the other, with at most CHUNK_ROWS of the `ids` at a time, in sorted
        order. Return all rows of both.
        """
        found: list[Record] = []
        others: list[Record] = []
        for chunk in cut(sorted(set(ids))):
            values = self.dialect.bind_ids(chunk)
            result, other = self.fetch_later(first, **values), self.fetch_later(second, **values)
            with self._explaining:
                found += result.fetchall()
                others += other.fetchall()
        return found, others

    def settle(self) -> None:
        """Execute the statements that wait, and raise the first error."""
        with self._explaining:
            self._connection.settle()

    def write_later(self, bulk: Bulk, rows: Sequence[msgspec.Struct]) -> list[StatementResult]:
        """Execute a bulk statement with at most CHUNK_ROWS of the `rows` at a time, together with later statements.
        Return the results. See StoreConnection.
        """
        bound = (self.dialect.bind_rows(bulk, chunk) for chunk in cut(rows))
        return [self.fetch_later(bulk.statement(shared), **values) for shared, values in bound]

    def write(self, bulk: Bulk, rows: Sequence[msgspec.Struct]) -> int:
        """Execute a bulk statement with at most CHUNK_ROWS of the `rows` at a time. Return the number of
        changed rows.
        """
        changed = 0
        for chunk in cut(rows):
            shared, values = self.dialect.bind_rows(bulk, chunk)
            changed += self.change(bulk.statement(shared), **values)
        return changed


@contextmanager
def open_session(engine: Engine, dialect: Dialect, *, writes: bool) -> Iterator[Session]:
    """Open a session: a connection with a transaction of its own. The transaction is committed when the block ends
    without an error, else rolled back.
    """
    # Ignore an error here: a session that needs cluster time fails when it reads the clock. Other sessions do not.
    with suppress(StoreUnavailableError, *dialect.errors):
        dialect.prepare_clock(engine)
    with explaining(dialect):
        connection = dialect.begin(engine, writes=writes)
    try:
        try:
            session = Session(connection, dialect)
            yield session
            session.check_whole()
        except BaseException:
            # The connection may be lost. The caller needs the error of the block, not that of the rollback.
            with suppress(*dialect.errors):
                connection.rollback()
            raise
        with explaining(dialect):
            _commit(connection, dialect)
    finally:
        with suppress(*dialect.errors):
            connection.close()


def _commit(connection: StoreConnection, dialect: Dialect) -> None:
    """Commit the transaction. If this fails, close the connection, because its transaction may still be open."""
    try:
        connection.commit()
    except dialect.errors:
        connection.invalidate()
        raise


def _explain(dialect: Dialect, error: Exception) -> Exception:
    """Return the error of the Store port that stands for this driver error."""
    explained = dialect.explain(error)
    fault = find_schema_fault(dialect) if isinstance(explained, SchemaError) else None
    return SchemaError(f"{explained}: {fault}") if fault else explained


def cut(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Yield the items in lists of at most CHUNK_ROWS items, as many as one statement takes."""
    walk = iter(items)
    while chunk := list(islice(walk, CHUNK_ROWS)):
        yield chunk
