"""Durations for the metrics, and what a tick reports of waiting reservations."""

from collections import Counter
from typing import Any, Final

from scheduler.explain.conditions import is_at_quota
from scheduler.model.decisions import Plan
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot
from scheduler.model.transitions import INACTIVE
from scheduler.model.view import View
from scheduler.operations.unit_of_work import ChangeSet
from scheduler.ports import Meter

TO_LEASE: Final = "leasehold_time_to_lease_seconds"
TO_STATE: Final = {"slot_binding": "leasehold_boot_seconds", "slot_ready": "leasehold_time_to_ready_seconds"}
NOT_A_WAIT: Final = frozenset({"booting", "on_hold"})
"""Codes of reservations that have a slot in flight, or were put on hold."""


def observe_times(meter: Meter, change_set: ChangeSet) -> None:
    """Observe the time from submit to the first lease (source: Orchard), and the times from EC2's answer until a
    machine
    runs and until it serves (source: Arvados).
    """
    waits = (event.detail.get("waited") for event in change_set.events)
    meter.observe_all(TO_LEASE, {}, [waited for waited in waits if isinstance(waited, float)])
    for event in change_set.events:
        slot = change_set.slots.get(event.slot or "")
        if event.name in TO_STATE and slot is not None and _was_launched(slot):
            meter.observe(TO_STATE[event.name], {"pool": slot.pool}, max(0.0, event.at - (slot.last_seen or event.at)))


def _was_launched(slot: Slot) -> bool:
    """Return whether EC2 answered a launch of this slot: then `last_seen` is the time of the answer."""
    return slot.launch_id is not None and slot.last_seen is not None


def describe_waits(plan: Plan, view: View, rules: Rules, now: float) -> dict[str, Any]:
    """Return the numbers of waiting reservations.

    `codes`: number by code. `longest_wait`: seconds since the oldest submit, without reservations in NOT_A_WAIT.
    `at_quota`: pools whose launches an EC2 quota holds back.
    """
    begun = (
        row.created_at
        for name, (code, _) in plan.waiting.items()
        if code not in NOT_A_WAIT and (row := view.reservations.get(name)) is not None
    )
    return {
        "codes": Counter(code for code, _ in plan.waiting.reasons),
        "longest_wait": max(0.0, now - min(begun, default=now)),
        "at_quota": [name for name in rules.pools if _is_at_quota(view, name, now)],
    }


def _is_at_quota(view: View, pool: str, now: float) -> bool:
    holds = [each for each in view.holds.values() if each.pool == pool and each.kind == "quota"]
    if not holds:
        return False
    active = sum(slot.pool == pool and slot.state not in INACTIVE for slot in view.slots.values())
    return is_at_quota(holds, pool, active, now)
