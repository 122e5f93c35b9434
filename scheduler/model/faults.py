"""Faults of an input: each reports a path, what was expected, and what was found."""

import difflib
import json
import math
from collections.abc import Callable, Iterable, Sequence

import msgspec

from leasehold.common.masking import mask_urls
from leasehold.common.visible import make_visible

_SHOWN = 60
_MOST_WORD = 200
"""Characters of a key that are compared with the known keys."""


class Fault(msgspec.Struct, frozen=True):
    """One thing wrong with an input; `str()` is the line that people see."""

    path: str
    expected: str
    got: str

    def __str__(self) -> str:
        return f"{self.path}: expected {self.expected}, got {self.got}"


class InvalidInputError(Exception):
    """Input that was refused as a whole. `faults` is every fault that was found, in the order of the input."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(map(str, faults)))


def fault(path: str, expected: str, got: object) -> InvalidInputError:
    """The error for a single fault, with `got` shown in short."""
    return InvalidInputError([Fault(make_visible(path), expected, show(got))])


def show(value: object) -> str:
    """What came, for a line of an error: as JSON on one line, cut short, passwords in URLs left out."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    try:
        text = mask_urls(json.dumps(value, ensure_ascii=False, default=str))
    except (TypeError, ValueError, RecursionError):
        text = type(value).__name__
    return make_visible(text[:_SHOWN]) + (f"… ({len(text)} characters)" if len(text) > _SHOWN else "")


class ExpectedError(Exception):
    """Raised by a check of one value. The reader of the document adds the path and what was found.

    `expected` may be a function, so that a suggestion is searched only for a fault that is reported. `key` adds a
    key to the path. `got` replaces the value as what was found. `faults` replaces everything: paths start at the table.
    """

    def __init__(self, expected: str | Callable[[], str], faults: Sequence[Fault] = (), **context: object) -> None:
        super().__init__(expected)
        self.faults, self.context, self._expected = tuple(faults), context, expected

    @property
    def expected(self) -> str:
        """What the check wants."""
        return self._expected if isinstance(self._expected, str) else self._expected()


def expected(what: str | Callable[[], str], **context: object) -> ExpectedError:
    """Return the error that a check raises when the value is not `what`. See `ExpectedError` for the context."""
    return ExpectedError(what, (), **context)


def conflicts(faults: Sequence[Fault]) -> ExpectedError:
    """Return the error that the check of a whole table raises; paths start at that table."""
    return ExpectedError(faults[0].expected, faults)


def format_path(location: Iterable[str | int], prefix: str = "") -> str:
    """`("timeline", 3, "submit")` as `timeline[3].submit`."""
    path = prefix
    for part in location:
        word = make_visible(str(part)[:_SHOWN]) + ("…" if len(str(part)) > _SHOWN else "")
        path += f"[{word}]" if isinstance(part, int) else (f".{word}" if path else word)
    return path or "."


def suggest(word: str, known: Iterable[str]) -> str:
    """` (did you mean "max_slots"?)` where a known word is near, else nothing."""
    near = difflib.get_close_matches(word[:_MOST_WORD], list(known), n=1, cutoff=0.7)
    return f' (did you mean "{near[0]}"?)' if near else ""
