"""Events: what happened, when, and by which cause; appended with the change itself, in one transaction."""

import msgspec

from scheduler.model.transitions import Cause


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One change of state. `name` is `slot_…` or `reservation_…`; `at` in seconds since the epoch."""

    at: float
    name: str
    cause: Cause
    slot: str | None = None
    reservation: str | None = None
    detail: dict[str, str | int | float | bool | list[str | float] | None] = {}
    number: int = 0
    """The running number that the store gave it; 0 before it is stored."""
    principal: str | None = None
    """The principal whose message caused it; None: no message did, or it was not signed."""
