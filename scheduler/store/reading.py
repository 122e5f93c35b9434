"""Reads of the SQL store that are used both inside and outside transactions."""

from collections.abc import Iterator, Sequence

import msgspec
from sqlalchemy import func, select

from scheduler.model.reservations import Lease, Reservation
from scheduler.model.rules import Rules, read_rules
from scheduler.ports import (
    LeaderTerm,
    StoredPrincipal,
    StoredRules,
    StoreUnavailableError,
)
from scheduler.store import tables
from scheduler.store.session import Session
from scheduler.store.shapes import LEASES, PRINCIPALS, RESERVATIONS, Record
from scheduler.store.statements import Statements

NO_RULES = StoredRules(version=0, document={}, rules=Rules())

_LEADER_TERM = select(tables.leader.c.term, tables.leader.c.holder, tables.leader.c.ticked_at)
_LEADER_TERM_LOCKED = _LEADER_TERM.with_for_update()
_PRINCIPALS = select(*PRINCIPALS.columns).order_by(tables.principals.c.name)
_RULES = select(tables.rules.c.version, tables.rules.c.document).order_by(tables.rules.c.version.desc()).limit(1)
_RULES_ROW = tables.rules.c
_RULES_VERSION = select(func.coalesce(func.max(_RULES_ROW.version), 0))
_ID = [column.name for column in RESERVATIONS.columns].index("id")


def read_rules_version(session: Session) -> int:
    """Return the newest version of the scheduling rules; 0 if no rules were ever applied."""
    ((version,),) = session.fetch(_RULES_VERSION)
    return int(version)


def load_leader_term(session: Session, *, lock: bool = False) -> LeaderTerm:
    """Return the term, holder and time of the last tick of the present leadership. `lock`: lock the row of the leader
    until the transaction ends.
    """
    for row in session.fetch(_LEADER_TERM_LOCKED if lock else _LEADER_TERM):
        return LeaderTerm(*row)
    raise StoreUnavailableError("the database has no row for the leader: run `leasehold migrate`")


def read_principals(session: Session) -> list[StoredPrincipal]:
    """Return every principal (a signing client), in the order of the names."""
    return PRINCIPALS.read_all(session.fetch(_PRINCIPALS))


def read_reservations(
    session: Session, statements: Statements, rows: Sequence[Record], last: dict[str, int] | None = None
) -> Iterator[Reservation]:
    """Yield the reservation of each of `rows` (a result with the columns `RESERVATIONS.columns`) with its leases, in
    the order of `rows`.

    `last` is filled with the position of the last lease of each reservation that has one, by reservation id.
    """
    leases: dict[str, list[Lease]] = {}
    for *values, position, owner in session.fetch_for(statements.leases.load, (row[_ID] for row in rows)):
        leases.setdefault(owner, []).append(LEASES.read(values))
        if last is not None:
            last[owner] = position
    for row in rows:
        yield RESERVATIONS.read(row, leases=tuple(leases.get(row[_ID], ())))


class RulesReader:
    """Reads the scheduling rules in force. A rules document is only parsed if it differs from the one read before."""

    def __init__(self) -> None:
        self._last = ("", NO_RULES)

    def load(self, session: Session) -> StoredRules:
        """Return the scheduling rules in force.

        The text of the rules is compared with the text read before, not only the version: after a rollback the same
        version may come with another text.
        """
        for version, text in session.fetch(_RULES):
            known_text, known = self._last
            if (version, text) != (known.version, known_text):
                document = msgspec.json.decode(text)
                known = StoredRules(version, document, read_rules(document))
                self._last = (text, known)
            return known
        return NO_RULES
