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
    """A statement that takes many structs at once, and the fields that it takes of each (the argument
    of `Dialect.given`).
    """

    statement: Executable
    fields: tuple[Field, ...]


class Dialect(Protocol):
    """What each kind of database implements. Bulk statements bind all their rows at once, whatever their number."""

    @property
    def longest_seconds(self) -> float:
        """Return the most seconds after its begin, the time in its rows, at which a transaction may
        still be committed.
        """

    def create_engine(self) -> Engine:
        """Return a new engine for this process. It connects on first use."""

    def options(self, *, writes: bool) -> Mapping[str, Any]:
        """Return the execution options of a connection for one transaction.

        A transaction that only reads sees one state of the database, from its first statement on. One that writes
        waits for the rows that other transactions have locked.
        """

    def given(self, fields: Sequence[Field]) -> FromClause:
        """Return the structs that `bind_rows` binds, as a table with these columns in their order. Nested values are
        JSON text.
        """

    def bind_rows(self, fields: Sequence[Field], rows: Sequence[msgspec.Struct]) -> dict[str, object]:
        """Return the values to bind in a statement that was built on `given(fields)`."""

    def ids(self) -> Select[tuple[str]]:
        """Return the texts that `bind_ids` binds, as a select with one row each, for `IN`."""

    def bind_ids(self, ids: Sequence[str]) -> dict[str, object]:
        """Return the values to bind in a statement that was built on `ids()`."""

    def replace(self, table: Table, fields: Sequence[Field]) -> Insert:
        """Return a statement that inserts the given rows (no key twice) and overwrites rows with the
        same primary key.
        """

    def prepare_clock(self, engine: Engine) -> None:
        """Store the base of cluster time if there is no valid one. Called before each session.

        Raises SQLAlchemyError or StoreUnavailableError if that fails; the session then continues without.
        """

    def read_cluster(self, connection: Connection) -> ClusterRow:
        """Return cluster time and the other values of the cluster row, by one statement."""

    def queue_for_events(self, connection: Connection) -> None:
        """Wait until no other transaction that has numbered events is open, so that numbers are committed in order.

        A transaction waits for nothing after this.
        """

    def queue_for_migration(self, connection: Connection) -> None:
        """Wait until no other transaction migrates."""

    def check_text(self, connection: Connection) -> None:
        """Raise StoreUnavailableError if the database cannot store every text."""

    def explain(self, error: SQLAlchemyError) -> Exception:
        """Return the port's error for the driver's: a message of one line, without a password."""
