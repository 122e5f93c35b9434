"""How long things take and who waits: durations for the metrics, and what a tick reports of those who wait."""

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
"""Codes of those who have a slot on its way, or are to wait."""


def observe_times(meter: Meter, change_set: ChangeSet) -> None:
    """Time from submit to the first lease (Orchard), and of machines from EC2's answer until they run and until they
    serve (Arvados).
    """
    waits = (event.detail.get("waited") for event in change_set.events)
    meter.observe_all(TO_LEASE, {}, [waited for waited in waits if isinstance(waited, float)])
    for event in change_set.events:
        slot = change_set.slots.get(event.slot or "")
        if event.name in TO_STATE and slot is not None and _was_launched(slot):
            meter.observe(TO_STATE[event.name], {"pool": slot.pool}, max(0.0, event.at - (slot.last_seen or event.at)))


def _was_launched(slot: Slot) -> bool:
    """Whether a launch of ours was answered: then `last_seen` is when."""
    return slot.launch_id is not None and slot.last_seen is not None


def describe_waits(plan: Plan, view: View, rules: Rules, now: float) -> dict[str, Any]:
    """`codes`: how many wait by code; `longest_wait`: seconds since the submit of the one that waits longest, those
    on hold or with a slot on its way aside; `at_quota`: the pools whose launches a quota holds back.
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
