"""Readers of single values in documents: texts, numbers and flags. A reader refuses values of other types instead of
converting them.
"""

from collections.abc import Callable
from typing import Any, Final

from scheduler.model.faults import expected

Read = Callable[[Any], Any]
"""A function that checks a value and returns it in its normal form. It raises ExpectedError, or _Refused for faults
inside a table or list.
"""


def read_text(value: Any) -> str:
    """Return the value if it is a text. Raises ExpectedError for another type, or for a text that UTF-8
    cannot encode.
    """
    if not isinstance(value, str):
        raise expected("a text")
    if not is_encodable(value):
        raise expected("texts of whole characters")
    return value


def is_encodable(text: str) -> bool:
    """Return whether UTF-8 can encode the text."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


def read_whole_number(value: Any) -> int:
    """Return the value if it is a whole number. Raises ExpectedError for any other value, also for True and False."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise expected("a whole number")
    return value


def read_number(value: Any) -> float:
    """Return the value as a float if it is a number. Raises ExpectedError for any other value, also for
    True and False.
    """
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise expected("a number")
    return float(value)


def read_flag(value: Any) -> bool:
    """Return the value if it is True or False. Raises ExpectedError for any other value."""
    if not isinstance(value, bool):
        raise expected("true or false")
    return value


PLAIN_READERS: Final[dict[Any, Read]] = {
    str: read_text,
    int: read_whole_number,
    float: read_number,
    bool: read_flag,
    Any: lambda value: value,
}


def make_converter(kind: Any) -> Read:
    """Return a reader for the type `kind`, such as `Secret`: it calls `kind` on values that do not have
    the type yet.
    """
    return lambda value: value if isinstance(value, kind) else kind(value)
