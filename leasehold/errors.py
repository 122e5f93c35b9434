"""The errors of the client, one class for each way to react. All of them are `LeaseholdError`s.

The names describe the situation and have no suffix `Error`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


class LeaseholdError(Exception):
    """The base of all errors of this client. The message is one line for people."""


@dataclass(frozen=True)
class Fault:
    """One fault of a request: its path, the expected value, and the value that was received."""

    index: int
    path: str
    expected: str
    got: str

    def __str__(self) -> str:
        return f"{self.path}: expected {self.expected}, got {self.got}"


class Refused(LeaseholdError):  # noqa: N818 - see above
    """A worker refused the request; nothing was changed. `errors` has the faults."""

    def __init__(self, errors: Iterable[Fault]) -> None:
        self.errors = tuple(errors)
        super().__init__("; ".join(map(str, self.errors)) or "refused")


class NotAnswered(LeaseholdError, TimeoutError):  # noqa: N818 - see above
    """No answer came in time. The message names the request or the wait.

    The request may still be carried out. It is safe to repeat it with the same id.
    """


class NoStack(LeaseholdError):  # noqa: N818 - see above
    """No URL was given and no running stack was found."""


class UntrustedFolder(LeaseholdError):  # noqa: N818 - see above
    """A folder `.leasehold`, here or in a folder above, belongs to another user, or other users may write to it; it was
    not used.
    """


class BadCredentials(LeaseholdError):  # noqa: N818 - see above
    """A key file, a key or the name of a principal is invalid. The message does not contain the key."""


class Unavailable(LeaseholdError, ConnectionError):  # noqa: N818 - see above
    """Redis, or the view in it, cannot be reached or read. No data is lost; try again later."""


class Unknown(LeaseholdError, LookupError):  # noqa: N818 - see above
    """The view has no reservation or slot of this id. Ended reservations leave it after ten minutes."""


class Ended(LeaseholdError):  # noqa: N818 - see above
    """The awaited phase can no longer come, because the reservation has ended; see `phase` and `reason`."""

    def __init__(self, reservation: str, phase: str, reason: str | None) -> None:
        self.reservation, self.phase, self.reason = reservation, phase, reason
        super().__init__(f"{reservation} is {phase}" + (f": {reason}" if reason else ""))


def read_faults(errors: Iterable[Mapping[str, Any]]) -> list[Fault]:
    """Return the faults of an answer as objects."""
    return [
        Fault(
            index=int(each.get("index", 0)),
            path=str(each.get("path", ".")),
            expected=str(each.get("expected", "something else")),
            got=str(each.get("got", "this")),
        )
        for each in errors
    ]
