"""The idle slots of a kept cycle, by pool. Their numbers decide whether a full cycle would launch or end a slot.

For example, a slot is launched if fewer than `target_warm_slots` are idle. A slot is drained if more are idle, and one
has been idle for longer than `idle_scale_down`.
"""

from collections.abc import Container

from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.scaling.launch_limits import LaunchLimits
from scheduler.policy.scaling.pool_size import count_serving


class IdleSlots:
    """The idle slots of each elastic pool (a pool that launches EC2 machines) in a kept cycle. No slot of the cycle may
    be in flight.
    """

    def __init__(self, cycle: CycleState, limits: LaunchLimits) -> None:
        self._cycle, self._limits = cycle, limits
        self._serving = {
            name: count_serving(each) for name, each in cycle.pools.items() if each and each[0].pool.is_elastic
        }
        self._stopped = {
            name: sum(each.state == "stopped" and not each.slot.cordoned for each in cycle.pools[name])
            for name in self._serving
            if cycle.rules.pools[name].stopped_slots
        }
        self._idle: dict[str, dict[int, SlotInfo]] = {
            name: {each.order: each for each in cycle.pools[name] if each.is_idle} for name in self._serving
        }
        self._oldest: dict[str, float] = {}
        """Pool -> the time from which on its longest idle slot has been idle. A pool is missing if its idle slots have
        changed since this time was computed.
        """

    def note(self, slot_info: SlotInfo) -> None:
        """Record that a slot has a new row or other leases, so that it may be idle now or not be idle any more."""
        name = slot_info.slot.pool
        idle = self._idle.get(name)
        if idle is None:
            return
        if slot_info.is_idle:
            idle[slot_info.order] = slot_info
        elif idle.pop(slot_info.order, None) is None:
            return
        self._oldest.pop(name, None)

    def stay(self, withheld: Container[str]) -> bool:
        """Return True if a full cycle would neither launch nor end a slot in this tick; else False. If True, schedule a
        cycle for the time when the first idle slot is to be drained.

        `withheld`: pools with launches that only `max_slots` or EC2's quota withholds. In these pools an idle slot ends
        at once, so that a launch can replace it.
        """
        return all(self._stays(name, withheld) for name in self._idle)

    def _stays(self, name: str, withheld: Container[str]) -> bool:
        pool, idle = self._cycle.rules.pools[name], self._idle[name]
        if pool.stopped_slots and self._stopped[name] != pool.stopped_slots:
            return False
        spare = min(self._serving[name] - pool.min_slots, len(idle) - pool.target_warm_slots)
        lacks = self._serving[name] < pool.min_slots or len(idle) < pool.target_warm_slots
        if (lacks and self._limits.count_left(name)) or (idle and name in withheld):
            return False
        if not idle or spare <= 0:
            return True
        if name not in self._oldest:
            self._oldest[name] = min(each.idle_since for each in idle.values())
        self._cycle.timers.add_after(self._oldest[name], pool.idle_scale_down)
        return not self._cycle.is_past(self._oldest[name], pool.idle_scale_down)
