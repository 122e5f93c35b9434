"""Metrics of committed changes, and the numbers of waiting reservations that a tick reports."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from scheduler.explain.conditions import is_at_quota
from scheduler.model.accounts import FREE, PAID, find_account, level_of
from scheduler.model.decisions import Plan
from scheduler.model.events import Event
from scheduler.model.reservations import Reservation
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot
from scheduler.model.transitions import INACTIVE
from scheduler.model.view import View
from scheduler.operations.unit_of_work import ChangeSet
from scheduler.operations.writers.slots import BOOTING
from scheduler.ports import Meter

TO_LEASE: Final = "leasehold_time_to_lease_seconds"
TO_STATE: Final = {"slot_binding": "leasehold_boot_seconds", "slot_ready": "leasehold_time_to_ready_seconds"}
NOT_A_WAIT: Final = frozenset({"booting", "on_hold"})
"""Codes of reservations that have a slot in flight, or were put on hold."""
LEVELS: Final = range(FREE + 1)
"""The paid levels and the free one."""

SPENT: Final = "leasehold_account_spent_total"
PREEMPTIONS: Final = "leasehold_preemptions_total"
PREEMPTED: Final = "leasehold_preempted_total"
LOST: Final = frozenset({"gone", "lost"})
"""Reasons of an empty slot whose machine had disappeared."""


def count_changes(meter: Meter, change_set: ChangeSet) -> None:
    """Count the boots, times, payments and preemptions of a committed change."""
    _count_boots(meter, change_set)
    _observe_times(meter, change_set)
    _count_spending(meter, change_set)


def _count_boots(meter: Meter, change_set: ChangeSet) -> None:
    """Count the outcomes of boots, and machines that disappeared. Source: Arvados."""
    for event in change_set.events:
        slot = change_set.slots.get(event.slot or "")
        state = str(event.detail.get("from", ""))
        if slot is None:
            continue
        if (ended := _outcome_of(event, state)) is not None:
            meter.count("leasehold_boot_outcomes_total", {"pool": slot.pool, "outcome": ended})
        if event.name == "slot_empty" and state != "terminating" and event.detail.get("reason") in LOST:
            meter.count("leasehold_slot_disappeared_total", {"state": state})


def _outcome_of(event: Event, state: str) -> str | None:
    """Return the outcome of the boot that this event ended; None if it ended none."""
    if state not in BOOTING:
        return None
    match event.name:
        case "slot_ready":
            return "success"
        case "slot_terminating":
            return "failure" if event.detail.get("reason") == "timeout" else "aborted"
        case "slot_empty":
            return "disappeared"
        case _:
            return None


def _observe_times(meter: Meter, change_set: ChangeSet) -> None:
    """Observe the time from submit to the first lease (source: Orchard), and the times from EC2's answer until a
    machine runs and until it serves (source: Arvados).
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


def _count_spending(meter: Meter, change_set: ChangeSet) -> None:
    """Count what accounts paid for leases, and for each preemption the account that gained and the one that lost."""
    for account, spent in change_set.spent.items():
        for level in PAID:
            if spent[level]:
                meter.count(SPENT, _label(account, level), spent[level])
    rows = {row.id: row for row in change_set.rows if isinstance(row, Reservation)}
    for event in change_set.events:
        if isinstance(victims := event.detail.get("preempted"), list):
            _count_preemption(meter, PREEMPTIONS, event, rows, "level", len(victims))
        if "by" in event.detail:
            _count_preemption(meter, PREEMPTED, event, rows, "ran_at", 1)


def _count_preemption(
    meter: Meter, name: str, event: Event, rows: Mapping[str, Reservation], key: str, amount: int
) -> None:
    row, level = rows.get(event.reservation or ""), event.detail.get(key)
    if row is not None and isinstance(level, int):
        meter.count(name, _label(row.request.account or "", level), amount)


def _label(account: str, level: int) -> dict[str, str]:
    return {"account": account, "level": str(level)}


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


def describe_account_waits(plan: Plan, view: View) -> Mapping[str, list[int]]:
    """Return for each account how many waiting reservations would be placed at each level, the free one last.

    The level follows from the account's present balance. Accounts without waiting reservations are missing.
    """
    accounts, rows = view.accounts, view.reservations
    if not accounts:
        return {}
    # Find the level once for each account: a hundred thousand reservations of ten accounts may wait.
    counted = Counter(
        account.id
        for name in plan.waiting.names
        if (row := rows.get(name)) is not None
        and (account := find_account(accounts, row.request.account, row.sequence)) is not None
    )
    levels = {name: level_of(accounts[name].balance) for name in counted}
    return {name: [count if level == levels[name] else 0 for level in LEVELS] for name, count in counted.items()}
