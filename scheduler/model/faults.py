"""Faults of an input: each is a path, a description of the expected value, and the value that was found."""

import difflib
import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec

from scheduler.protocol.faults import describe_fault
from scheduler.protocol.masking import mask_urls
from scheduler.protocol.visible import make_visible

_SHOWN = 60
_NUMBER_GOES_ON = re.compile(r"[0-9.]")
_NUMBER_END = re.compile(r"(?<![\w.\"-])-?[0-9.]+$")
"""A number at the end of a text that is cut there. Digits that begin a string are no number."""
_MOST_CHOICES = 60
_LIKENESS_OF_NAMES = 0.6
"""Names are few and short: `linux` is meant by `lunix`."""
_MOST_WORD = 200
"""Number of characters of an unknown key that are compared with the known keys to find a similar one."""


FaultCode = Literal["forbidden", "unknown", "conflict"]
"""The kind of a fault that is not in the input itself. `forbidden`: the sender lacks a right or a key. `unknown`: the
object does not exist, or the sender may not see it. `conflict`: the state does not permit the change at present.
"""


class Fault(msgspec.Struct, frozen=True, omit_defaults=True):
    """One fault of an input. `str()` returns its line, see `describe_fault`. `code`: why a correct input is refused,
    e.g. `unknown` if an object that the input names does not exist (see FaultCode). None: the input itself is wrong.
    """

    path: str
    expected: str
    got: str
    code: FaultCode | None = None

    def __str__(self) -> str:
        return describe_fault(self.path, self.expected, self.got, self.code)


class InvalidInputError(Exception):
    """Raised when an input is refused. `faults` has every fault that was found, in the order of the input."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(map(str, faults)))


def fault(path: str, expected: str, got: object, code: FaultCode | None = None) -> InvalidInputError:
    """Return the InvalidInputError for an input with a single fault. `expected` describes the accepted values. `got`,
    the value found, is shortened for display. `code` None: the input itself is wrong.
    """
    return InvalidInputError([Fault(make_visible(path), expected, show(got), code)])


def show(value: object) -> str:
    """Return a value as one line of JSON for an error message. A long value is shortened; passwords in
    URLs are hidden.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    try:
        text = mask_urls(json.dumps(value, ensure_ascii=False, default=str))
    except (TypeError, ValueError, RecursionError):
        text = type(value).__name__
    if len(text) <= _SHOWN:
        return make_visible(text)
    # A part of a number would look like another number.
    head = _NUMBER_END.sub("", text[:_SHOWN]) if _NUMBER_GOES_ON.match(text, _SHOWN) else text[:_SHOWN]
    return f"{make_visible(head or text[:_SHOWN])}… ({len(text)} characters)"


class ExpectedError(Exception):
    """Raised by the check of a single value. The reader of the document adds the path and the value to the error.

    `expected` describes the accepted values; it may be a function, which is called only if the fault is reported.
    `context` may contain `key`, which is added to the path, and `got`, which is shown in place of the value. `faults`,
    if given, are reported in place of all this; their paths start at the checked table.
    """

    def __init__(self, expected: str | Callable[[], str], faults: Sequence[Fault] = (), **context: object) -> None:
        super().__init__(expected)
        self.faults, self.context, self._expected = tuple(faults), context, expected

    @property
    def expected(self) -> str:
        """The description of the values that the check accepts, as text."""
        return self._expected if isinstance(self._expected, str) else self._expected()


def expected(what: str | Callable[[], str], **context: object) -> ExpectedError:
    """Return the error for a value that a check does not accept. `what` describes the accepted values. `context`: `key`
    (added to the path) and `got` (shown in place of the value), as in ExpectedError.
    """
    return ExpectedError(what, (), **context)


def conflicts(faults: Sequence[Fault]) -> ExpectedError:
    """Return the error for the faults, at least one, that the check of a whole table found. The paths of the faults
    start at that table.
    """
    return ExpectedError(faults[0].expected, faults)


def format_path(location: Iterable[str | int], prefix: str = "") -> str:
    """Return the path of a fault as text: `("timeline", 3, "submit")` becomes `timeline[3].submit`, behind the path
    `prefix` if it is given; an empty path becomes ".".
    """
    path = prefix
    for part in location:
        word = make_visible(str(part)[:_SHOWN]) + ("…" if len(str(part)) > _SHOWN else "")
        path += f"[{word}]" if isinstance(part, int) else (f".{word}" if path else word)
    return path or "."


def one_of(word: str, known: Iterable[str]) -> str:
    """Return what is expected in place of `word`, a name that does not exist: `one of a, b` with the known names, at
    most _MOST_CHOICES of them, and the one that is similar to `word`.
    """
    names = list(known)
    if not names:
        return "no name, because there is none yet"
    more = f", … and {len(names) - _MOST_CHOICES} more" if len(names) > _MOST_CHOICES else ""
    return f"one of {', '.join(names[:_MOST_CHOICES])}{more}{suggest(word, names, _LIKENESS_OF_NAMES)}"


def suggest(word: str, known: Iterable[str], likeness: float = 0.7) -> str:
    """Return ` (did you mean "NAME"?)` with the known name that is most similar to `word`, or "" if none is similar."""
    near = difflib.get_close_matches(word[:_MOST_WORD], list(known), n=1, cutoff=likeness)
    return f' (did you mean "{near[0]}"?)' if near else ""
