"""The types of fields in input documents (names, amounts, durations, labels), each with the check of its values.

A check takes a value and returns it in its normal form, or raises the error that `expected(...)` makes.
"""

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Annotated, TypeGuard

from scheduler.model.documents import MOST_FAULTS, After, Before, Document, accept_if, read_document
from scheduler.model.faults import (
    ExpectedError,
    Fault,
    InvalidInputError,
    conflicts,
    expected,
    fault,
    format_path,
    show,
    suggest,
)

# Schemas import documents, faults and types from one module.
__all__ = [
    "MOST_FAULTS",
    "After",
    "Before",
    "Document",
    "ExpectedError",
    "Fault",
    "InvalidInputError",
    "accept_if",
    "conflicts",
    "expected",
    "fault",
    "format_path",
    "read_document",
    "show",
    "suggest",
]

MOST_NAME = 200
MOST_TEXT = 256
MOST_ENTRIES = 64
MOST_AMOUNT = 1e15
_MOST_PORT = 65_535
_LEVELS = 5
"""Number of paid levels of a quota account."""
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
_A_DURATION = 'a duration >= 0 (seconds, or like "30s", "15m", "1h")'
_A_LENGTH = 'a duration > 0 (seconds, or like "30s", "15m", "1h")'
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/+-]*")
A_NAME = f"a name (letters, digits and ._:@/+-, at most {MOST_NAME} characters)"


def is_text_like(pattern: str) -> Callable[[object], bool]:
    """Return a function that returns whether a value is a text that the regular expression matches as a whole."""
    matches = re.compile(pattern).fullmatch
    return lambda value: isinstance(value, str) and matches(value) is not None


def is_number(value: object) -> TypeGuard[float]:
    """Return whether the value is a finite number. True and False do not count as numbers."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: object, what: str) -> float:
    if not is_number(value) or value < 0:
        raise expected(what)
    if value > MOST_AMOUNT:
        raise expected(f"{what} and at most 1e15")
    return value


def _whole(value: object, least: int) -> int:
    what = f"a whole number >= {least}"
    if not is_number(value) or value < least or value != int(value):
        raise expected(what)
    if value > MOST_AMOUNT:
        raise expected(f"{what} and at most 1e15")
    return int(value)


def _port(value: object) -> int:
    number = _whole(value, 1)
    if number > _MOST_PORT:
        raise expected(f"a port of at most {_MOST_PORT}")
    return number


def parse_duration(value: object) -> float:
    """Return a duration in seconds. The value is a number >= 0 or a text like "30s", "15m" or "1h30m". Raises
    ExpectedError for any other value.
    """
    return _number(_count_seconds(value, _A_DURATION), _A_DURATION)


def _positive_duration(value: object) -> float:
    seconds = _number(_count_seconds(value, _A_LENGTH), _A_LENGTH)
    if not seconds:
        raise expected(_A_LENGTH)
    return seconds


def _count_seconds(value: object, what: str) -> object:
    """Return the seconds of a text like "15m"; return another value unchanged. `what` describes the value in the error
    message.
    """
    if not isinstance(value, str):
        return value
    parts = _DURATION.findall(value)
    if not parts or "".join(number + unit for number, unit in parts) != value:
        raise expected(what)
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def _signed(value: object) -> float:
    if not is_number(value):
        raise expected("a number")
    if abs(value) > MOST_AMOUNT:
        raise expected("a number of at most 1e15")
    return value


def _five(value: object, check: Callable[[object], float], what: str) -> tuple[float, ...]:
    """Return five numbers, one for each paid level, each checked by `check`; missing numbers are 0. `what`
    describes the numbers in the error message.
    """
    if not isinstance(value, list | tuple) or len(value) > _LEVELS or not all(is_number(each) for each in value):
        raise expected(f"a list of at most {_LEVELS} {what}")
    return (*map(check, value), *([0.0] * (_LEVELS - len(value))))


def is_name(value: object) -> TypeGuard[str]:
    """Return whether the value may be the id of a reservation, slot, pool or account."""
    return isinstance(value, str) and len(value) <= MOST_NAME and _NAME.fullmatch(value) is not None


def _name(value: object) -> str:
    if not is_name(value):
        raise expected(A_NAME)
    return value


def _name_or_number(value: object) -> str:
    name, is_number, digits = value.partition("=") if isinstance(value, str) else ("", "", "")
    if is_number and digits.isascii() and digits.isdecimal() and len(digits) <= len(str(MOST_AMOUNT)):
        return f"{_name(name)}={int(digits)}"
    return _name(value)


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > MOST_TEXT:
        raise expected(f"a text of at most {MOST_TEXT} characters")
    return check_unicode(value)


def check_unicode(text: str, **context: object) -> str:
    """Return the text unchanged. Raises ExpectedError if UTF-8 or a database cannot store the text.

    `context`: as in `expected`; the error message shows `got` in place of the text.
    """
    if not _is_storable(text):
        raise expected("a text of whole characters, without NUL", **context)
    return text


def is_whole_text(value: object, most: int) -> TypeGuard[str]:
    """Return whether the value is a text of 1 to `most` characters that UTF-8 and every database can store."""
    return isinstance(value, str) and 0 < len(value) <= most and _is_storable(value)


def _is_storable(text: str) -> bool:
    return "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text)


_amount = partial(_number, what="a number >= 0")
# Runs before the entries are checked, so that a huge table gives one fault instead of one for each entry.
_few = accept_if(
    lambda value: not isinstance(value, dict) or len(value) <= MOST_ENTRIES, f"at most {MOST_ENTRIES} entries"
)
Amount = Annotated[float, Before(_amount)]
Count = Annotated[int, Before(partial(_whole, least=0))]
Positive = Annotated[int, Before(partial(_whole, least=1))]
Port = Annotated[int, Before(_port)]
Seconds = Annotated[float, Before(parse_duration)]
PositiveSeconds = Annotated[float, Before(_positive_duration)]
Signed = Annotated[float, Before(_signed)]
Name = Annotated[str, Before(_name)]
Declined = Annotated[str, Before(_name_or_number)]
"""The name of a slot or an instance, or `NAME=N`: the most instances of a component that a holder wants."""
Levels = Annotated[tuple[float, float, float, float, float], Before(partial(_five, check=_amount, what="numbers >= 0"))]
"""A list of numbers >= 0, one for each paid level of an account, best first. Missing levels are 0."""
SignedLevels = Annotated[
    tuple[float, float, float, float, float], Before(partial(_five, check=_signed, what="numbers"))
]
"""A list of numbers, which may be negative, one for each paid level of an account, best first. Missing levels are 0."""
Text = Annotated[str, Before(_text)]
Key = Annotated[
    str,
    Before(accept_if(is_text_like("[A-Za-z0-9_-]{32,200}"), "a key of 32 to 200 letters, digits, - and _", got="***")),
]
"""A secret key. Error messages never show the key."""
KeyHash = Annotated[
    str,
    Before(accept_if(is_text_like("[0-9a-f]{64}"), "the SHA-256 of a key as 64 hexadecimal digits", got="***")),
]
Nonce = Annotated[
    str,
    Before(accept_if(is_text_like("[A-Za-z0-9_-]{16,200}"), "a random text of 16 to 200 letters, digits, - and _")),
]
"""A random text that the sender makes for one request."""
ResourceMap = Annotated[dict[Name, Amount], Before(_few)]
CountMap = Annotated[dict[Name, Count], Before(_few)]
LabelMap = Annotated[dict[Name, Text], Before(_few)]
