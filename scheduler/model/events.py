"""Events: entries of the history, each about one change of state, with its time and cause. An event is stored in the
same transaction as its change.
"""

import msgspec

from scheduler.model.transitions import Cause


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One entry of the history: a change of state. `name` starts with `slot_` or `reservation_`; `at` is in seconds
    since the epoch.
    """

    at: float
    name: str
    cause: Cause
    slot: str | None = None
    reservation: str | None = None
    detail: dict[str, str | int | float | bool | list[str | float] | None] = {}
    number: int = 0
    """Number of the event in the order of the history, given by the database; 0 before the event is stored."""
    principal: str | None = None
    """Name of the principal whose request caused the event. None: no request caused it, or the request
    was not signed.
    """
