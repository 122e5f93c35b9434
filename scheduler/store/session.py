"""A session: one connection in one transaction, statements in chunks of rows, and driver errors as
errors of the Store port.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Final, TypeVar

import msgspec
from sqlalchemy import Connection, Engine, Executable, Transaction
from sqlalchemy.exc import SQLAlchemyError

from scheduler.ports import ClusterRow, StoreUnavailableError
from scheduler.store.dialect import Bulk, Dialect
from scheduler.store.schema import SchemaError, find_schema_fault
from scheduler.store.shapes import Record

CHUNK_ROWS: Final = 1000
"""The most rows in one SQL statement: enough to make the cost of a statement small, few enough to limit the size of its
values.
"""

_COUNTED: Final = {"preserve_rowcount": True}
"""Without this option psycopg's cursor does not keep the number of inserted rows."""

Item = TypeVar("Item")


class Session:
    """Executes the statements of the store's reads and writes. Single values are bound by name."""

    def __init__(self, connection: Connection, dialect: Dialect) -> None:
        self._connection, self._dialect = connection, dialect
        self._failure: Exception | None = None

    def check_whole(self) -> None:
        """Called before a commit: raises the error of a failed statement of this transaction again, even if the caller
        has caught it. After an error the database may have rolled back, and a commit would not report that.
        """
        if self._failure is not None:
            raise self._failure

    def read_cluster(self) -> ClusterRow:
        """Return cluster time and the other values of the cluster row, by one statement."""
        with self._explaining():
            return self._dialect.read_cluster(self._connection)

    def queue_for_events(self) -> None:
        """Wait until no other transaction that has numbered events is open, so that event numbers are committed in
        ascending order.
        """
        with self._explaining():
            self._dialect.queue_for_events(self._connection)

    def fetch(self, statement: Executable, **values: object) -> Sequence[Record]:
        """Execute a statement and return all rows of its result."""
        with self._explaining():
            return self._connection.execute(statement, values).all()

    def fetch_for(self, statement: Executable, ids: Iterable[str]) -> Iterator[Record]:
        """Execute `statement` for at most CHUNK_ROWS of the sorted `ids` at a time; yield all rows of the results."""
        for chunk in cut(sorted(set(ids))):
            yield from self.fetch(statement, **self._dialect.bind_ids(chunk))

    def stream(self, statement: Executable, **values: object) -> Iterator[Sequence[Record]]:
        """Execute `statement`, and yield the rows in lists of at most CHUNK_ROWS rows, without loading the whole
        result.
        """
        with self._explaining():
            options = {"yield_per": CHUNK_ROWS}
            result = self._connection.execute(statement, values, execution_options=options)
            yield from result.partitions()

    def change(self, statement: Executable, **values: object) -> int:
        """Execute an SQL statement that writes. Return the number of changed rows."""
        with self._explaining():
            return self._connection.execute(statement, values, execution_options=_COUNTED).rowcount

    def change_for(self, statement: Executable, ids: Iterable[str]) -> int:
        """Execute an SQL statement that writes, for at most CHUNK_ROWS of the `ids` at a time. Return the number of
        changed rows.
        """
        return sum(self.change(statement, **self._dialect.bind_ids(chunk)) for chunk in cut(sorted(set(ids))))

    def write(self, bulk: Bulk, rows: Sequence[msgspec.Struct]) -> int:
        """Execute an SQL statement that writes whole rows, for at most CHUNK_ROWS of the `rows` at a time. Return the
        number of changed rows.
        """
        bind = self._dialect.bind_rows
        return sum(self.change(bulk.statement, **bind(bulk.fields, chunk)) for chunk in cut(rows))

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            with explaining(self._dialect):
                yield
        except Exception as error:
            self._failure = error
            raise


@contextmanager
def open_session(engine: Engine, dialect: Dialect, *, writes: bool) -> Iterator[Session]:
    """Open a session (a connection in a transaction of its own). The transaction is committed when the block ends
    without an error, else rolled back.
    """
    # Ignore an error here: a session that needs cluster time fails when it reads the clock. Other sessions do not.
    with suppress(SQLAlchemyError, StoreUnavailableError):
        dialect.prepare_clock(engine)
    with explaining(dialect):
        connection = engine.connect().execution_options(**dialect.options(writes=writes))
    try:
        with explaining(dialect):
            transaction = connection.begin()
        try:
            session = Session(connection, dialect)
            yield session
            session.check_whole()
        except BaseException:
            # The connection may be lost. The caller needs the error of the block, not that of the rollback.
            with suppress(SQLAlchemyError):
                transaction.rollback()
            raise
        with explaining(dialect):
            _commit(connection, transaction)
    finally:
        with suppress(SQLAlchemyError):
            connection.close()


def _commit(connection: Connection, transaction: Transaction) -> None:
    """Commit the transaction. If that fails, discard the connection, since its transaction may still be open."""
    try:
        transaction.commit()
    except SQLAlchemyError:
        connection.invalidate()
        raise


@contextmanager
def explaining(dialect: Dialect) -> Iterator[None]:
    """Turn driver errors within the block into errors of the Store port.

    If the tables do not fit this program, the message names whether the tables are older or newer than the program.
    """
    try:
        yield
    except SQLAlchemyError as error:
        explained = dialect.explain(error)
        fault = find_schema_fault(dialect) if isinstance(explained, SchemaError) else None
        raise (SchemaError(f"{explained}: {fault}") if fault else explained) from error


def cut(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Return the items in lists of at most CHUNK_ROWS items, the number of rows in one statement."""
    walk = iter(items)
    while chunk := list(islice(walk, CHUNK_ROWS)):
        yield chunk
