"""One connection in one transaction: bounded chunks of rows, and the driver's errors as ours."""

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
"""Rows a statement: enough to make the cost of a statement small, few enough to keep what it binds small."""

_COUNTED: Final = {"preserve_rowcount": True}
"""Else psycopg's cursor has forgotten how many rows were inserted when it is asked."""

Item = TypeVar("Item")


class Session:
    """What the store's reads and writes are said through. Single values are bound by name."""

    def __init__(self, connection: Connection, dialect: Dialect) -> None:
        self._connection, self._dialect = connection, dialect
        self._failure: Exception | None = None

    def check_whole(self) -> None:
        """Raise again what a statement failed with: a database may have given up the transaction, and a commit
        would not say so.
        """
        if self._failure is not None:
            raise self._failure

    def read_cluster(self) -> ClusterRow:
        """Cluster time and what else holds for the whole cluster, by one statement."""
        with self._explaining():
            return self._dialect.read_cluster(self._connection)

    def queue_for_events(self) -> None:
        """See Dialect."""
        with self._explaining():
            self._dialect.queue_for_events(self._connection)

    def fetch(self, statement: Executable, **values: object) -> Sequence[Record]:
        """All rows of the result."""
        with self._explaining():
            return self._connection.execute(statement, values).all()

    def fetch_for(self, statement: Executable, ids: Iterable[str]) -> Iterator[Record]:
        """All rows of a statement that takes ids, chunk by chunk, in the order of the ids."""
        for chunk in cut(sorted(set(ids))):
            yield from self.fetch(statement, **self._dialect.bind_ids(chunk))

    def stream(self, statement: Executable, **values: object) -> Iterator[Sequence[Record]]:
        """The result in chunks, without holding all of it."""
        with self._explaining():
            options = {"yield_per": CHUNK_ROWS}
            result = self._connection.execute(statement, values, execution_options=options)
            yield from result.partitions()

    def change(self, statement: Executable, **values: object) -> int:
        """Carry out a write; how many rows it changed."""
        with self._explaining():
            return self._connection.execute(statement, values, execution_options=_COUNTED).rowcount

    def change_for(self, statement: Executable, ids: Iterable[str]) -> int:
        """Carry out a write that takes ids, chunk by chunk; how many rows it changed."""
        return sum(self.change(statement, **self._dialect.bind_ids(chunk)) for chunk in cut(sorted(set(ids))))

    def write(self, bulk: Bulk, rows: Sequence[msgspec.Struct]) -> int:
        """Carry out a write of whole rows, chunk by chunk; how many rows it changed."""
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
    """A session in a transaction of its own: committed when the block ends well, else rolled back."""
    # An error here is not the session's: what it needs of the clock fails by itself, or it needs nothing.
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
            # The connection may be gone; what matters to the caller is why the block failed.
            with suppress(SQLAlchemyError):
                transaction.rollback()
            raise
        with explaining(dialect):
            _commit(connection, transaction)
    finally:
        with suppress(SQLAlchemyError):
            connection.close()


def _commit(connection: Connection, transaction: Transaction) -> None:
    """Commit; a connection that could not is thrown away, for its transaction may be open still."""
    try:
        transaction.commit()
    except SQLAlchemyError:
        connection.invalidate()
        raise


@contextmanager
def explaining(dialect: Dialect) -> Iterator[None]:
    """Within it, an error of the driver comes out as the port's. Where the tables are not this program's, the message
    says whether they are older or newer.
    """
    try:
        yield
    except SQLAlchemyError as error:
        explained = dialect.explain(error)
        fault = find_schema_fault(dialect) if isinstance(explained, SchemaError) else None
        raise (SchemaError(f"{explained}: {fault}") if fault else explained) from error


def cut(items: Iterable[Item]) -> Iterator[list[Item]]:
    """The items in lists of at most CHUNK_ROWS."""
    walk = iter(items)
    while chunk := list(islice(walk, CHUNK_ROWS)):
        yield chunk
