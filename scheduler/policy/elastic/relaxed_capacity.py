"""The ready places as they would be without the elastic instances that may be taken off them.

Most of those who wait under load fit not even there: they are known by adding up, and nothing is moved to find out.
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
"""So much of an instance may be missing: sums of fractions are not exact, and nobody is to be refused for that."""


@dataclass(slots=True)
class _Room:
    """What one place would have."""

    slot_info: SlotInfo
    free: Resources | None
    leases: float
    """How many more it may take."""

    def count(self, need: InstanceRequest, most: int) -> int:
        """How many instances would fit, up to so many."""
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
    """Sums over places; what essential instances take of these is taken here too, and nothing ever comes back."""

    def __init__(self, slot_index: SlotIndex, elastic_instances: Iterable[ElasticInstance]) -> None:
        self.size = len(slot_index)
        """How many places there were: some may be kept for somebody later on."""
        self._refused: list[tuple[InstanceRequest, int]] = []
        """Of so many instances of this there is no room."""
        self._slot_index: dict[int, _Room] = {}
        for slot_info in slot_index.list_slot_infos():
            leases = min(slot_info.pool.lease_limit - slot_info.load, slot_info.uses_left)
            self._slot_index[slot_info.order] = _Room(slot_info, slot_info.free, leases)
        for elastic_instance in elastic_instances:
            if elastic_instance.slot_info is not None and elastic_instance.slot_info.order in self._slot_index:
                self._lift(
                    self._slot_index[elastic_instance.slot_info.order], elastic_instance, elastic_instance.slot_info
                )

    def _lift(self, room: _Room, elastic_instance: ElasticInstance, slot_info: SlotInfo) -> None:
        room.leases += 1
        if room.free is not None:
            amounts = elastic_instance.amounts_on(slot_info)
            room.free = {name: free + amounts.get(name, 0) for name, free in room.free.items()}

    def could_hold(self, demand: Demand) -> bool:
        """Whether the instances of each of its components would fit if they were alone; if not, no search helps."""
        return all(self._could_hold(need, count, demand.declined) for need, count in Counter(demand.needs).items())

    def _could_hold(self, need: InstanceRequest, count: int, declined: Sequence[str]) -> bool:
        if any(count >= refused and need.asks_as_much_as(other) for other, refused in self._refused):
            return False
        left = count
        for room in self._slot_index.values():
            if room.slot_info.slot.id not in declined:
                left -= room.count(need, left)
            if left <= 0:
                return True
        if not declined:
            self._refused.append((need, count))
        return False

    def take(self, needs: Sequence[InstanceRequest], slot_infos: Sequence[SlotInfo]) -> None:
        """These got, or keep, their room there; of places that are not ready nothing is known here."""
        for need, slot_info in zip(needs, slot_infos, strict=False):
            room = self._slot_index.get(slot_info.order)
            if room is not None:
                room.leases -= 1
                room.free = None if room.free is None else subtract(room.free, need.given[slot_info.slot.pool])
