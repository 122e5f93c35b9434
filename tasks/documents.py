"""Read the document of a request from the arguments of a Celery message.

See docs/reference/protocol.md, "A request".
"""

from collections.abc import Mapping, Sequence
from typing import Any

from scheduler.model.validation import Fault, InvalidInputError, fault

NAME = "document"
"""The keyword argument for a whole document. No document has a field of this name."""


def read_request(arguments: Sequence[Any], named: Mapping[str, Any], message: str) -> Any:
    """Return the document of a message. If it has no `request`, the id of the message becomes its request id.

    The document is the only positional argument, or the keyword argument `document`, or the keyword arguments are its
    fields. Raises InvalidInputError for other arguments.
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
