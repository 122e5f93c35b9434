"""The rule of capacity: whether leases fit on a slot and, if not, why. The planner and the commit use this rule alone.

The tables of the planner (`RemainingCapacity`, `Requirements`) keep the answers of `find_obstacle`, so that slots that
are alike are tested once.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from scheduler.model.reservations import Lease, LeaseState
from scheduler.model.resources import Resources, fits, total

Obstacle = Literal["leases", "uses", "resources"]
"""What a slot lacks: room for one more lease, uses of its machine (`max_uses`), or an amount of a resource."""
Moment = Literal["now", "later", "always"]
"""Which leases count. `now`: held and revoking ones. `later`: held and claimed ones. `always`: both
moments count."""


def find_obstacle(
    request: Resources, free: Resources | None, leases: float = inf, uses: float = inf, count: int = 1
) -> Obstacle | None:
    """Return why `count` more leases do not fit on a slot; None if they fit.

    `request`: the amounts of these leases together. `free`: the amounts that no lease uses; None: the slot counts
    leases only. `leases`: the number of leases that the slot can take in addition. `uses`: the number of leases that
    its machine can take before it is replaced. Exactly as much as is free fits. Source: Orchard.
    """
    if leases < count:
        return "leases"
    if uses < count:
        return "uses"
    if free is not None and not fits(request, free):
        return "resources"
    return None


@dataclass(slots=True)
class Usage:
    """A number of leases, and their amounts together."""

    count: int = 0
    amounts: dict[str, float] = field(default_factory=dict)

    def add(self, amounts: Resources, times: int = 1) -> None:
        """Add leases with these amounts; a negative number removes them."""
        self.count += times
        for name, amount in amounts.items():
            self.amounts[name] = self.amounts.get(name, 0) + times * amount


class Occupancy:
    """The leases on a slot, added up by state."""

    __slots__ = ("_usages",)

    def __init__(self, leases: Collection[Lease] = ()) -> None:
        self._usages: dict[LeaseState, Usage] = {"held": Usage(), "revoking": Usage(), "claimed": Usage()}
        for lease in leases:
            self.add(lease.state, lease.resources)

    def add(self, state: LeaseState, amounts: Resources, times: int = 1) -> None:
        """Add leases of this state; a negative number removes them."""
        self._usages[state].add(amounts, times)

    def sum(self) -> Usage:
        """Return what the leases use: held + max(revoking, claimed), by number and by resource.

        The maximum is taken because a claimed lease begins only when the revoking leases have ended: they never use
        the slot together. A new lease must fit beside the revoking leases now and beside the claimed ones later.
        """
        held, revoking, claimed = self._usages.values()
        names = {**revoking.amounts, **claimed.amounts}
        larger = {name: max(revoking.amounts.get(name, 0), claimed.amounts.get(name, 0)) for name in names}
        return Usage(held.count + max(revoking.count, claimed.count), total([held.amounts, larger]))


def measure(leases: Collection[Lease], moment: Moment = "always") -> Usage:
    """Return what these leases use of their slot at a moment."""
    if moment != "always":
        absent = "claimed" if moment == "now" else "revoking"
        leases = [lease for lease in leases if lease.state != absent]
    elif "claimed" in [lease.state for lease in leases]:
        return Occupancy(leases).sum()
    # Speed: without claims, or without revoking leases, the maximum is the sum. Few slots have both.
    return Usage(len(leases), total([lease.resources for lease in leases]))


def is_overfull(usage: Usage, lease_limit: float, capacity: Resources | None) -> bool:
    """Return whether leases exceed their slot: they would not fit on it if it were empty.

    This happens when a host registers again with less than before.
    """
    return find_obstacle(usage.amounts, capacity, lease_limit, count=usage.count) is not None
