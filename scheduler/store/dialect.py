"""The seam between the SQL store and one kind of database: all they say differently."""

from collections.abc import Sequence
from typing import Any, Protocol

from sqlalchemy import Column, Connection, Engine, FromClause, Insert, Select, Table
from sqlalchemy.exc import SQLAlchemyError

Field = tuple[Column[Any], tuple[int | str, ...]]
"""A column and the way to its value in an item of `:rows`: a position, then keys of nested objects."""


class Dialect(Protocol):
    """What a database has to bring. Bulk statements bind all their rows as one JSON text, `:rows`."""

    def create_engine(self) -> Engine:
        """A new engine for this process; connects on first use.

        A connection with the execution option `writes` begins its transaction with the right to write.
        """

    def given(self, fields: Sequence[Field]) -> FromClause:
        """The items of the JSON array `:rows` as a table with these columns, in the array's order.

        Each item is an array itself; nested values come out of it as JSON text.
        """

    def ids(self) -> Select[tuple[str]]:
        """The texts of the JSON array `:ids`, one a row: what `IN` is asked for."""

    def replace(self, table: Table, fields: Sequence[Field]) -> Insert:
        """Insert `:rows`; a row whose primary key is there is overwritten."""

    def read_clock(self, connection: Connection) -> float:
        """The time by which this store lives, in seconds since the epoch."""

    def explain(self, error: SQLAlchemyError) -> Exception:
        """The port's error for the driver's, with one line for people."""
