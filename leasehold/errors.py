"""Errors of the client, one class for each reaction of the caller. All are subclasses of `LeaseholdError`.

The class names describe the situation and therefore do not end in "Error".
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


class LeaseholdError(Exception):
    """The base class of all errors of the client. The message is one line for people."""


@dataclass(frozen=True)
class Fault:
    """One fault of a request: its path, what was expected, and what was found."""

    index: int
    path: str
    expected: str
    got: str

    def __str__(self) -> str:
        return f"{self.path}: expected {self.expected}, got {self.got}"


class Refused(LeaseholdError):  # noqa: N818 - see above
    """The request was received and refused, and nothing was changed. `errors` has the faults."""

    def __init__(self, errors: Iterable[Fault]) -> None:
        self.errors = tuple(errors)
        super().__init__("; ".join(map(str, self.errors)) or "refused")


class NotAnswered(LeaseholdError, TimeoutError):  # noqa: N818 - see above
    """The time limit passed without an answer. The request may still be carried out; repeating it with the same id is
    safe.
    """


class NoStack(LeaseholdError):  # noqa: N818 - see above
    """No URL was given and no running stack was found."""


class UntrustedFolder(LeaseholdError):  # noqa: N818 - see above
    """A folder `.leasehold` belongs to another user, or other users may write to it. Nothing in it was used."""


class BadCredentials(LeaseholdError):  # noqa: N818 - see above
    """A key file, a key or the name of a principal is invalid. The message does not contain the key."""


class Unavailable(LeaseholdError, ConnectionError):  # noqa: N818 - see above
    """Redis is unreachable, or does not hold a valid view. No data is lost; try again later."""


class Unknown(LeaseholdError, LookupError):  # noqa: N818 - see above
    """The view has no reservation or slot with this id. Ended reservations leave the view after ten minutes."""


class Ended(LeaseholdError):  # noqa: N818 - see above
    """A reservation ended in another phase than the one waited for. `phase` and `reason` describe the end."""

    def __init__(self, reservation: str, phase: str, reason: str | None) -> None:
        self.reservation, self.phase, self.reason = reservation, phase, reason
        super().__init__(f"{reservation} is {phase}" + (f": {reason}" if reason else ""))


def read_faults(errors: Iterable[Mapping[str, Any]]) -> list[Fault]:
    """Return the faults of a request that are listed in the answer to it."""
    return [
        Fault(
            index=int(each.get("index", 0)),
            path=str(each.get("path", ".")),
            expected=str(each.get("expected", "something else")),
            got=str(each.get("got", "this")),
        )
        for each in errors
    ]
