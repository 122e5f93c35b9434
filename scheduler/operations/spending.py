"""What accounts do, for the metrics: who waits for them, what they spend, and whose place they take."""

from collections.abc import Mapping
from typing import Final

from scheduler.model.accounts import FREE, Account, level_of
from scheduler.model.decisions import Plan
from scheduler.model.view import View

LEVELS: Final = range(FREE + 1)
"""The paid ones and the free one."""


def describe_account_waits(plan: Plan, view: View) -> Mapping[str, list[int]]:
    """By account: how many of those who wait would be placed at each level, the free one last, by what it has now.
    Accounts for which nobody waits are left out.
    """
    found: dict[str, list[int]] = {}
    if not view.accounts:
        return found
    levels = {name: level_of(account.balance) for name, account in view.accounts.items()}
    for each in plan.waiting:
        account = _find_payer(view, each.reservation)
        if account is not None:
            counts = found.setdefault(account.id, [0] * len(LEVELS))
            counts[levels[account.id]] += 1
    return found


def _find_payer(view: View, name: str) -> Account | None:
    row = view.reservations.get(name)
    return None if row is None else view.account_of(row)
