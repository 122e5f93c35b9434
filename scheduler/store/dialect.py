"""The interface between the SQL store and one kind of database: everything in which databases differ."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from sqlalchemy import Column, Connection, Engine, Executable, FromClause, Insert, Select, Table
from sqlalchemy.exc import SQLAlchemyError

from scheduler.ports import ClusterRow

Field = tuple[Column[Any], tuple[int | str, ...]]
"""A column and the path to its value in a struct: the position of a field, then names of nested fields."""


@dataclass(frozen=True)
class Bulk:
    """An SQL statement that takes many structs at once, and the fields that it takes of each (the argument of
    `Dialect.given`).
    """

    statement: Executable
    fields: tuple[Field, ...]


class Dialect(Protocol):
    """The operations in which kinds of databases differ, implemented once for SQLite and once for PostgreSQL. A bulk
    statement binds all its rows at once, whatever their number.
    """

    @property
    def longest_seconds(self) -> float:
        """Return how many seconds after its begin a transaction may still be committed. The rows that it writes carry
        the time of the begin.
        """

    def create_engine(self) -> Engine:
        """Return a new engine for this process. It connects on first use."""

    def options(self, *, writes: bool) -> Mapping[str, Any]:
        """Return the execution options (of SQLAlchemy) of a connection for one transaction."""

    def given(self, fields: Sequence[Field]) -> FromClause:
        """Return a table expression of SQL with these columns in this order, whose rows are the structs that
        `bind_rows` binds. Nested values are JSON text.
        """

    def bind_rows(self, fields: Sequence[Field], rows: Sequence[msgspec.Struct]) -> dict[str, object]:
        """Return the bind parameters that pass `rows` (structs) to a statement that was built on `given(fields)`."""

    def ids(self) -> Select[tuple[str]]:
        """Return an SQL select of the ids that `bind_ids` binds, with one row each, for use in `IN (...)`."""

    def bind_ids(self, ids: Sequence[str]) -> dict[str, object]:
        """Return the bind parameters that pass `ids` to a statement that was built on `ids()`."""

    def replace(self, table: Table, fields: Sequence[Field]) -> Insert:
        """Return a statement that inserts the rows of `given(fields)` into `table`, and overwrites rows with the same
        primary key. No key may occur twice.
        """

    def prepare_clock(self, engine: Engine) -> None:
        """Store a base of cluster time, from which later times are computed, if the database has no valid one. Called
        before each session.

        Raises SQLAlchemyError or StoreUnavailableError if the base cannot be stored; the session then continues without
        a new base.
        """

    def read_cluster(self, connection: Connection) -> ClusterRow:
        """Return cluster time and the other values of the cluster row, by one statement."""

    def queue_for_events(self, connection: Connection) -> None:
        """Wait until no other transaction that has numbered events is open, so that event numbers are committed in
        ascending order.

        This is the last lock for which a transaction waits.
        """

    def queue_for_migration(self, connection: Connection) -> None:
        """Wait until no other transaction migrates."""

    def check_text(self, connection: Connection) -> None:
        """Raises StoreUnavailableError if the encoding of the database cannot store every text."""

    def explain(self, error: SQLAlchemyError) -> Exception:
        """Return the error of the Store port for a driver's error, in one line and without a password."""
