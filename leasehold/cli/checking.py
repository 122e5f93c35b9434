"""Check the arguments of a command with the schemas of the intake, before a request is sent."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

_BESIDE: Final = frozenset({"request", "reply_to"})
"""What a document says of its request, and nothing of what it asks for."""


def check(verb: str, document: Mapping[str, Any]) -> None:
    """What the intake would say of the document of this request; a None says nothing. Raises InvalidInputError."""
    from scheduler.model.command_schemas import WISHES
    from scheduler.model.validation import read_document

    said = {name: value for name, value in document.items() if value is not None and name not in _BESIDE}
    read_document(WISHES[verb], said)


def check_each(verb: str, field: str, names: Iterable[str]) -> None:
    """The same of a word about several things: one that cannot be meant is a fault before any is spoken of."""
    for name in names:
        check(verb, {field: name})


def check_reservation(fields: Mapping[str, Any]) -> None:
    """The same of a reservation; one without an id is given one when it is sent."""
    said = {name: value for name, value in fields.items() if name != "key"}
    check("submit", said if said.get("id") is not None else {**said, "id": "new"})
    if fields.get("key") is not None:
        check("renew", {"reservation": "new", "key": fields["key"]})
