"""The waiting codes of reservations for which nothing can be launched, and their sentences."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

DETAILS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "behind_queue": "an earlier reservation has waited for so long that no later one may overtake it",
        "at_max_slots": "a launch would serve the reservation, but no slot is left within max_slots",
        "at_quota": "a launch would serve the reservation, but EC2's quota is reached",
        "over_budget": "a launch would serve the reservation, but it would exceed a budget",
        "capacity": "EC2 is short of capacity in every offering that could serve the reservation",
        "throttled": "EC2 asked us to slow down; launches of this pool are paused",
        "misconfigured": "EC2 refused the last launch as misconfigured, or for lack of permission",
        "gang_incomplete": "some of its instances would fit, but not all",
        "cordoned": "only cordoned slots have room for the reservation",
        "no_capacity": "no slot has room for the reservation, and none can be launched",
    }
)
"""Waiting code -> the sentence that explains it for a reservation that no launch serves."""
ORDER_OF_CODES: Final = (
    *("behind_queue", "at_max_slots", "at_quota", "over_budget", "capacity", "throttled", "misconfigured"),
)
"""Waiting codes in order: if several apply, the first one is reported."""
CLOSING: Final = frozenset({"at_max_slots", "at_quota", "over_budget"})
"""Waiting codes of launches for reservations, because of which their pool launches nothing for its warm reserve or its
stopped tier.
"""
OF_A_MARKET: Final = frozenset({"at_quota", "over_budget", "capacity", "misconfigured", "no_capacity"})
"""Waiting codes that may be due to the turn of a market. For example, it is on-demand's turn in a pool, and EC2's quota
prevents only on-demand launches.
"""


def first_code(codes: Iterable[str | None]) -> str:
    """Return the waiting code to report if these are the reasons that prevent the possible launches: the first one in
    ORDER_OF_CODES. Return "" if there is no reason, or if one is None (that launch is possible).
    """
    found = set(codes)
    return "" if None in found else next((code for code in ORDER_OF_CODES if code in found), "")
