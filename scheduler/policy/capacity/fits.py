"""The rule of capacity: whether leases fit on a slot and, if not, why. The planner and the commit use this rule alone.

The planner's classes `RemainingCapacity` and `Requirements` keep the answers of `find_obstacle`, so that slots that are
alike are tested once.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from scheduler.model.pools import Pool
from scheduler.model.reservations import Component, Lease, LeaseState
from scheduler.model.resources import SLACK, Resources, subtract, total
from scheduler.model.slots import Slot

Obstacle = Literal["leases", "uses", "resources"]
"""What a slot has too little of for one more lease: places for leases (`leases`), uses of its machine (`uses`, see
`max_uses`), or an amount (`resources`).
"""
Moment = Literal["now", "later", "always"]
"""Which leases on a slot count when its use is measured. `now`: held and revoking leases. `later`: held and claimed
leases. `always`: the greater of the two uses, in number and in each resource.
"""


def find_obstacle(
    request: Resources, free: Resources | None, leases: float = inf, uses: float = inf, count: int = 1
) -> Obstacle | None:
    """Return why `count` more leases do not fit on a slot; None if they fit.

    `request`: the sum of the amounts of these leases. `free`: the slot's amounts that no lease uses; None: the slot
    counts leases only. `leases`: how many more leases the slot can take. `uses`: how many leases its machine can take
    before it is replaced. A request that is equal to the free amounts fits. Source: Orchard.
    """
    if leases < count:
        return "leases"
    if uses < count:
        return "uses"
    return "resources" if free is not None and not fits(request, free) else None


def fits(request: Resources, free: Resources) -> bool:
    """Return whether each amount of `request` is at most the amount of the same resource in `free` (0 if `free` does
    not name it).
    """
    for name, amount in request.items():  # noqa: SIM110  a generator takes three times as long
        if amount > 0 and amount > free.get(name, 0) + SLACK:
            return False
    return True


@dataclass(slots=True)
class Usage:
    """A number of leases (`count`), and the sum of their amounts by resource (`amounts`)."""

    count: int = 0
    amounts: dict[str, float] = field(default_factory=dict)

    def add(self, amounts: Resources, times: int = 1) -> None:
        """Add `times` leases with these amounts each to this sum; a negative number removes leases."""
        self.count += times
        for name, amount in amounts.items():
            self.amounts[name] = self.amounts.get(name, 0) + times * amount


class Occupancy:
    """The number and the amounts of the leases on a slot, summed separately for held, revoking and claimed leases."""

    __slots__ = ("_usages",)

    def __init__(self, leases: Collection[Lease] = ()) -> None:
        self._usages: dict[LeaseState, Usage] = {"held": Usage(), "revoking": Usage(), "claimed": Usage()}
        for lease in leases:
            self.add(lease.state, lease.resources)

    def add(self, state: LeaseState, amounts: Resources, times: int = 1) -> None:
        """Add `times` leases of this state with these amounts each to the sums; a negative number removes leases."""
        self._usages[state].add(amounts, times)

    @property
    def claims(self) -> int:
        """The number of leases in the state `claimed`."""
        return self._usages["claimed"].count

    def sum(self) -> Usage:
        """Return what the leases use: held + max(revoking, claimed), by number and by resource.

        The maximum is taken because a claimed lease begins only when the revoking leases have ended: they never use
        the slot together. A new lease must fit beside the revoking leases now and beside the claimed ones later.
        """
        held, revoking, claimed = self._usages.values()
        if not revoking.count and not claimed.count:
            return Usage(held.count, dict(held.amounts))
        names = {**revoking.amounts, **claimed.amounts}
        larger = {name: max(revoking.amounts.get(name, 0), claimed.amounts.get(name, 0)) for name in names}
        return Usage(held.count + max(revoking.count, claimed.count), total([held.amounts, larger]))


def measure(leases: Collection[Lease], moment: Moment = "always") -> Usage:
    """Return the number of the leases that count at `moment`, and the sum of their amounts. `now`: held and revoking
    leases count. `later`: held and claimed leases. `always`: the greater of these two uses, in number and in each
    resource.
    """
    if moment != "always":
        absent = "claimed" if moment == "now" else "revoking"
        leases = [lease for lease in leases if lease.state != absent]
    elif "claimed" in [lease.state for lease in leases]:
        return Occupancy(leases).sum()
    # Speed: without claims, or without revoking leases, the maximum is the sum. Few slots have both.
    return Usage(len(leases), total([lease.resources for lease in leases]))


def capacity_of(slot: Slot, pool: Pool) -> Resources | None:
    """Return the resources of a slot: of its row, else of its offering, else of its pool. Return None if none of them
    has resources: the slot counts leases only.
    """
    if slot.resources is not None:
        return slot.resources
    offering = pool.offering_by_key.get(slot.offering or "")
    return offering.resources if offering is not None and offering.resources is not None else pool.resources


def given_to(component: Component, pool: Pool) -> dict[str, float]:
    """Return the amounts by resource that an instance of `component` gets in a pool: what the component requests, and
    for other resources the pool's `default_resources`.
    """
    return {**pool.default_resources, **component.resources} if pool.default_resources else component.resources


def find_obstacle_on(slot: Slot, pool: Pool, component: Component, used: Usage, uses: float = inf) -> Obstacle | None:
    """Return what a slot has too little of for one more instance of `component`; None if the instance fits.

    `used`: what the leases on the slot use. `uses`: how many more leases the slot's machine can take.
    """
    capacity = capacity_of(slot, pool)
    free = subtract(capacity, used.amounts) if capacity is not None and used.amounts else capacity
    return find_obstacle(given_to(component, pool), free, pool.lease_limit - used.count, uses)


def is_overfull(usage: Usage, lease_limit: float, capacity: Resources | None) -> bool:
    """Return whether the leases on a slot exceed it: all together would not fit even on the empty slot.

    This happens when a host registers again with fewer resources.
    """
    return find_obstacle(usage.amounts, capacity, lease_limit, count=usage.count) is not None
