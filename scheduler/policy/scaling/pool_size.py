"""How many machines each pool keeps.

There are four parts: the minimum (`min_slots`), the warm pool (`target_warm_slots`), the stopped tier
(`stopped_slots`), and scale-in. Slots that scale-in would drain fill the stopped tier first.

Sources: the autoscaler, a project that Leasehold follows; EC2 Auto Scaling (the stopped tier).
"""

from collections.abc import Sequence

from scheduler.model.decisions import Drain, Stop, Terminate
from scheduler.model.pools import Pool
from scheduler.policy.capacity.slot_info import SlotInfo, find_life
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.cycle.step_values import Headroom, Healed, ScaledIn, Tiered, ToStop, Warm
from scheduler.policy.scaling.launch_limits import LaunchLimits
from scheduler.policy.scaling.offerings import has_to_go, is_in_tier, list_choices, list_eligible


def fill_warm_pools(cycle: Healed, headroom: Headroom, limits: LaunchLimits) -> Warm:
    """Launch the slots that each pool needs to reach `min_slots`, then the slots that it needs to reach
    `target_warm_slots`, within the limits. If the pool has a stopped slot that can be started, and its offering is one
    that this launch could choose, the stopped slot is started instead.

    The minimum of every pool goes before the warm slots of any pool, because a limit over all pools may allow only some
    of these slots. In a pool where `max_slots` withholds launches for reservations, this function launches and starts
    nothing: a warm slot there would be the first to end for headroom. The same is true for the warm slots of a pool
    where EC2's quota or a budget withholds such launches.
    """
    pools = [(name, pool) for name, pool in cycle.rules.pools.items() if pool.is_elastic]
    open_pools = [(name, pool) for name, pool in pools if not headroom.beyond.get(name)]
    for name, pool in open_pools:
        if pool.min_slots:
            _launch(limits, name, "minimum", pool.min_slots - count_serving(cycle.pools[name]))
    for name, pool in open_pools:
        if pool.target_warm_slots and name not in headroom.closed:
            _launch(limits, name, "warm", pool.target_warm_slots - count_reserve(cycle.pools[name]))
    return Warm(cycle)


def count_serving(slot_infos: Sequence[SlotInfo]) -> int:
    """Return the number of slots that are ready or in flight and not cordoned. `min_slots` is compared with it."""
    return sum(slot_info.is_serving for slot_info in slot_infos)


def count_reserve(slot_infos: Sequence[SlotInfo]) -> int:
    """Return the number of idle slots, and of slots in flight that no reservation waits for; cordoned slots do not
    count. `target_warm_slots` is compared with it.
    """
    return sum(
        slot_info.is_idle or (slot_info.is_serving and slot_info.is_coming and not slot_info.wanted)
        for slot_info in slot_infos
    )


def _launch(limits: LaunchLimits, name: str, reason: str, lacking: int) -> None:
    """Launch up to `lacking` slots in a pool, each with the first offering that can be launched, or start stopped
    slots. Stop when no offering can be launched any more.
    """
    for _ in range(lacking):
        choices = limits.list_next(name)
        started = limits.find_start([name])
        if started is not None and any(choice.key == started[2].key for choice in choices):
            limits.start(*started, reason)
            continue
        free = next((choice for choice in choices if limits.find_code(name, choice) is None), None)
        if free is None:
            return
        limits.launch(name, free, reason)


def keep_tiers(cycle: Warm, headroom: Headroom, limits: LaunchLimits) -> tuple[Tiered, ToStop]:
    """Bring the stopped tier of each pool to `stopped_slots` machines. If it has more, terminate the rest. If it has
    fewer, stop idle slots that the pool does not need, and launch the machines that are then still missing.

    Slots that the pool needs for `min_slots` and `target_warm_slots` are not stopped. A pool where `max_slots`, EC2's
    quota or a budget withholds launches for reservations launches no machine for its tier. Return two things: (1)
    `cycle`, typed as the result of this step; (2) pool -> how many slots in flight or idle are to be stopped later.
    """
    to_stop: dict[str, int] = {}
    for name, pool in cycle.rules.pools.items():
        if not pool.stopped_slots:
            continue
        slot_infos = cycle.pools[name]
        present = [each for each in slot_infos if each.state == "stopped" and not each.slot.cordoned]
        lacking = pool.stopped_slots - len(present)
        if lacking < 0:
            _end_surplus(cycle, [each for each in present if is_in_tier(each)], -lacking)
            continue
        lacking -= _stop_surplus(cycle, _list_idle(slot_infos, headroom, limits), slot_infos, pool, lacking)
        if lacking:
            may_launch = name not in headroom.closed and not headroom.beyond.get(name)
            stoppable = _launch_for_tier(cycle, limits, name, lacking, may_launch=may_launch)
            to_stop[name] = min(lacking, stoppable)
    return Tiered(cycle), to_stop


def _end_surplus(cycle: CycleState, present: Sequence[SlotInfo], count: int) -> None:
    """Terminate `count` of these stopped slots: drifted and old ones first, then the most expensive, then in slot
    order.
    """
    ranked = sorted(present, key=lambda each: (not has_to_go(each, cycle.now), -each.price, each.order))
    for slot_info in ranked[:count]:
        cycle.move_slot(slot_info, Terminate(slot=slot_info.slot.id, reason="surplus"))


