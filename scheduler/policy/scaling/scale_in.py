"""Step 8, shrink: what has been idle for too long is drained. Source: the autoscaler's tick."""

from scheduler.model.decisions import Drain
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.scaling.warm_pool import count_reserve, count_serving


def shrink(cycle: CycleState) -> None:
    """Drain ready slots without leases that were idle strictly longer than `idle_scale_down`.

    Only while more than `min_slots` serve and more than `target_warm_slots` are in reserve; the one that is
    idle longest goes first, then slot order. A leased slot never goes, whatever its age.
    """
    for name, slot_infos in cycle.pools.items():
        pool = cycle.rules.pools[name]
        idle = (
            sorted((slot_info for slot_info in slot_infos if slot_info.is_idle), key=_longest_first)
            if pool.is_elastic
            else ()
        )
        if not idle:
            continue
        spare = min(count_serving(slot_infos) - pool.min_slots, count_reserve(slot_infos) - pool.target_warm_slots)
        for slot_info in idle[: max(0, spare)]:
            if cycle.is_past(slot_info.idle_since, pool.idle_scale_down):
                cycle.decide(Drain(slot=slot_info.slot.id, reason="idle"))
                slot_info.state = "draining"


def _longest_first(slot_info: SlotInfo) -> tuple[float, object]:
    """Who has been idle longest goes first, then slot order."""
    return (slot_info.idle_since, slot_info.order)
