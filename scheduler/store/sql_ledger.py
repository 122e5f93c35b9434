"""The cost ledger in SQL: the writes of a transaction, and the reads of a store."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Column, ColumnElement, Executable, Select, bindparam, case, delete, select
from typing_extensions import override

from scheduler.model.costs import BookedMachine, Cost, add_costs
from scheduler.ports.ledger import CostWriter
from scheduler.store.dialect import Bulk, Dialect
from scheduler.store.session import Session, cut
from scheduler.store.shapes import Shape
from scheduler.store.tables import booked_machines, costs

COSTS: Final = Shape(costs, Cost)
_BOOKED: Final = Shape(booked_machines, BookedMachine)
SINCE: Final[Select[Any]] = select(*COSTS.columns).where(costs.c.hour >= bindparam("since"))
"""The SQL query for the costs of the hours that begin at or after the parameter `since`."""


def prune_costs(before: float) -> Executable:
    """Return the statement that deletes the costs of hours that began before `before`."""
    return delete(costs).where(costs.c.hour < before)


def prune_booked_machines(before: float) -> Executable:
    """Return the statement that deletes the rows of the table `booked_machines` whose `until` is before `before`. A row
    is about a machine without a slot; `until` is the time until which the costs of the machine are booked.
    """
    return delete(booked_machines).where(booked_machines.c.until < before)


class LedgerStatements:
    """The bulk statements of the cost ledger for one dialect."""

    def __init__(self, dialect: Dialect) -> None:
        fields = tuple(COSTS.fields(costs.c))
        self.add = Bulk(dialect, fields, lambda given: dialect.upsert(costs, given, _accumulate))
        """The statement that adds costs to the rows of the ledger with the same keys; it inserts a row for a new key.
        """
        booked = tuple(_BOOKED.fields(booked_machines.c))
        begins = booked_machines.c.machine, booked_machines.c.since
        self.advance = Bulk(
            dialect, booked, lambda given: dialect.upsert(booked_machines, given, _advance).returning(*begins)
        )
        """The statement that stores a new booked interval for each given machine. The interval begins where the
        machine's last one ended, and ends at the given time. The result of the statement has the begins of the new
        intervals.
        """


def _accumulate(column: Column[Any], given: ColumnElement[Any]) -> ColumnElement[Any]:
    return column + given


def _advance(column: Column[Any], given: ColumnElement[Any]) -> ColumnElement[Any]:
    until = booked_machines.c.until
    return until if column is booked_machines.c.since else case((given > until, given), else_=until)


class SqlLedgerWrites(CostWriter):
    """The part of a SqlTransaction that writes into the cost ledger. See CostWriter."""

    _session: Session
    _ledger: LedgerStatements
    _now: float
    _costs: list[Cost]

    @override
    def book(self, costs: Sequence[Cost]) -> None:
        """Add these costs to the rows of the cost ledger that have the same key, at the end of the transaction. See
        CostWriter.
        """
        self._costs += costs

    @override
    def take_unbooked(self, born: Mapping[str, float]) -> dict[str, float]:
        rows = [BookedMachine(name, born[name], max(born[name], self._now)) for name in sorted(born)]
        bulk, bind = self._ledger.advance, self._session.dialect.bind_rows
        found: dict[str, float] = {}
        for chunk in cut(rows):
            shared, values = bind(bulk, chunk)
            found |= dict(self._session.fetch(bulk.statement(shared), **values))
        return found

    def _write_costs(self) -> None:
        if self._costs:
            # All transactions lock these rows in the order of their keys, and only for the time of the commit.
            self._session.write(self._ledger.add, add_costs(self._costs))
