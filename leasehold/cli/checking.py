"""Check the arguments of a command with the schemas of the intake, before a request is sent."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

_ENVELOPE: Final = frozenset({"request", "reply_to"})
"""Keys of a document that describe its message and are not part of the request."""


def check(verb: str, document: Mapping[str, Any]) -> None:
    """Check the document of a request; keys with None count as missing. Raises InvalidInputError as the intake does."""
    from scheduler.model.command_schemas import SCHEMAS
    from scheduler.model.validation import read_document

    given = {name: value for name, value in document.items() if value is not None and name not in _ENVELOPE}
    read_document(SCHEMAS[verb], given)


def check_each(verb: str, field: str, names: Iterable[str]) -> None:
    """Check the requests for several names before the first is sent. Raises InvalidInputError."""
    for name in names:
        check(verb, {field: name})


def check_reservation(fields: Mapping[str, Any]) -> None:
    """Check the fields of a reservation; the id may be missing, because the client makes one. Raises
    InvalidInputError.
    """
    given = {name: value for name, value in fields.items() if name != "key"}
    check("submit", given if given.get("id") is not None else {**given, "id": "new"})
    if fields.get("key") is not None:
        check("renew", {"reservation": "new", "key": fields["key"]})
