"""Commands about principals (senders of messages, each with a role and a key): add a principal, replace its key, grant
or withdraw a right, or remove it. Each change appends an event.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from scheduler.model.events import Event
from scheduler.model.principals import WORKER, Right
from scheduler.model.validation import Document, Fault, InvalidInputError, Name, read_document, show, suggest
from scheduler.operations.retry import repeated_if_overtaken
from scheduler.ports import Store, StoredPrincipal, Transaction
from scheduler.protocol.signing import make_key
from scheduler.protocol.verbs import VERBS

GRACE_SECONDS: Final = 3600.0
"""Default of the seconds for which the previous key of a principal is still accepted after its key was replaced."""


class NewPrincipal(Document):
    """The document of a new principal: its name, role, accounts and rights. Only a producer may have accounts."""

    name: Name
    role: Literal["producer", "operator", "host", "reader"]
    accounts: list[Name] = []
    rights: list[Right] = []


_SUBMITTERS: Final = VERBS["submit"].roles
"""The roles that can use the right `run`."""


@repeated_if_overtaken
def add_principal(store: Store, document: Mapping[str, Any]) -> StoredPrincipal:
    """Store a new principal (a sender of messages) with a random key, and return it. Raises InvalidInputError for
    invalid fields or a name that exists already.
    """
    given = read_document(NewPrincipal, document)
    if given.accounts and given.role != "producer":
        raise InvalidInputError([Fault("accounts", "no accounts for a role other than producer", show(given.accounts))])
    if given.rights:
        _check_role(given.role)
    with store.transaction() as transaction:
        if given.name in transaction.load_principals():
            raise InvalidInputError([Fault("name", "a name that no principal has", show(given.name))])
        row = StoredPrincipal(
            name=given.name,
            role=given.role,
            accounts=tuple(dict.fromkeys(given.accounts)),
            key=make_key(),
            created_at=transaction.now(),
            rights=tuple(dict.fromkeys(given.rights)),
        )
        _save(transaction, row, "principal_added")
    return row


@repeated_if_overtaken
def rotate_principal(store: Store, name: str, grace_seconds: float = GRACE_SECONDS) -> StoredPrincipal:
    """Replace the key of a principal by a new random key. Return the principal. The previous key is accepted for
    another `grace_seconds`. Raises InvalidInputError if there is no principal with this name.
    """
    with store.transaction() as transaction:
        current = _find(transaction.load_principals(), name)
        until = transaction.now() + grace_seconds
        previous = current.key if grace_seconds > 0 else None
        row = msgspec.structs.replace(
            current, key=make_key(), previous_key=previous, previous_until=until if previous else None
        )
        _save(transaction, row, "principal_rotated")
    return row


@repeated_if_overtaken
def change_right(store: Store, name: str, right: Right, *, has_it: bool) -> StoredPrincipal:
    """Grant a right to a principal, or withdraw it. Return the principal. Raises InvalidInputError for an unknown name,
    and for a role that cannot use the right. A right that the principal has, or lacks, already changes nothing.
    """
    with store.transaction() as transaction:
        current = _find(transaction.load_principals(), name)
        if has_it:
            _check_role(current.role)
        if (right in current.rights) == has_it:
            return current
        rights = {*current.rights, right} if has_it else {*current.rights} - {right}
        row = msgspec.structs.replace(current, rights=tuple(sorted(rights)))
        _save(transaction, row, "principal_granted" if has_it else "principal_withdrawn")
    return row


def _check_role(role: str) -> None:
    if role not in _SUBMITTERS:
        raise InvalidInputError(
            [Fault("rights", f"a role that submits: {' or '.join(sorted(_SUBMITTERS))}", show(role))]
        )


@repeated_if_overtaken
def remove_principal(store: Store, name: str) -> StoredPrincipal:
    """Delete a principal and return it. From then on messages with its signature are refused. Raises InvalidInputError
    for an unknown name, and for the principal of the cluster's own workers.
    """
    if name == WORKER:
        raise InvalidInputError([Fault("name", "a principal other than that of the workers", show(name))])
    with store.transaction() as transaction:
        row = _find(transaction.load_principals(), name)
        transaction.delete_principals([name])
        transaction.append_events([_describe(row, "principal_removed", transaction.now())])
    return row


def _find(known: Mapping[str, StoredPrincipal], name: str) -> StoredPrincipal:
    if name not in known:
        raise InvalidInputError([Fault("principal", f"a known principal{suggest(name, known)}", show(name), "unknown")])
    return known[name]


def _save(transaction: Transaction, row: StoredPrincipal, event: str) -> None:
    transaction.save_principals([row])
    transaction.append_events([_describe(row, event, transaction.now())])


def _describe(row: StoredPrincipal, name: str, now: float) -> Event:
    detail: dict[str, Any] = {"principal": row.name, "role": row.role}
    detail |= {"rights": list(row.rights)} if row.rights else {}
    return Event(at=now, name=name, cause="operator", detail=detail)
