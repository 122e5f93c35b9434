"""Deletes old rows in batches, each in a short transaction, so that other transactions never wait long."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from sqlalchemy import Table, bindparam, delete, select, tuple_

from scheduler.store import tables
from scheduler.store.session import CHUNK_ROWS, Session
from scheduler.store.statements import Statements

BITE_ROWS: Final = 10 * CHUNK_ROWS
"""Rows in one transaction, for small rows."""

Sessions = Callable[[], AbstractContextManager[Session]]

_ENDED = (
    select(tables.reservations.c.id)
    .where(tables.reservations.c.ended_at < bindparam("before"))
    .order_by(tables.reservations.c.ended_at)
    .limit(CHUNK_ROWS)
    # Other transactions lock in the order of ids. Rows that they have locked are left to the next run.
    .with_for_update(skip_locked=True)
)


def prune_before(sessions: Sessions, table: Table, before: float) -> int:
    """Delete the rows of a table whose `at` is before that time. Return their number."""
    key = tuple(table.primary_key.columns)
    bite = select(*key).where(table.c.at < bindparam("before")).order_by(table.c.at).limit(BITE_ROWS)
    bite = bite.with_for_update(skip_locked=True)
    statement = delete(table).where(tuple_(*key).in_(bite))
    total = 0
    while True:
        with sessions() as session:
            gone = session.change(statement, before=before)
        total += gone
        if gone < BITE_ROWS:
            return total


def prune_ended(sessions: Sessions, statements: Statements, before: float) -> int:
    """Delete the reservations that ended before that time, with any leases. Return their number."""
    total = 0
    while True:
        with sessions() as session:
            ids = [row.id for row in session.fetch(_ENDED, before=before)]
            session.change_for(statements.leases.forget, ids)
            total += session.change_for(statements.reservations.forget, ids)
        if len(ids) < CHUNK_ROWS:
            return total
