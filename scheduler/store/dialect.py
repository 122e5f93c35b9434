"""The seam between the SQL store and one kind of database: all they say differently."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from sqlalchemy import Column, Connection, Engine, Executable, FromClause, Insert, Select, Table
from sqlalchemy.exc import SQLAlchemyError

from scheduler.ports import ClusterRow

Field = tuple[Column[Any], tuple[int | str, ...]]
"""A column and the way to its value in a struct: the position of a field, then names of nested fields."""


@dataclass(frozen=True)
class Bulk:
    """A statement that takes many structs at once, and what it takes of each: what `Dialect.given` was built with."""

    statement: Executable
    fields: tuple[Field, ...]


class Dialect(Protocol):
    """What a database has to bring. Bulk statements bind all their rows at once, whatever their number."""

    @property
    def longest_seconds(self) -> float:
        """How long after its beginning, which its rows are marked with, a transaction may still be committed."""

    def create_engine(self) -> Engine:
        """A new engine for this process; connects on first use."""

    def options(self, *, writes: bool) -> Mapping[str, Any]:
        """The execution options of a connection for one transaction.

        One that only reads sees one picture of the database, from its first statement on; one that writes
        waits for the rows that others hold.
        """

    def given(self, fields: Sequence[Field]) -> FromClause:
        """The structs that `bind_rows` binds as a table with these columns, in their order; nested values as JSON
        text.
        """

    def bind_rows(self, fields: Sequence[Field], rows: Sequence[msgspec.Struct]) -> dict[str, object]:
        """The values to be bound in a statement that was built on `given(fields)`."""

    def ids(self) -> Select[tuple[str]]:
        """The texts that `bind_ids` binds, one a row: what `IN` is asked for."""

    def bind_ids(self, ids: Sequence[str]) -> dict[str, object]:
        """The values to be bound in a statement that was built on `ids()`."""

    def replace(self, table: Table, fields: Sequence[Field]) -> Insert:
        """Insert the rows given, no key twice; a row whose primary key is there is overwritten."""

    def prepare_clock(self, engine: Engine) -> None:
        """Called before each session: write down what cluster time is counted from where nothing valid is stored.

        Raises SQLAlchemyError or StoreUnavailableError where that fails; the session then goes without.
        """

    def read_cluster(self, connection: Connection) -> ClusterRow:
        """Cluster time and what else holds for the whole cluster, by one statement."""

    def queue_for_events(self, connection: Connection) -> None:
        """Wait until no other transaction that has numbered events is open: so numbers are committed in order.

        The last thing that a transaction waits for.
        """

    def queue_for_migration(self, connection: Connection) -> None:
        """Wait until no other transaction migrates."""

    def check_text(self, connection: Connection) -> None:
        """Raises StoreUnavailableError when there is text that the database could not keep."""

    def explain(self, error: SQLAlchemyError) -> Exception:
        """The port's error for the driver's, with one line for people, without a password."""
