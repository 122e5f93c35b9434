"""Events: entries of the history that record what changed, when, and by which cause. An event is stored in the
transaction of its change.
"""

import msgspec

from scheduler.model.transitions import Cause


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One change of state in the history. `name` is `slot_…` or `reservation_…`; `at` is in seconds since the epoch."""

    at: float
    name: str
    cause: Cause
    slot: str | None = None
    reservation: str | None = None
    detail: dict[str, str | int | float | bool | list[str | float] | None] = {}
    number: int = 0
    """Running number that the database gave the event; 0 before the event is stored."""
    principal: str | None = None
    """Name of the principal whose message caused the event. None: no message did, or the message was not signed."""
