"""Check the arguments of a command before a request is sent, with the same schemas by which workers check requests."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

_ENVELOPE: Final = frozenset({"request", "reply_to"})
"""Keys of a request's document that belong to the message (its id and its reply address) and not to the request."""


def check(verb: str, document: Mapping[str, Any]) -> None:
    """Check the document of a request against the schema of `verb`, the name of the request, like `release`. A key with
    the value None counts as missing.

    Raises InvalidInputError with the faults that a worker would find.
    """
    from scheduler.model.command_schemas import SCHEMAS
    from scheduler.model.validation import read_document

    given = {name: value for name, value in document.items() if value is not None and name not in _ENVELOPE}
    read_document(SCHEMAS[verb], given)


def check_each(verb: str, field: str, names: Iterable[str]) -> None:
    """Check the requests that a command will send, one for each of `names`: a request `verb` whose field `field` has
    the name as its value. Raises InvalidInputError if a name is not valid.
    """
    for name in names:
        check(verb, {field: name})


def check_reservation(fields: Mapping[str, Any]) -> None:
    """Check the fields of a new reservation. The id may be missing, because the client then makes one. Raises
    InvalidInputError if a field is not valid.
    """
    given = {name: value for name, value in fields.items() if name != "key"}
    check("submit", given if given.get("id") is not None else {**given, "id": "new"})
    if fields.get("key") is not None:
        check("renew", {"reservation": "new", "key": fields["key"]})
