"""Steps 6 and 8: at quota or full, unneeded slots make room for launches that are withheld.

Source: Arvados' "at quota". There the pass stops at the first one over quota and idle machines are shut down; here
only unneeded slots go, and only as many as launches are withheld.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from math import inf
from typing import Final

from scheduler.model.decisions import Drain, Terminate
from scheduler.model.slots import Slot
from scheduler.model.transitions import INACTIVE
from scheduler.policy.capacity.gang import fill
from scheduler.policy.capacity.requests import Demand, InstanceRequest
from scheduler.policy.capacity.slot_index import SlotIndex
from scheduler.policy.capacity.slot_info import SlotInfo, make_slot_info
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.scaling.launch_limits import LaunchLimits
from scheduler.policy.scaling.offerings import Choice

_MOST: Final = 1 << 32
"""More slots than any pool has."""
_ROOM_ALONE: Final = frozenset({None, "behind_queue", "at_max_slots", "at_quota"})
"""With one of these codes a launch would be made if there were room enough, for those before it too."""


def release(cycle: CycleState) -> None:
    """For each launch that this tick withholds from one who waits, one unneeded slot of that pool goes.

    Unneeded: no lease, nothing set against it in this tick, not cordoned. Those in flight go first, then the one
    that is idle longest, then slot order; `idle_scale_down`, `min_slots` and `target_warm_slots` protect none.
    Slots that drain or terminate already count as room being made.
    """
    for name, slot_infos in cycle.pools.items():
        if not (count := cycle.withheld_launches.get(name, 0)):
            continue
        in_the_making = sum(slot_info.state in {"draining", "terminating"} for slot_info in slot_infos)
        for slot_info in _list_unneeded(cycle, slot_infos)[: max(0, count - in_the_making)]:
            _let_go(cycle, slot_info)


def _list_unneeded(cycle: CycleState, slot_infos: list[SlotInfo]) -> list[SlotInfo]:
    """In the order in which they go; what was launched in this very tick is none of them."""
    unneeded = (
        slot_info for slot_info in slot_infos if _is_unneeded(slot_info) and slot_info.slot.id not in cycle.spared
    )
    return sorted(unneeded, key=lambda slot_info: (not slot_info.is_coming, slot_info.idle_rank, slot_info.order))


def _is_unneeded(slot_info: SlotInfo) -> bool:
    if slot_info.wanted:
        return False
    is_coming = slot_info.is_coming and slot_info.slot.state not in INACTIVE and not slot_info.slot.cordoned
    return slot_info.pool.is_elastic and (slot_info.is_idle or is_coming)


def _let_go(cycle: CycleState, slot_info: SlotInfo) -> None:
    if slot_info.is_coming:
        cycle.decide(Terminate(slot=slot_info.slot.id, reason="at_quota"))
        slot_info.state = "terminating"
    else:
        cycle.decide(Drain(slot=slot_info.slot.id, reason="at_quota"))
        slot_info.state = "draining"


def count_withheld(cycle: CycleState, limits: LaunchLimits) -> None:
    """Work out, by pool, the launches that would be made if there were room, several small ones sharing one slot;
    and which slots a gang would use besides. Where launches are withheld, none is made to keep a minimum or reserve.
    """
    if not cycle.withheld or not any(_could_matter(slot_infos, limits) for slot_infos in cycle.pools.values()):
        return
    wanted = {slot_info.slot.id for slot_info in cycle.all_slots() if slot_info.wanted}
    cycle.withheld_launches = _imagine_launches(cycle, limits)
    for slot_info in cycle.all_slots():
        if slot_info.wanted and slot_info.slot.id not in wanted:
            slot_info.wanted = False
            cycle.spared.add(slot_info.slot.id)


def _could_matter(slot_infos: list[SlotInfo], limits: LaunchLimits) -> bool:
    """Whether the pool has a slot to let go, or may launch one that would be the next to go."""
    if not slot_infos or not slot_infos[0].pool.is_elastic:
        return False
    pool = slot_infos[0].pool
    keeps = pool.min_slots > 0 or pool.target_warm_slots > 0
    return any(map(_is_unneeded, slot_infos)) or (keeps and limits.count_left(slot_infos[0].slot.pool) > 0)


def _imagine_launches(cycle: CycleState, limits: LaunchLimits) -> dict[str, int]:
    most_room = {name: _count_room(slot_infos, limits) for name, slot_infos in cycle.pools.items() if slot_infos}
    wish = _WhatIf(limits, {name: index * _MOST for index, name in enumerate(cycle.pools, 1)}, most_room)
    slot_index = [cycle.ready, *cycle.kept.values(), cycle.coming, cycle.launched, wish.slot_index]
    most = {name: len(slot_infos) * _could_matter(slot_infos, limits) for name, slot_infos in cycle.pools.items()}
    done: set[Demand] = set()
    for demand in cycle.withheld:
        if demand in done:
            continue
        if all(wish.by_quota[name] + wish.by_limit[name] >= most[name] for name in demand.pools):
            done.add(demand)
            continue
        wish.begin(demand)
        if fill(demand, slot_index, wish.launch) is None:
            wish.undo()
            done.add(demand)
    return wish.count()


def _count_room(slot_infos: list[SlotInfo], limits: LaunchLimits) -> int:
    """Launches that the pool could hold if all that may go went: more than that no slot that goes would help."""
    goes = sum(_is_unneeded(slot_info) or slot_info.state in {"draining", "terminating"} for slot_info in slot_infos)
    name = slot_infos[0].slot.pool
    return min(limits.find_bound(name), limits.count_left(name) + goes)


@dataclass
class _WhatIf:
    """Launches as they would be made, were it not for `max_slots` and quota."""

    limits: LaunchLimits
    orders: dict[str, int]
    """Where the order of each pool's begins: pools as configured, behind all slots."""
    most_room: dict[str, int]
    """By pool: launches that there could be room for."""
    slot_index: SlotIndex = field(default_factory=lambda: SlotIndex([]))
    by_quota: Counter[str] = field(default_factory=Counter)
    by_limit: Counter[str] = field(default_factory=Counter)
    demand: Demand | None = None
    made: list[tuple[SlotInfo, Counter[str]]] = field(default_factory=list)
    made_in: Counter[str] = field(default_factory=Counter)
    """By pool: how many of them."""
    numbers: Iterator[int] = field(default_factory=count)
    """Of the places, those that were undone too: no two stand in the same order."""

    def begin(self, demand: Demand) -> None:
        """The launches from now on are for this one."""
        self.demand, self.made, self.made_in = demand, [], Counter()

    def launch(self, need: InstanceRequest) -> SlotInfo | None:
        """The slot that would be launched for one instance, in the first pool where room is all that it lacks."""
        assert self.demand is not None, "begin() goes before"  # noqa: S101
        for name, choice, code in self.limits.list_choices(self.demand, need):
            if code not in _ROOM_ALONE or not self.limits.lacks_only_room(name, choice):
                continue
            if self.made_in[name] >= self.most_room.get(name, 0):
                continue
            counter = self.by_quota if self.limits.is_at_quota(name, choice.market) else self.by_limit
            slot_info = self._imagine(name, choice)
            counter[name] += 1
            self.made.append((slot_info, counter))
            self.made_in[name] += 1
            self.slot_index.add(slot_info)
            return slot_info
        return None

    def _imagine(self, name: str, choice: Choice) -> SlotInfo:
        number = next(self.numbers)
        slot = Slot(id=f"{name}+{number}", pool=name, state="launching")
        slot_info = make_slot_info(slot, self.limits.pool(name), self.orders[name] + number)
        slot_info.capacity = slot_info.free = choice.capacity
        slot_info.labels, slot_info.idle_since = choice.labels, inf
        return slot_info

    def undo(self) -> None:
        """The present one cannot be served whole, so nothing would be launched for it."""
        for slot_info, counter in self.made:
            counter[slot_info.slot.pool] -= 1
            self.slot_index.remove(slot_info)

    def count(self) -> dict[str, int]:
        """By pool: what a quota withholds, and what goes beyond the slots that are left within `max_slots`."""
        return {
            name: self.by_quota[name] + max(0, self.by_limit[name] - self.limits.count_left(name))
            for name in {**self.by_quota, **self.by_limit}
        }
