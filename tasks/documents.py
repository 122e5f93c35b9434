"""The document of a request, as any Celery producer may send it. docs/reference/protocol.md, "A request"."""

from collections.abc import Mapping, Sequence
from typing import Any

from scheduler.model.validation import Fault, InvalidInputError, fault

NAME = "document"
"""The keyword argument that holds a whole document. No document has a field of this name."""


def read_request(arguments: Sequence[Any], named: Mapping[str, Any], message: str) -> Any:
    """The document in the arguments of a message; where it has no `request`, the message's id is its request id.

    It is the only positional argument, or the keyword argument `document`, or its fields are the keyword arguments.
    Raises InvalidInputError for anything else.
    """
    document = _find_document(arguments, named)
    if isinstance(document, Mapping) and "request" not in document:
        return {**document, "request": message}
    return document


def _find_document(arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
    if arguments and named:
        raise fault("kwargs", "nothing beside a positional argument", list(named))
    if len(arguments) > 1:
        raise InvalidInputError([Fault("args", "one document", f"{len(arguments)} arguments")])
    if arguments:
        return arguments[0]
    if NAME not in named:
        if not named:
            raise InvalidInputError([Fault("args", "one document", "no arguments")])
        return dict(named)
    if len(named) > 1:
        raise fault("kwargs", f"nothing beside {NAME}", [name for name in named if name != NAME])
    return named[NAME]