def _stop_surplus(
    cycle: CycleState, idle: Sequence[SlotInfo], slot_infos: Sequence[SlotInfo], pool: Pool, lacking: int
) -> int:
    """Stop up to `lacking` slots of `idle` that the pool does not need, longest idle first. Return the number of
    stopped slots.

    A slot that was launched for the tier is stopped as soon as it is ready; other slots are stopped when they were idle
    for longer than `idle_scale_down`.
    """
    stopped, most = 0, min(lacking, count_spare(slot_infos, pool))
    stoppable = [each for each in idle if may_be_stopped(cycle, each)]
    for slot_info in sorted(stoppable, key=lambda each: (each.idle_since, each.order)):
        slot = slot_info.slot
        if stopped >= most:
            break
        if slot.launch_reason == "stopped" and not slot.uses:
            cycle.move_slot(slot_info, Stop(slot=slot.id, reason="booted"))
        elif cycle.is_past(slot_info.idle_since, pool.idle_scale_down):
            cycle.move_slot(slot_info, Stop(slot=slot.id, reason="idle"))
        else:
            cycle.timers.add_after(slot_info.idle_since, pool.idle_scale_down)
            continue
        stopped += 1
    return stopped


def _list_idle(slot_infos: Sequence[SlotInfo], headroom: Headroom, limits: LaunchLimits) -> list[SlotInfo]:
    """Return the slots that may end because they are idle.

    An idle slot stays during a back-off for its own quota if a reservation needs it together with launches that are
    withheld. If it ended, fewer slots would be active, the back-off would end early, and the same machine would be
    launched again, which is no more than the quota allowed before.
    """
    return [
        each
        for each in slot_infos
        if each.is_idle and not (each.slot.id in headroom.spared and limits.refusals.is_at_quota(each.slot))
    ]


def count_spare(slot_infos: Sequence[SlotInfo], pool: Pool) -> int:
    """Return how many slots scale-in may take from a pool: those beyond `min_slots` and `target_warm_slots`."""
    return min(count_serving(slot_infos) - pool.min_slots, count_reserve(slot_infos) - pool.target_warm_slots)


def may_be_stopped(cycle: CycleState, slot_info: SlotInfo) -> bool:
    """Return whether the slot's machine may be stopped once it is idle: it is on-demand, and it need not be replaced.
    If it may, schedule a cycle for the time when it will be too old.
    """
    if slot_info.market != "on-demand":
        return False
    if slot_info.state != slot_info.slot.state or not slot_info.pool.replacement.is_on:
        return True
    has_drifted, end = find_life(slot_info, slot_info.pool)
    if has_drifted or cycle.is_due(end):
        return False
    cycle.timers.add(end)
    return True


def _launch_for_tier(cycle: CycleState, limits: LaunchLimits, name: str, lacking: int, *, may_launch: bool) -> int:
    """Launch machines for the stopped tier, each with the cheapest on-demand offering that can be launched. Return how
    many slots of the pool, in flight or idle, may be stopped later.

    `lacking`: how many machines the tier lacks. The launches end when at least this number of slots may be stopped
    later and are beyond `min_slots` and `target_warm_slots`. `may_launch` False: launch nothing.
    """
    slot_infos, pool = cycle.pools[name], cycle.rules.pools[name]
    reserve = [each for each in slot_infos if each.is_idle or (each.is_serving and each.is_coming and not each.wanted)]
    stoppable = sum(may_be_stopped(cycle, each) for each in reserve)
    spare = count_spare(slot_infos, pool)
    choices = list_eligible([each for each in list_choices(pool) if each.market == "on-demand"], pool)
    while may_launch and lacking > max(0, min(stoppable, spare)):
        free = next((choice for choice in choices if limits.find_code(name, choice) is None), None)
        if free is None:
            break
        limits.launch(name, free, "stopped")
        stoppable, spare = stoppable + 1, spare + 1
    return stoppable


def scale_in(cycle: Tiered, headroom: Headroom, limits: LaunchLimits, to_stop: ToStop) -> ScaledIn:
    """Drain ready slots that had no lease for more than `idle_scale_down` seconds.

    A pool keeps `min_slots` slots in service, `target_warm_slots` in reserve, and those that are to be stopped later
    (`to_stop`). The slot that was idle longest goes first; of equal ones the first in slot order.
    """
    for name, pool in cycle.rules.pools.items():
        slot_infos = cycle.pools[name] if pool.is_elastic else []
        idle = _list_idle(slot_infos, headroom, limits)
        if not idle:
            continue
        idle.sort(key=lambda slot_info: (slot_info.idle_since, slot_info.order))
        for slot_info in idle[: max(0, count_spare(slot_infos, pool) - to_stop.get(name, 0))]:
            if cycle.is_past(slot_info.idle_since, pool.idle_scale_down):
                cycle.move_slot(slot_info, Drain(slot=slot_info.slot.id, reason="idle"))
            else:
                cycle.timers.add_after(slot_info.idle_since, pool.idle_scale_down)
    return ScaledIn(cycle)
