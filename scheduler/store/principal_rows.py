"""Statements of a transaction about principals, and about the pending reservations of a principal or an account."""

from collections.abc import Iterable, Sequence

from sqlalchemy import bindparam, func, literal_column, select, update

from scheduler.ports import Pending, StoredPrincipal
from scheduler.store import tables
from scheduler.store.reading import read_principals
from scheduler.store.session import Session
from scheduler.store.statements import KeptStatements

_LOCK_PRINCIPALS = select(tables.cluster.c.principals_version).with_for_update()
_CHANGE_PRINCIPALS = update(tables.cluster).values(principals_version=tables.cluster.c.principals_version + 1)
_PENDING = select(func.count(), func.coalesce(func.sum(func.coalesce(tables.reservations.c.instances, 1)), 0)).where(
    tables.reservations.c.phase == literal_column("'pending'")
)
_PENDING_UNSIGNED = _PENDING.where(tables.reservations.c.principal.is_(None))
_PENDING_OF_PRINCIPAL = _PENDING.where(tables.reservations.c.principal == bindparam("name"))
_PENDING_OF_ACCOUNT = _PENDING.where(
    tables.reservations.c.account.is_not(None), tables.reservations.c.account == bindparam("name")
)


def load_principals(session: Session) -> dict[str, StoredPrincipal]:
    """See Transaction.load_principals."""
    session.fetch(_LOCK_PRINCIPALS)
    return {row.name: row for row in read_principals(session)}


def save_principals(session: Session, statements: KeptStatements, rows: Sequence[StoredPrincipal]) -> None:
    """See Transaction.save_principals."""
    session.change(_CHANGE_PRINCIPALS)
    session.write(statements.put_principals, rows)


def delete_principals(session: Session, statements: KeptStatements, names: Iterable[str]) -> None:
    """See Transaction.delete_principals."""
    session.change(_CHANGE_PRINCIPALS)
    session.change_for(statements.delete_principals, names)


def count_pending_of_principal(session: Session, principal: str | None) -> Pending:
    """See Transaction.count_pending_of_principal."""
    if principal is None:
        ((count, instances),) = session.fetch(_PENDING_UNSIGNED)
    else:
        ((count, instances),) = session.fetch(_PENDING_OF_PRINCIPAL, name=principal)
    return Pending(int(count), int(instances))


def count_pending_of_account(session: Session, account: str) -> Pending:
    """See Transaction.count_pending_of_account."""
    ((count, instances),) = session.fetch(_PENDING_OF_ACCOUNT, name=account)
    return Pending(int(count), int(instances))
