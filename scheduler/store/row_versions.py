"""Reads the versions of rows from an SQL database, to compare a view with it."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from sqlalchemy import BigInteger, Boolean, Column, Float, Select, Table, and_, bindparam, cast, func, not_, or_, select
from sqlalchemy import type_coerce as coerce

from scheduler.model.recent_writes import RecentWrites
from scheduler.model.transitions import ENDED, PHASES
from scheduler.model.view import Kind
from scheduler.ports import RowVersion
from scheduler.store import tables
from scheduler.store.dialect import Dialect
from scheduler.store.session import Session, cut
from scheduler.store.shapes import Record

_RESERVATION = tables.reservations.c
NOT_OVER: Final = or_(
    _RESERVATION.phase.in_([phase for phase in PHASES if phase not in ENDED]),
    # The same condition as is_over(): a failed reservation may be restarted.
    and_(_RESERVATION.phase == "failed", _RESERVATION.restart_policy == "on_failure"),
)
"""The SQL condition that a reservation is not over: it has not ended, or it has failed and may be restarted."""
_TABLES: Final[Mapping[Kind, Table]] = {
    "slots": tables.slots,
    "holds": tables.holds,
    "accounts": tables.accounts,
    "reservations": tables.reservations,
}
_STAMPS: Final[Mapping[Kind, Select[Any]]] = {
    kind: select(table.c.id, table.c.version, table.c.marked_at) for kind, table in _TABLES.items()
}
_OF_LIVE: Final = {**_STAMPS, "reservations": _STAMPS["reservations"].where(NOT_OVER)}
_OF_ALL: Final = {
    **_STAMPS,
    "reservations": _STAMPS["reservations"].add_columns(coerce(not_(NOT_OVER), Boolean)),
}
_SINCE: Final = bindparam("since", type_=Float)
_ALL_SINCE: Final = {kind: _OF_ALL[kind].where(table.c.marked_at >= _SINCE) for kind, table in _TABLES.items()}


class RowVersions:
    """Reads the versions of rows in the database of one dialect."""

    def __init__(self, dialect: Dialect) -> None:
        self._groups = {
            kind: select(
                table.c.marked_at, cast(func.sum(table.c.version), BigInteger), dialect.gather(_key_of(kind, table))
            )
            .where(table.c.marked_at >= _SINCE)
            .group_by(table.c.marked_at)
            for kind, table in _TABLES.items()
        }

    def read_live(self, session: Session) -> Iterator[RowVersion]:
        """Yield the version of every slot, launch back-off (hold) and account, and of every reservation that has not
        ended.
        """
        for kind, statement in _OF_LIVE.items():
            for chunk in session.stream(statement):
                for row in chunk:
                    yield RowVersion(kind, *row)

    def read_since(self, session: Session, since: float, known: RecentWrites | None) -> Iterator[RowVersion]:
        """Yield the versions of all rows that were written at or after `since`. Rows of one kind with the same time of
        writing (`marked_at`) form a group; a group is omitted if `known` has all its rows in their present versions.

        `known`: the rows that a view has applied lately; None: no group is omitted.
        """
        for kind, statement in _ALL_SINCE.items():
            rows = (
                session.fetch(statement, since=since)
                if known is None
                else self._fetch_unknown(session, kind, since, known)
            )
            for name, version, marked_at, *over in rows:
                yield RowVersion(kind, name, version, marked_at, any(over))

    def _fetch_unknown(self, session: Session, kind: Kind, since: float, known: RecentWrites) -> Iterator[Record]:
        decode = msgspec.json.decode
        unknown = [
            mark
            for mark, versions, keys in session.fetch(self._groups[kind], since=since)
            if not known.has_all(kind, mark, decode(keys), versions)
        ]
        for marks in cut(unknown):
            yield from session.fetch(_OF_ALL[kind].where(_TABLES[kind].c.marked_at.in_(marks)))


def _key_of(kind: Kind, table: Table) -> Column[Any]:
    """Return the column with the key of a row in `RecentWrites`: `sequence` for reservations, `id` otherwise. SQLite
    finds the values of these columns in an index, so it reads no row.
    """
    return table.c.sequence if kind == "reservations" else table.c.id
