"""What the host side of commands needs of the scheduler: the requests of a host about the commands of its leases."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

import msgspec

from leasehold.client.models import LeaseKey
from leasehold.errors import Refused

Why = Literal["exited", "signal", "not_started", "out_of_memory", "revoked", "fenced", "limit", "lost"]
"""How a command ended. `revoked`: the host ended it because its lease ends. `fenced`: the host ended it because it had
no answer of the scheduler in time. `lost`: the host does not know.
"""


class Taken(NamedTuple):
    """The answer to a request for a command: the command as JSON text, and its signature for this one request."""

    command: str
    signature: str


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended, with the end of its output (`tail`) and the number of bytes that it printed."""

    why: Why
    exit_code: int | None = None
    signal: int | None = None
    error: str | None = None
    """One line about a command that did not start, was lost, or could not be ended completely."""
    tail: str = ""
    bytes: int = 0


class Printed(NamedTuple):
    """The end of the output of a running command."""

    key: LeaseKey
    tail: str
    bytes: int


class Renewed(NamedTuple):
    """A lease was renewed; it expires `ttl` seconds later; None: never."""

    ttl: float | None


class CommandsPort(Protocol):
    """The requests of one run of a host's agent, each about several leases. They raise NotAnswered and Unavailable, and
    Refused if a request is refused as a whole. All may be repeated. Several threads may send them at the same time.
    """

    def take(self, nonces: Mapping[LeaseKey, str]) -> Mapping[LeaseKey, Taken | Refused]:
        """Ask for the commands of leases. `nonces`: by lease, a random text for this request alone."""

    def started(self, keys: Sequence[LeaseKey]) -> Mapping[LeaseKey, Refused]:
        """Report that the commands of leases run. Return the refusals."""

    def output(self, reports: Sequence[Printed]) -> None:
        """Report the output of running commands. A refused report is dropped."""

    def exited(self, outcomes: Mapping[LeaseKey, Outcome]) -> Mapping[LeaseKey, Refused]:
        """Report how the commands of leases ended. Return the refusals."""

    def renew(self, keys: Sequence[LeaseKey]) -> Mapping[LeaseKey, Renewed | Refused]:
        """Renew leases. A lease without an answer is missing in the result."""

    def now(self) -> float:
        """Return cluster time in seconds since the epoch."""
