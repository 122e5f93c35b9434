"""Check the arguments of a command against the schemas with which workers check requests, before a request is sent."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

_ENVELOPE: Final = frozenset({"request", "reply_to"})
"""Keys of a request's document that describe its message (the id and the reply address), not the request itself."""


def check(verb: str, document: Mapping[str, Any]) -> None:
    """Check the document of a request, like `release`, against its schema; keys with None count as missing. Raises
    InvalidInputError with the faults that a worker would find.
    """
    from scheduler.model.command_schemas import SCHEMAS
    from scheduler.model.validation import read_document

    given = {name: value for name, value in document.items() if value is not None and name not in _ENVELOPE}
    read_document(SCHEMAS[verb], given)


def check_each(verb: str, field: str, names: Iterable[str]) -> None:
    """Check one request `verb` for each of `names`, before the first request is sent. Raises InvalidInputError if a
    name is not valid.
    """
    for name in names:
        check(verb, {field: name})


def check_reservation(fields: Mapping[str, Any]) -> None:
    """Check the fields of a request for a reservation; the id may be missing, because the client then makes one. Raises
    InvalidInputError if a field is not valid.
    """
    given = {name: value for name, value in fields.items() if name != "key"}
    check("submit", given if given.get("id") is not None else {**given, "id": "new"})
    if fields.get("key") is not None:
        check("renew", {"reservation": "new", "key": fields["key"]})
