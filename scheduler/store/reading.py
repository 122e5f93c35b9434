"""Functions that read from an SQL database, both inside and outside transactions that write."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import BigInteger, Boolean, Column, Float, Select, Table, and_, bindparam, cast, func, not_, or_, select
from sqlalchemy import type_coerce as coerce

from scheduler.model.reservations import Lease, Reservation
from scheduler.model.rules import Rules, read_rules, with_images
from scheduler.model.transitions import ENDED, PHASES
from scheduler.model.view import Kind, RecentWrites
from scheduler.ports import (
    RowVersion,
    StoredPrincipal,
    StoredRules,
)
from scheduler.store import tables
from scheduler.store.dialect import Dialect
from scheduler.store.session import Session, cut
from scheduler.store.shapes import LEASES, PRINCIPALS, RESERVATIONS, Record
from scheduler.store.statements import Statements

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
    "run_times": tables.run_times,
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
        """Yield the version of every slot, launch back-off (hold), account and row of run times, and of every
        reservation that has not ended.
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
        unknown = [
            mark
            for mark, versions, keys in session.fetch(self._groups[kind], since=since)
            if not known.has_all(kind, mark, msgspec.json.decode(keys), versions)
        ]
        for marks in cut(unknown):
            yield from session.fetch(_OF_ALL[kind].where(_TABLES[kind].c.marked_at.in_(marks)))


def _key_of(kind: Kind, table: Table) -> Column[Any]:
    """Return the column with the key of a row in `RecentWrites`: `sequence` for reservations, `id` otherwise. SQLite
    finds the values of these columns in an index, so it reads no row.
    """
    return table.c.sequence if kind == "reservations" else table.c.id


MARKET: Final = "market"
"""Name of the counter with the version of the market."""
NO_RULES = StoredRules(version=0, document={}, rules=Rules())

_PRINCIPALS = select(*PRINCIPALS.columns).order_by(tables.principals.c.name)
_RULES_ROW = tables.rules.c
_RULES = select(_RULES_ROW.version, _RULES_ROW.document, _RULES_ROW.images).order_by(_RULES_ROW.version.desc()).limit(1)
_RULES_VERSION = select(func.coalesce(func.max(_RULES_ROW.version), 0))
_ID = RESERVATIONS.place("id")


def read_rules_version(session: Session) -> int:
    """Return the version of the scheduling rules in force; 0 if no rules were ever applied."""
    ((version,),) = session.fetch(_RULES_VERSION)
    return int(version)


def read_principals(session: Session) -> list[StoredPrincipal]:
    """Return every principal (sender of signed messages), sorted by name."""
    return PRINCIPALS.read_all(session.fetch(_PRINCIPALS))


def read_reservations(session: Session, statements: Statements, rows: Sequence[Record]) -> list[Reservation]:
    """Return a reservation with its leases for each of `rows`, in the same order. `rows` are the result of a query for
    `RESERVATIONS.columns`.
    """
    return join_leases(rows, [*session.fetch_for(statements.leases.load, (row[_ID] for row in rows))], {})


def join_leases(rows: Sequence[Record], found: Sequence[Record], last: dict[str, int]) -> list[Reservation]:
    """Return a reservation with its leases for each of `rows`, in the same order. `found`: the rows of their leases.
    `last`: a dict to which the function adds, for each reservation with leases, its id -> the position of its last
    lease.
    """
    leases: dict[str, list[Lease]] = {}
    for lease, (*_, position, owner) in zip(LEASES.read_all(found), found, strict=True):
        leases.setdefault(owner, []).append(lease)
        last[owner] = position
    return RESERVATIONS.read_all(rows, leases=[tuple(leases.get(row[_ID], ())) for row in rows])


def read_images(text: str | None) -> dict[str, str]:
    """Return the ids of images by source (source -> id) from the text of the column `images`; {} for NULL, which older
    versions have written.
    """
    return msgspec.json.decode(text, type=dict[str, str]) if text else {}


class RulesReader:
    """Reads the scheduling rules in force. A document is parsed only if its text differs from the text that was read
    last.
    """

    def __init__(self) -> None:
        self._last = (("", ""), NO_RULES)

    def load(self, session: Session) -> StoredRules:
        """Return the scheduling rules in force.

        Texts are compared, and not only versions, because after a rolled back transaction the same version may have
        another text.
        """
        for version, text, found in session.fetch(_RULES):
            known_texts, known = self._last
            if (version, (text, found)) != (known.version, known_texts):
                document, images = msgspec.json.decode(text), read_images(found)
                known = StoredRules(version, document, with_images(read_rules(document), images), images)
                self._last = ((text, found), known)
            return known
        return NO_RULES
