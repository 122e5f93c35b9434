"""The errors that the client raises, one class for each way in which a caller may react. All are subclasses of
`LeaseholdError`.

The names of the subclasses describe a situation, like `NotAnswered`, and therefore do not end in "Error".
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from scheduler.protocol.faults import describe_fault


class LeaseholdError(Exception):
    """The base class of all errors of the client. The message is one line for people."""


@dataclass(frozen=True)
class Fault:
    """One fault of a request: the path of the wrong field, what was expected there, and what was found. `index`: the
    position of the request among those that were sent together, from 0. `code`: `forbidden` (the sender lacks a right),
    `unknown` (the object of the request is not known) or `conflict` (its state does not permit the change); None: the
    request itself is wrong.
    """

    index: int
    path: str
    expected: str
    got: str
    code: str | None = None

    def __str__(self) -> str:
        return describe_fault(self.path, self.expected, self.got, self.code)


class Refused(LeaseholdError):  # noqa: N818 - see the module docstring
    """Raised if a worker refused a request. Nothing was changed. `errors`: the faults of the request, one for each
    wrong field.
    """

    def __init__(self, errors: Iterable[Fault]) -> None:
        self.errors = tuple(errors)
        super().__init__("; ".join(map(str, self.errors)) or "refused")


class NotAnswered(LeaseholdError, TimeoutError):  # noqa: N818 - see the module docstring
    """Raised if no worker answered within the time limit, or if a wait for a phase was not over in time. A worker may
    still carry out the request later; sending it again with the same id is safe.

    `reason`: what is known about the cause; "" if nothing is. `code`: if a reservation waits, its waiting code in the
    last tick, which `reason` explains; else None.
    """

    def __init__(self, message: str, reason: str = "", code: str | None = None) -> None:
        self.reason, self.code = reason, code
        super().__init__(message)


class Overloaded(NotAnswered):
    """Raised if workers only answered that they are overloaded, until the time limit. The request was not carried out;
    sending it again later with the same id is safe.
    """


class NoStack(LeaseholdError):  # noqa: N818 - see the module docstring
    """Raised if the caller gave no URL of Redis, and no stack runs in this folder or above."""


class UntrustedFolder(LeaseholdError):  # noqa: N818 - see the module docstring
    """Raised if a folder `.leasehold` belongs to another user, or if other users may write to it. No file in the folder
    was used.
    """


class BadCredentials(LeaseholdError):  # noqa: N818 - see the module docstring
    """Raised if a key file, a key or the name of a principal (a sender of messages) is invalid. The message does not
    contain the key.
    """


class Unavailable(LeaseholdError, ConnectionError):  # noqa: N818 - see the module docstring
    """Raised if Redis is unreachable, or if it has no valid view (the copy of the scheduler's state). No data is lost;
    try again later.
    """


class Unknown(LeaseholdError, LookupError):  # noqa: N818 - see the module docstring
    """Raised if the view in Redis has no reservation or slot with this id. An ended reservation leaves the view after
    ten minutes.
    """


class Ended(LeaseholdError):  # noqa: N818 - see the module docstring
    """Raised if a reservation ended in another phase than the one that the caller waited for. `phase`: the phase in
    which it ended; `reason`: why it ended, None if no reason is known. `code`: the waiting code that the wait read
    last, None if it read none.
    """

    def __init__(self, reservation: str, phase: str, reason: str | None, code: str | None = None) -> None:
        self.reservation, self.phase, self.reason, self.code = reservation, phase, reason, code
        waited = f" (it waited with {code})" if code else ""
        super().__init__(f"{reservation} is {phase}" + (f": {reason}" if reason else "") + waited)


class CannotBeServed(LeaseholdError):  # noqa: N818 - see the module docstring
    """Raised if a reservation waits although no slot and no launch can serve it, so that only other rules or hosts
    would end the wait. `code`: its waiting code (`never_fits` or `no_pool`); `reason`: the sentence of the last tick.
    """

    def __init__(self, reservation: str, code: str, reason: str) -> None:
        self.reservation, self.code, self.reason = reservation, code, reason
        super().__init__(f"{reservation} cannot be served: {code}: {reason}")


def read_faults(errors: Iterable[Mapping[str, Any]]) -> list[Fault]:
    """Return the faults in the field `errors` of a worker's answer, in their order. If an entry lacks a part, its fault
    gets a placeholder, for example "something else" for `expected`.
    """
    return [
        Fault(
            index=int(each.get("index", 0)),
            path=str(each.get("path", ".")),
            expected=str(each.get("expected", "something else")),
            got=str(each.get("got", "this")),
            code=None if each.get("code") is None else str(each["code"]),
        )
        for each in errors
    ]
