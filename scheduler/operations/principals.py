"""Commands about principals (senders of messages, each with a role and a key): add a principal, replace its key, or
remove it. Each change appends an event.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from scheduler.model.events import Event
from scheduler.model.principals import WORKER
from scheduler.model.validation import Document, Fault, InvalidInputError, Name, read_document, show, suggest
from scheduler.operations.retry import repeated_if_overtaken
from scheduler.ports import Store, StoredPrincipal, Transaction
from scheduler.protocol.signing import make_key

GRACE_SECONDS: Final = 3600.0
"""Default of the seconds for which the previous key of a principal is still accepted after its key was replaced."""


class NewPrincipal(Document):
    """The document of a new principal: its name, role and accounts. Only a producer may have accounts."""

    name: Name
    role: Literal["producer", "operator", "host", "reader"]
    accounts: list[Name] = []


@repeated_if_overtaken
def add_principal(store: Store, document: Mapping[str, Any]) -> StoredPrincipal:
    """Store a new principal (a sender of messages) with a random key, and return it. Raises InvalidInputError for
    invalid fields or a name that exists already.
    """
    given = read_document(NewPrincipal, document)
    if given.accounts and given.role != "producer":
        raise InvalidInputError([Fault("accounts", "no accounts for a role other than producer", show(given.accounts))])
    with store.transaction() as transaction:
        if given.name in transaction.load_principals():
            raise InvalidInputError([Fault("name", "a name that no principal has", show(given.name))])
        accounts = tuple(dict.fromkeys(given.accounts))
        row = StoredPrincipal(
            name=given.name, role=given.role, accounts=accounts, key=make_key(), created_at=transaction.now()
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
    return Event(at=now, name=name, cause="operator", detail={"principal": row.name, "role": row.role})
