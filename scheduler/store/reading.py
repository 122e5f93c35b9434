"""Functions that read from an SQL database, both inside and outside transactions that write."""

from collections.abc import Sequence

import msgspec
from sqlalchemy import func, select

from scheduler.model.reservations import Lease, Reservation
from scheduler.model.rules import Rules, read_rules, with_images
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
_PRINCIPALS = select(*PRINCIPALS.columns).order_by(tables.principals.c.name)
_RULES_ROW = tables.rules.c
_RULES = select(_RULES_ROW.version, _RULES_ROW.document, _RULES_ROW.images).order_by(_RULES_ROW.version.desc()).limit(1)
_RULES_VERSION = select(func.coalesce(func.max(_RULES_ROW.version), 0))
_ID = RESERVATIONS.place("id")


def read_rules_version(session: Session) -> int:
    """Return the version of the scheduling rules in force; 0 if no rules were ever applied."""
    ((version,),) = session.fetch(_RULES_VERSION)
    return int(version)


def load_leader_term(session: Session) -> LeaderTerm:
    """Return the term and holder of the present leadership, with the time of its last tick."""
    for row in session.fetch(_LEADER_TERM):
        return LeaderTerm(*row)
    raise StoreUnavailableError("the database has no row for the leader: run `leasehold migrate`")


def read_principals(session: Session) -> list[StoredPrincipal]:
    """Return every principal (sender of signed messages), sorted by name."""
    return PRINCIPALS.read_all(session.fetch(_PRINCIPALS))


def read_reservations(
    session: Session, statements: Statements, rows: Sequence[Record], last: dict[str, int] | None = None
) -> list[Reservation]:
    """Return a reservation with its leases for each of `rows`, in the same order. `rows` are the result of a query for
    `RESERVATIONS.columns`. `last`: a dict to which the function adds, for each reservation with leases, its id -> the
    position of its last lease.
    """
    leases: dict[str, list[Lease]] = {}
    found = [*session.fetch_for(statements.leases.load, (row[_ID] for row in rows))]
    for lease, (*_, position, owner) in zip(LEASES.read_all(found), found, strict=True):
        leases.setdefault(owner, []).append(lease)
        if last is not None:
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
