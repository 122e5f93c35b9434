"""Faults of an input document: each has a path, what was expected, and what was found."""

import difflib
import json
import math
from collections.abc import Callable, Iterable, Sequence

import msgspec

from leasehold.common.masking import mask_urls
from leasehold.common.visible import make_visible

_SHOWN = 60
_MOST_WORD = 200
"""Number of characters of an unknown key that are compared with the known keys."""


class Fault(msgspec.Struct, frozen=True):
    """One fault of an input. `str()` returns the line that is shown to people."""

    path: str
    expected: str
    got: str

    def __str__(self) -> str:
        return f"{self.path}: expected {self.expected}, got {self.got}"


class InvalidInputError(Exception):
    """Raised for an input that is refused as a whole. `faults` has every fault found, in the order of the input."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(map(str, faults)))


def fault(path: str, expected: str, got: object) -> InvalidInputError:
    """Return the error for a single fault. `got` is shortened for display."""
    return InvalidInputError([Fault(make_visible(path), expected, show(got))])


def show(value: object) -> str:
    """Return a value as one line of JSON for an error message: shortened, and without passwords in URLs."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    try:
        text = mask_urls(json.dumps(value, ensure_ascii=False, default=str))
    except (TypeError, ValueError, RecursionError):
        text = type(value).__name__
    return make_visible(text[:_SHOWN]) + (f"… ({len(text)} characters)" if len(text) > _SHOWN else "")


class ExpectedError(Exception):
    """Raised by the check of one value. The reader of the document adds the path and the value that was found.

    `expected` may be a function, so that a suggestion is computed only if the fault is reported. `key` adds a key to
    the path. `got` replaces the value that is shown. `faults` replaces all of these; its paths start at the table that
    was checked.
    """

    def __init__(self, expected: str | Callable[[], str], faults: Sequence[Fault] = (), **context: object) -> None:
        super().__init__(expected)
        self.faults, self.context, self._expected = tuple(faults), context, expected

    @property
    def expected(self) -> str:
        """A description of the values that the check accepts."""
        return self._expected if isinstance(self._expected, str) else self._expected()


def expected(what: str | Callable[[], str], **context: object) -> ExpectedError:
    """Return the error that a check raises when a value is not as `what` describes. `context` is passed to
    ExpectedError.
    """
    return ExpectedError(what, (), **context)


def conflicts(faults: Sequence[Fault]) -> ExpectedError:
    """Return the error for faults that the check of a whole table found. Paths start at that table."""
    return ExpectedError(faults[0].expected, faults)


def format_path(location: Iterable[str | int], prefix: str = "") -> str:
    """Return the text of a path: `("timeline", 3, "submit")` becomes `timeline[3].submit`."""
    path = prefix
    for part in location:
        word = make_visible(str(part)[:_SHOWN]) + ("…" if len(str(part)) > _SHOWN else "")
        path += f"[{word}]" if isinstance(part, int) else (f".{word}" if path else word)
    return path or "."


def suggest(word: str, known: Iterable[str]) -> str:
    """Return ` (did you mean "max_slots"?)` if a known name resembles `word`, else an empty text."""
    near = difflib.get_close_matches(word[:_MOST_WORD], list(known), n=1, cutoff=0.7)
    return f' (did you mean "{near[0]}"?)' if near else ""
