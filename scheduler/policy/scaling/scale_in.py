"""Step 8, scale in: drain slots that were idle for too long. Source: the autoscaler's tick."""

from scheduler.model.decisions import Drain
from scheduler.policy.cycle.step_values import ScaledIn, Warm
from scheduler.policy.scaling.warm_pool import count_reserve, count_serving


def scale_in(cycle: Warm) -> ScaledIn:
    """Drain ready slots without leases that were idle for longer than `idle_scale_down` seconds, strictly.

    A pool keeps `min_slots` slots in service and `target_warm_slots` in reserve. The slot that was idle longest goes
    first, then slot order.
    """
    for name, slot_infos in cycle.pools.items():
        pool = cycle.rules.pools[name]
        idle = [slot_info for slot_info in slot_infos if slot_info.is_idle] if pool.is_elastic else []
        if not idle:
            continue
        idle.sort(key=lambda slot_info: (slot_info.idle_since, slot_info.order))
        spare = min(count_serving(slot_infos) - pool.min_slots, count_reserve(slot_infos) - pool.target_warm_slots)
        for slot_info in idle[: max(0, spare)]:
            if cycle.is_past(slot_info.idle_since, pool.idle_scale_down):
                cycle.decide(Drain(slot=slot_info.slot.id, reason="idle"))
                slot_info.state = "draining"
            else:
                cycle.timers.add_after(slot_info.idle_since, pool.idle_scale_down)
    return ScaledIn(cycle)
