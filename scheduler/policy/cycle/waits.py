"""Sentences of waits that several steps of a cycle report."""

from collections.abc import Sequence

from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.state import CycleState


def wait_for(cycle: CycleState, name: str, slot_infos: Sequence[SlotInfo]) -> None:
    """Report that a reservation waits for these slots, on which it has capacity.

    Slots in flight: `booting`. If all of them are ready, the capacity became available during this cycle, or the
    reservation was preempted in it; the next cycle places it.
    """
    awaited = [f"{each.slot.id} ({each.state})" for each in slot_infos if each.state != "ready"]
    if awaited:
        cycle.wait(name, "booting", f"waits for {', '.join(dict.fromkeys(awaited))}")
    elif any(each.id == name for each in cycle.preempted):
        cycle.wait(name, "no_capacity", "was preempted in this tick; the next one places it")
    else:
        cycle.wait(name, "no_capacity", "capacity became available during this tick; the next one places it")
