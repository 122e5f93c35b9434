"""What a command is given is looked at before anybody is asked, by what the intake looks at it with."""

from collections.abc import Mapping
from typing import Any


def check(verb: str, document: Mapping[str, Any]) -> None:
    """What the intake would say of the document of this request. Raises InvalidInputError."""
    from scheduler.model.validation import read_document
    from scheduler.model.wishes import WISHES

    read_document(WISHES[verb], document)
