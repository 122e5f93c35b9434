"""Step 7, keep: the minimum and the warm reserve of each pool. Source: the autoscaler's tick."""

from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.scaling.launch_limits import LaunchLimits
from scheduler.policy.scaling.offerings import list_choices, list_eligible


def keep(cycle: CycleState, limits: LaunchLimits) -> None:
    """Launch what each pool lacks of `min_slots` and then of `target_warm_slots`, within its limits."""
    for name, slot_infos in cycle.pools.items():
        pool = cycle.rules.pools[name]
        if pool.is_elastic:
            if pool.min_slots:
                _launch(limits, cycle, name, "minimum", pool.min_slots - count_serving(slot_infos))
            if pool.target_warm_slots:
                _launch(limits, cycle, name, "warm", pool.target_warm_slots - count_reserve(slot_infos))


def count_serving(slot_infos: list[SlotInfo]) -> int:
    """Slots that are ready or on their way and not cordoned: only these count towards `min_slots`."""
    return sum(slot_info.is_serving for slot_info in slot_infos)


def count_reserve(slot_infos: list[SlotInfo]) -> int:
    """Ready slots without a lease plus slots in flight, cordoned ones aside, that nobody waits for."""
    return sum(
        slot_info.is_idle or (slot_info.is_serving and slot_info.is_coming and not slot_info.wanted)
        for slot_info in slot_infos
    )


def _launch(limits: LaunchLimits, cycle: CycleState, name: str, reason: str, lacking: int) -> None:
    """Launch so many, each the first choice that nothing holds back, as long as there is one.

    Where launches are withheld from those who wait, none is made that would be the next to make way for them.
    """
    if lacking <= 0 or cycle.withheld_launches.get(name):
        return
    pool = cycle.rules.pools[name]
    choices = list_eligible(list_choices(pool), pool)
    for _ in range(lacking):
        free = next((choice for choice in choices if limits.find_code(name, choice) is None), None)
        if free is None:
            return
        limits.launch(name, free, reason)
