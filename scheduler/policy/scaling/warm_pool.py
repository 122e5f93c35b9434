"""Step 7, warm pool: launch the minimum and the warm reserve of each pool. Source: the autoscaler's tick."""

from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.step_values import Headroom, Healed, Warm
from scheduler.policy.scaling.launch_limits import LaunchLimits
from scheduler.policy.scaling.offerings import list_choices, list_eligible


def fill_warm_pools(cycle: Healed, headroom: Headroom, limits: LaunchLimits) -> Warm:
    """Launch what each pool lacks of `min_slots`, then of `target_warm_slots`, within its limits.

    A pool whose launches for reservations are withheld gets none: such a slot would be the first to make headroom.
    """
    for name, slot_infos in cycle.pools.items():
        pool = cycle.rules.pools[name]
        if pool.is_elastic and not headroom.launches.get(name):
            if pool.min_slots:
                _launch(limits, name, "minimum", pool.min_slots - count_serving(slot_infos))
            if pool.target_warm_slots:
                _launch(limits, name, "warm", pool.target_warm_slots - count_reserve(slot_infos))
    return Warm(cycle)


def count_serving(slot_infos: list[SlotInfo]) -> int:
    """Count the slots that are ready or in flight and not cordoned; `min_slots` is compared with this number."""
    return sum(slot_info.is_serving for slot_info in slot_infos)


def count_reserve(slot_infos: list[SlotInfo]) -> int:
    """Count the idle ready slots and the slots in flight without a reservation that waits for them; cordoned ones do
    not count. `target_warm_slots` is compared with this number.
    """
    return sum(
        slot_info.is_idle or (slot_info.is_serving and slot_info.is_coming and not slot_info.wanted)
        for slot_info in slot_infos
    )


def _launch(limits: LaunchLimits, name: str, reason: str, lacking: int) -> None:
    """Launch `lacking` slots, each of the first offering that nothing holds back; stop when there is none."""
    if lacking <= 0:
        return
    pool = limits.pool(name)
    choices = list_eligible(list_choices(pool), pool)
    for _ in range(lacking):
        free = next((choice for choice in choices if limits.find_code(name, choice) is None), None)
        if free is None:
            return
        limits.launch(name, free, reason)
