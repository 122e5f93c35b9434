"""The cost of a lease for its account per second, under the setting `charge_by`."""

from collections.abc import Mapping
from math import isfinite
from typing import Final, assert_never

from scheduler.model.rules import Pool, SchedulerKeys
from scheduler.model.slots import Slot
from scheduler.policy.capacity.slot_info import capacity_of

_SECONDS_OF_AN_HOUR: Final = 3600.0


def weigh(given: Mapping[str, float], slot: Slot, pool: Pool, settings: SchedulerKeys) -> float:
    """Return what a lease with the amounts `given` of a slot costs per second.

    `lease`: 1, one worker (qscheduler). `dominant_share`: the largest share of any resource of the slot, or of its
    `max_leases_per_slot` (dominant resource fairness). `price`: dollars, the price of its slot.
    """
    match settings.charge_by:
        case "lease":
            return 1.0
        case "dominant_share":
            return _dominant_share(given, slot, pool)
        case "price":
            return (slot.price or 0.0) / _SECONDS_OF_AN_HOUR
        case _:
            assert_never(settings.charge_by)


def _dominant_share(given: Mapping[str, float], slot: Slot, pool: Pool) -> float:
    capacity = capacity_of(slot, pool) or {}
    shares = [amount / capacity[name] for name, amount in given.items() if capacity.get(name, 0) > 0]
    if isfinite(pool.lease_limit):
        shares.append(1.0 / pool.lease_limit)
    return max(shares, default=1.0)
