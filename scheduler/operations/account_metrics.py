"""Metrics of accounts: waiting reservations, payments and preemptions."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from scheduler.model.accounts import FREE, PAID, find_account, level_of
from scheduler.model.decisions import Plan
from scheduler.model.events import Event
from scheduler.model.reservations import Reservation
from scheduler.model.view import View
from scheduler.operations.unit_of_work import ChangeSet
from scheduler.ports import Meter

LEVELS: Final = range(FREE + 1)
"""The paid levels and the free one."""

SPENT: Final = "leasehold_account_spent_total"
PREEMPTIONS: Final = "leasehold_preemptions_total"
PREEMPTED: Final = "leasehold_preempted_total"


def count_spending(meter: Meter, change_set: ChangeSet) -> None:
    """Count what accounts paid for leases, and for each preemption the account that gained and the one that lost."""
    for account, spent in change_set.spent.items():
        for level in PAID:
            if spent[level]:
                meter.count(SPENT, _labels(account, level), spent[level])
    rows = {row.id: row for row in change_set.rows if isinstance(row, Reservation)}
    for event in change_set.events:
        if isinstance(victims := event.detail.get("preempted"), list):
            _count(meter, PREEMPTIONS, event, rows, "level", len(victims))
        if "by" in event.detail:
            _count(meter, PREEMPTED, event, rows, "ran_at", 1)


def _count(meter: Meter, name: str, event: Event, rows: Mapping[str, Reservation], key: str, amount: int) -> None:
    row, level = rows.get(event.reservation or ""), event.detail.get(key)
    if row is not None and isinstance(level, int):
        meter.count(name, _labels(row.request.account or "", level), amount)


def _labels(account: str, level: int) -> dict[str, str]:
    return {"account": account, "level": str(level)}


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
