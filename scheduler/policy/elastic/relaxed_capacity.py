"""The capacity of the ready slots if all elastic instances that may be reclaimed were gone.

Under load most pending reservations would not fit even then. A sum shows it, and no instance is moved to find out.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scheduler.model.resources import Resources, subtract
from scheduler.policy.capacity.requests import Demand, InstanceRequest
from scheduler.policy.capacity.slot_index import SlotIndex
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.elastic.instances import ElasticInstance

ROUNDING = 1e-6
"""This part of an instance may be missing: sums of fractions are not exact, and no fitting demand may be refused."""


@dataclass(slots=True)
class _Headroom:
    """What one slot could take: an upper bound of `find_obstacle`, which a search asks afterwards."""

    slot_info: SlotInfo
    free: Resources | None
    leases: float
    """The number of leases that it could take in addition."""

    def count(self, need: InstanceRequest, most: int) -> int:
        """Return how many instances would fit, up to `most`."""
        pool = self.slot_info.slot.pool
        if self.leases <= 0 or pool not in need.given or not need.could_hold(pool, None, self.slot_info.labels):
            return 0
        fit = min(self.leases, most)
        if self.free is not None:
            for name, amount in need.given[pool].items():
                if amount > 0:
                    fit = min(fit, self.free.get(name, 0) / amount + ROUNDING)
        return int(fit)


class RelaxedCapacity:
    """Sums over slots. Essential instances that are placed are subtracted, and nothing is ever added."""

    def __init__(self, slot_index: SlotIndex, elastic_instances: Iterable[ElasticInstance]) -> None:
        self.size = len(slot_index)
        """The number of slots at the start; the starvation guard may remove some later."""
        self._refused: list[tuple[InstanceRequest, int]] = []
        """(request, number of instances) that do not fit."""
        self._headrooms: dict[int, _Headroom] = {}
        for slot_info in slot_index.list_slot_infos():
            leases = min(slot_info.pool.lease_limit - slot_info.load, slot_info.uses_left)
            self._headrooms[slot_info.order] = _Headroom(slot_info, slot_info.free, leases)
        for elastic_instance in elastic_instances:
            stands_on = elastic_instance.slot_info
            if stands_on is None or (headroom := self._headrooms.get(stands_on.order)) is None:
                continue
            headroom.leases += 1
            if headroom.free is not None:
                amounts = elastic_instance.amounts_on(stands_on)
                headroom.free = {name: free + amounts.get(name, 0) for name, free in headroom.free.items()}

    def could_hold(self, demand: Demand) -> bool:
        """Return whether the instances of each component would fit if they were alone; if not, no search helps."""
        return all(self._could_hold(need, count, demand.declined) for need, count in Counter(demand.needs).items())

    def _could_hold(self, need: InstanceRequest, count: int, declined: Sequence[str]) -> bool:
        if any(count >= refused and need.asks_as_much_as(other) for other, refused in self._refused):
            return False
        left = count
        for headroom in self._headrooms.values():
            if headroom.slot_info.slot.id not in declined:
                left -= headroom.count(need, left)
            if left <= 0:
                return True
        if not declined:
            self._refused.append((need, count))
        return False

    def take(self, needs: Sequence[InstanceRequest], slot_infos: Sequence[SlotInfo]) -> None:
        """Subtract requests that were placed on these slots, or keep their capacity; only ready slots count."""
        for need, slot_info in zip(needs, slot_infos, strict=False):
            headroom = self._headrooms.get(slot_info.order)
            if headroom is not None:
                headroom.leases -= 1
                headroom.free = (
                    None if headroom.free is None else subtract(headroom.free, need.given[slot_info.slot.pool])
                )
