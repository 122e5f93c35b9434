"""The values of the port to the database that are no rows of `scheduler.model`: answers, callbacks, principals, rules
with their history, and the filter of events.
"""

from typing import Any

import msgspec

from scheduler.model.principals import Principal, Right
from scheduler.model.reservations import Callback
from scheduler.model.rules import Rules
from scheduler.model.view import Kind
from scheduler.protocol.verbs import Role


class StoredAnswer(msgspec.Struct, frozen=True):
    """The stored answer to a request that was carried out. A repetition of the request gets this answer and changes
    nothing.
    """

    id: str
    at: float
    answer: dict[str, Any]
    principal: str | None = None
    """The principal that signed the request. Only this principal gets the stored answer. None: the request was not
    signed.
    """


class Pending(msgspec.Struct, frozen=True):
    """How many pending reservations a principal or an account has, and how many instances they request together."""

    reservations: int = 0
    instances: int = 0


class OutboxMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A callback (Celery task for a producer) in the outbox. It is sent again and again until the broker accepts it."""

    id: str
    callback: Callback
    payload: dict[str, Any]
    created_at: float
    sent_at: float = 0.0
    attempts: int = 0


class StoredPrincipal(msgspec.Struct, frozen=True, kw_only=True):
    """A principal (the sender of signed messages) with its key as text. `previous_key` is also valid until
    `previous_until`. `machine`: the only machine for which the key of a host counts; None: any.
    """

    name: str
    role: Role
    accounts: tuple[str, ...] = ()
    key: str
    created_at: float
    previous_key: str | None = None
    previous_until: float | None = None
    rights: tuple[Right, ...] = ()
    machine: str | None = None

    def __repr__(self) -> str:
        """Return the principal as text without its keys."""
        return f"StoredPrincipal(name={self.name!r}, role={self.role!r}, accounts={self.accounts!r})"

    @property
    def principal(self) -> Principal:
        """Return the name, role, accounts, rights and machine of the principal, without keys and times."""
        return Principal(
            name=self.name, role=self.role, accounts=self.accounts, rights=self.rights, machine=self.machine
        )

    def list_keys(self, now: float) -> list[str]:
        """Return the keys of this principal that are valid at `now`."""
        is_previous_valid = self.previous_until is not None and now < self.previous_until
        return [self.key, *([self.previous_key] if self.previous_key is not None and is_previous_valid else [])]


class RowVersion(msgspec.Struct, frozen=True, gc=False):
    """The version of a row in the database and the time of its last write (`marked_at`). They show which copies of the
    row are outdated.
    """

    kind: Kind
    id: str
    version: int
    marked_at: float
    is_over: bool = False
    """Whether the row is a reservation that has ended and will not be restarted. The view need not contain it."""


class StoredRules(msgspec.Struct, frozen=True):
    """The rules in force. `version` counts their changes; 0: none were applied. `document`: the document that was
    applied. `rules`: this document, parsed. `images`: the ids of the images that the document names by a source, as
    source -> id.
    """

    version: int
    document: dict[str, Any]
    rules: Rules
    images: dict[str, str] = {}


class AppliedRules(msgspec.Struct, frozen=True):
    """One entry in the history of the rules: the document, its version, when it was applied, and the ids of the images
    that it names by a source (source -> id).
    """

    version: int
    applied_at: float
    document: dict[str, Any]
    images: dict[str, str] = {}


class EventFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions for the events to read. An event must match all conditions that are given. `after`: only events with a
    higher number than this. `without`: only events with another name than this.
    """

    after: int = 0
    reservation: str | None = None
    slot: str | None = None
    name: str | None = None
    without: str | None = None
    newest: bool = False
    """True: read the last `limit` matching events; False: the first `limit`. In both cases the oldest comes first."""
    limit: int = 1000
