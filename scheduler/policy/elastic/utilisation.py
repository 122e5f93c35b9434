"""How much of the pools is in use, of which only differences count: what `flexible` compares, in the cascade and under
`quota`.
"""

from collections.abc import Mapping
from typing import Final

from scheduler.model.resources import Resources
from scheduler.policy.capacity.slot_info import SlotInfo

MORE: Final = 1e-9
"""What differs by less does not differ: sums of fractions are not exact."""


def weigh_use(slot_info: SlotInfo, amounts: Resources, have: Mapping[str, Resources]) -> float:
    """What a lease of so much on this place adds to the use of its pool: the sum over its resources of (amount leased /
    amount that the pool has), or 1 where the leases alone are counted. `have`: by pool, what its slots in service have.
    Source: Zoe's flexible heuristic.
    """
    if slot_info.capacity is None:
        return 1.0
    all_of_it = have[slot_info.slot.pool]
    return sum(amount / all_of_it[name] for name, amount in amounts.items() if all_of_it.get(name))
