"""What can go wrong for a producer, by what it does about it. All of them are `LeaseholdError`s.

The names are the words that people use of the situation, hence no suffix.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


class LeaseholdError(Exception):
    """The base of all errors of this client; the message is one line for people."""


@dataclass(frozen=True)
class Fault:
    """One thing that was wrong with a request: where, what was expected, what came."""

    index: int
    path: str
    expected: str
    got: str

    def __str__(self) -> str:
        return f"{self.path}: expected {self.expected}, got {self.got}"


class Refused(LeaseholdError):  # noqa: N818 - see above
    """The request was understood and not carried out; nothing was changed. `errors` has the faults."""

    def __init__(self, errors: Iterable[Fault]) -> None:
        self.errors = tuple(errors)
        super().__init__("; ".join(map(str, self.errors)) or "refused")


class NotAnswered(LeaseholdError, TimeoutError):  # noqa: N818 - see above
    """Time ran out; the message names what was waited for.

    Whatever was asked for may still happen. Asking again with the same id is safe.
    """


class NoStack(LeaseholdError):  # noqa: N818 - see above
    """No URL was given and no running stack was found."""


class UntrustedFolder(LeaseholdError):  # noqa: N818 - see above
    """A folder `.leasehold` on the way up belongs to another user, or other users may write to it; nothing of it was
    used.
    """


class BadCredentials(LeaseholdError):  # noqa: N818 - see above
    """A key file, a key or a principal's name is not usable. The message does not contain the key."""


class Unavailable(LeaseholdError, ConnectionError):  # noqa: N818 - see above
    """Redis, or the view in it, cannot be reached or read. Nothing is lost; try later."""


class Unknown(LeaseholdError, LookupError):  # noqa: N818 - see above
    """No reservation or slot of this id is in the view (ended ones leave it after ten minutes)."""


class Ended(LeaseholdError):  # noqa: N818 - see above
    """The reservation that was waited for has ended otherwise; `phase` and `reason` say how."""

    def __init__(self, reservation: str, phase: str, reason: str | None) -> None:
        self.reservation, self.phase, self.reason = reservation, phase, reason
        super().__init__(f"{reservation} is {phase}" + (f": {reason}" if reason else ""))


def read_faults(errors: Iterable[Mapping[str, Any]]) -> list[Fault]:
    """The faults of an answer, as they came over the wire."""
    return [
        Fault(
            index=int(each.get("index", 0)),
            path=str(each.get("path", ".")),
            expected=str(each.get("expected", "something else")),
            got=str(each.get("got", "this")),
        )
        for each in errors
    ]
