"""The utilisation of pools, which `flexible` compares in the cascade and under `quota`. Only differences matter."""

from collections.abc import Mapping
from typing import Final

from scheduler.model.resources import Resources
from scheduler.policy.capacity.slot_info import SlotInfo

MORE: Final = 1e-9
"""Smaller differences do not count: sums of fractions are not exact."""


def weigh_use(slot_info: SlotInfo, amounts: Resources, have: Mapping[str, Resources]) -> float:
    """Return what a lease with these amounts adds to the utilisation of its pool.

    It is the sum over its resources of (amount leased / amount that the pool has), or 1 if the slot counts leases only.
    `have`: by pool, the sum of its slots in service. Source: Zoe's flexible heuristic.
    """
    if slot_info.capacity is None:
        return 1.0
    all_of_it = have[slot_info.slot.pool]
    return sum(amount / all_of_it[name] for name, amount in amounts.items() if all_of_it.get(name))
