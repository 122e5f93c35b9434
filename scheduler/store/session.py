"""One connection in one transaction: bounded chunks of rows, and the driver's errors as ours."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Final, TypeVar

import msgspec
from sqlalchemy import Connection, Engine, Executable, Transaction
from sqlalchemy.exc import SQLAlchemyError

from scheduler.store.dialect import Dialect
from scheduler.store.shapes import Record, encode_ids, encode_rows

CHUNK_ROWS: Final = 1000
"""Rows a statement: enough to make the cost of a statement small, few enough to keep its JSON small."""

Item = TypeVar("Item")


class Session:
    """What the store's reads and writes are said through. Single values are bound by name."""

    def __init__(self, connection: Connection, dialect: Dialect) -> None:
        self._connection, self._dialect = connection, dialect

    def read_clock(self) -> float:
        """The store's time."""
        with explaining(self._dialect):
            return self._dialect.read_clock(self._connection)

    def fetch(self, statement: Executable, **values: object) -> Sequence[Record]:
        """All rows of the result."""
        with explaining(self._dialect):
            return self._connection.execute(statement, values).all()

    def fetch_for(self, statement: Executable, ids: Iterable[str]) -> Iterator[Record]:
        """All rows of a statement that takes `:ids`, chunk by chunk, in the order of the ids."""
        for chunk in cut(sorted(set(ids))):
            yield from self.fetch(statement, ids=encode_ids(chunk))

    def stream(self, statement: Executable, **values: object) -> Iterator[Sequence[Record]]:
        """The result in chunks, without holding all of it."""
        with explaining(self._dialect):
            options = {"yield_per": CHUNK_ROWS}
            result = self._connection.execute(statement, values, execution_options=options)
            yield from result.partitions()

    def change(self, statement: Executable, **values: object) -> int:
        """Carry out a write; how many rows it changed."""
        with explaining(self._dialect):
            return self._connection.execute(statement, values).rowcount

    def change_for(self, statement: Executable, ids: Iterable[str]) -> int:
        """Carry out a write that takes `:ids`, chunk by chunk; how many rows it changed."""
        return sum(self.change(statement, ids=encode_ids(chunk)) for chunk in cut(sorted(set(ids))))

    def write(self, statement: Executable, rows: Sequence[msgspec.Struct]) -> int:
        """Carry out a write that takes `:rows`, chunk by chunk; how many rows it changed."""
        return sum(self.change(statement, rows=encode_rows(chunk)) for chunk in cut(rows))


@contextmanager
def open_session(engine: Engine, dialect: Dialect, *, writes: bool) -> Iterator[Session]:
    """A session in a transaction of its own: committed when the block ends well, else rolled back."""
    with explaining(dialect):
        connection = engine.connect().execution_options(writes=writes)
    try:
        with explaining(dialect):
            transaction = connection.begin()
        try:
            yield Session(connection, dialect)
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
    """Within it, an error of the driver comes out as the port's."""
    try:
        yield
    except SQLAlchemyError as error:
        raise dialect.explain(error) from error


def cut(items: Iterable[Item]) -> Iterator[list[Item]]:
    """The items in lists of at most CHUNK_ROWS."""
    walk = iter(items)
    while chunk := list(islice(walk, CHUNK_ROWS)):
        yield chunk
