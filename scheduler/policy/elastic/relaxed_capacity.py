"""Relaxed capacity: what ready slots would have left without the elastic instances that may be reclaimed. (The names
with `headroom` in this module mean the relaxed capacity of single slots, and not slots that end for withheld launches.)

Under load most pending reservations would not fit even then. Comparing sums shows this without moving an instance.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from scheduler.model.resources import Resources, subtract
from scheduler.policy.capacity.candidate_queue import RemainingCapacity, SlotClass
from scheduler.policy.capacity.requests import Demand, InstanceRequest
from scheduler.policy.capacity.slot_index import SlotIndex
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.elastic.instances import ElasticInstance

ROUNDING: Final = 1e-6
"""A tolerance, as a fraction of one instance: capacity for at least 1 - ROUNDING instances counts as capacity for one.
Sums of fractions are not exact, and a demand that fits must not be refused.
"""
_Headroom = tuple[float, tuple[tuple[str, float], ...] | None]
"""The relaxed capacity of one slot: (number of further leases, amounts by resource). Amounts None: the slot counts
leases only.

The numbers may be too high; a search applies the exact rule, `find_obstacle`, afterwards.
"""


def _count_fits(headroom: _Headroom, amounts: Resources, most: int) -> int:
    """Return how many instances with these amounts would fit into the relaxed capacity of a slot, at most `most`."""
    leases, free = headroom
    fit = min(leases, most)
    if free is not None:
        left = dict(free)
        for name, amount in amounts.items():
            if amount > 0:
                fit = min(fit, left.get(name, 0) / amount + ROUNDING)
    return int(fit)


@dataclass(slots=True, eq=False)
class _ClassHeadroom:
    """The relaxed capacity of the slots of one pool with equal labels: what each would have left without its elastic
    instances that may be reclaimed. `counts`: relaxed capacity -> the number of slots that have it.
    """

    slot_class: SlotClass
    counts: Counter[_Headroom] = field(default_factory=Counter)

    def move(self, before: _Headroom | None, after: _Headroom | None) -> None:
        """Record that the relaxed capacity of one slot (what it would have left after all possible reclaims) changed
        from `before` to `after`. `before` None: the slot is new. `after` None: the slot is not counted any more.
        """
        if before is not None and before[0] > 0:
            self.counts[before] -= 1
            if not self.counts[before]:
                del self.counts[before]
        if after is not None and after[0] > 0:
            self.counts[after] += 1

    def could_serve(self, need: InstanceRequest) -> bool:
        """Return whether the pool and the labels of these slots meet a request. Amounts are not tested."""
        pool = self.slot_class.pool
        return pool in need.given and need.could_hold(pool, None, self.slot_class.labels)

    def count_fits(self, need: InstanceRequest, most: int) -> int:
        """Return how many instances of a request would fit on these slots, up to `most`."""
        if not self.could_serve(need):
            return 0
        found = 0
        for headroom, count in self.counts.items():
            found += count * _count_fits(headroom, need.given[self.slot_class.pool], most)
            if found >= most:
                return most
        return found


class RelaxedCapacity:
    """The relaxed capacity of all slots of some indexes: what each slot would have left if all its elastic instances
    that may be reclaimed were gone. Instances that are placed are subtracted; no capacity is ever added.

    Slots that are alike in pool, labels and relaxed capacity are counted together, so that a search examines few
    entries.
    """

    def __init__(self, slot_indexes: Collection[SlotIndex], elastic_instances: Iterable[ElasticInstance]) -> None:
        self._slot_indexes, self.size = slot_indexes, sum(map(len, slot_indexes))
        self._refused: list[tuple[InstanceRequest, int]] = []
        """Requests that are known not to fit, as (request, number of instances of it)."""
        self._classes: dict[SlotClass, _ClassHeadroom] = {}
        self._of: dict[int, tuple[SlotInfo, _ClassHeadroom, _Headroom]] = {}
        """Position in slot order -> (slot, the object that counts the slots of its pool and labels, its relaxed
        capacity). Relaxed capacity: what the slot would have left after all possible reclaims.
        """
        standing: dict[int, list[ElasticInstance]] = {}
        for each in elastic_instances:
            if each.slot_info is not None:
                standing.setdefault(each.slot_info.order, []).append(each)
        alike: dict[RemainingCapacity, _Headroom] = {}
        for slot_info in chain.from_iterable(each.list_slot_infos() for each in slot_indexes):
            slot_class: SlotClass = slot_info.slot_class
            known = self._classes.get(slot_class) or self._classes.setdefault(slot_class, _ClassHeadroom(slot_class))
            if (elastic := standing.get(slot_info.order)) is not None:
                headroom = _find_headroom(slot_info, elastic)
            elif slot_info.remaining in alike:
                headroom = alike[slot_info.remaining]
            else:
                headroom = alike[slot_info.remaining] = _find_headroom(slot_info, ())
            known.move(None, headroom)
            self._of[slot_info.order] = slot_info, known, headroom

    def could_hold(self, demand: Demand) -> bool:
        """Return whether the instances of each component would fit if no other component were placed. If they would
        not, no reclaim helps.
        """
        return all(self._could_hold(need, count, demand.declined) for need, count in Counter(demand.needs).items())

    def _could_hold(self, need: InstanceRequest, count: int, declined: Sequence[str]) -> bool:
        if any(count >= refused and need.asks_as_much_as(other) for other, refused in self._refused):
            return False
        found = self.count_fits(need, count, declined)
        if found < count and not declined:
            self._refused.append((need, count))
        return found >= count

    def could_hold_with(self, other: "RelaxedCapacity", demand: Demand) -> bool:
        """Return whether the instances of each component would fit on the slots of this object and of `other` together,
        if no other component were placed.
        """
        return all(
            self.count_fits(need, count, demand.declined) + other.count_fits(need, count, demand.declined) >= count
            for need, count in Counter(demand.needs).items()
        )

    def count_fits(self, need: InstanceRequest, most: int, declined: Sequence[str]) -> int:
        """Return how many instances of a request, up to `most`, would fit on the slots whose ids are not in
        `declined`.
        """
        self._forget_removed()
        found = 0
        if not declined:
            for each in self._classes.values():
                found += each.count_fits(need, most - found)
                if found >= most:
                    break
            return found
        for slot_info, known, headroom in self._of.values():
            if headroom[0] > 0 and slot_info.slot.id not in declined and known.could_serve(need):
                found += _count_fits(headroom, need.given[slot_info.slot.pool], most - found)
                if found >= most:
                    break
        return found

    def _forget_removed(self) -> None:
        """Remove the slots that left the indexes, because the starvation guard keeps them for reservations."""
        if self.size == sum(map(len, self._slot_indexes)):
            return
        self.size = sum(map(len, self._slot_indexes))
        for order, (slot_info, known, headroom) in list(self._of.items()):
            if not any(each.has(slot_info) for each in self._slot_indexes):
                known.move(headroom, None)
                del self._of[order]

    def take(self, needs: Sequence[InstanceRequest], slot_infos: Sequence[SlotInfo]) -> None:
        """Subtract requests from the relaxed capacity of slots (what they would have left after all possible reclaims).
        The request `needs[i]` was placed on the slot `slot_infos[i]`, or capacity is kept for it there.
        """
        for need, slot_info in zip(needs, slot_infos, strict=True):
            if (present := self._of.get(slot_info.order)) is None:
                continue
            _, known, before = present
            leases, free = before
            left = None if free is None else tuple(subtract(dict(free), need.given[slot_info.slot.pool]).items())
            after = (leases - 1, left)
            known.move(before, after)
            self._of[slot_info.order] = slot_info, known, after


def _find_headroom(slot_info: SlotInfo, standing: Sequence[ElasticInstance]) -> _Headroom:
    """Return the relaxed capacity of a slot: what it would have left without the elastic instances `standing`, which
    are on it.
    """
    leases = min(slot_info.pool.lease_limit - slot_info.load, slot_info.uses_left) + len(standing)
    if slot_info.free is None:
        return leases, None
    free: Mapping[str, float] = slot_info.free
    for each in standing:
        amounts = each.amounts_on(slot_info)
        free = {name: amount + amounts.get(name, 0) for name, amount in free.items()}
    return leases, tuple(free.items())
