"""Events: entries of the history, each about one change of state, with its time and cause. An event is stored in the
same transaction as its change.
"""

from typing import Final

import msgspec

from scheduler.model.transitions import PHASES, SLOT_STATES, Cause

EVENT_NAMES: Final = (
    *(f"reservation_{phase}" for phase in PHASES),
    *("reservation_submitted", "reservation_granted", "reservation_revoked", "reservation_claimed"),
    *("reservation_unclaimed", "reservation_relevelled", "reservation_cores", "reservation_moved"),
    "reservation_restored",
    *(f"slot_{state}" for state in SLOT_STATES),
    *("slot_adopted", "slot_asked_again", "slot_end_refused", "slot_interrupted", "slot_maintenance", "slot_removed"),
    *("slot_stop_done", "slot_stop_refused"),
    *("account_set", "account_reset", "account_forgotten", "principal_added", "principal_rotated", "principal_removed"),
    *("principal_granted", "principal_withdrawn"),
    *(
        "host_joined",
        "host_join_refused",
        "key_set_aside",
        "machine_end_refused",
        "machine_orphaned",
        "message_refused",
        "register_refused",
    ),
    *("restored", "rules_changed"),
)
"""The names of all events."""


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
