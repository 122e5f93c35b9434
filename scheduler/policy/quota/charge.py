"""The charge of a cycle: accounts earn and pay for the time since they were last charged. Source: qscheduler.

The plan decides on the balances that are worked out here. The commit charges the same accounts again, on the rows as
they are then (`policy/quota/accounting.py` has the sums).
"""

from math import fsum
from typing import cast

from scheduler.model.accounts import FREE, PAID, Levels, find_account
from scheduler.policy.cycle.balances import Balances
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.cycle.step_values import Charged, Healed
from scheduler.policy.quota.accounting import charge as charge_account


def charge(cycle: Healed) -> Charged:
    """Charge every account up to now, if any queue is `quota`; one that was charged at this instant is unchanged.

    Leases that ended earlier in this cycle are paid for: they ran until now.
    """
    if not cycle.rules.has_quota:
        return Charged(cycle)
    used = _sum_used(cycle)
    found = sorted(cycle.view.accounts.items())
    accounts = {
        name: charge_account(account, used.get(name, (0.0, 0.0, 0.0, 0.0, 0.0)), cycle.now)
        for name, account in found
        if not account.forgotten
    }
    cycle.balances = Balances(accounts)
    cycle.charged = tuple(name for name in accounts if cycle.view.accounts[name].charged_at < cycle.now)
    return Charged(cycle)


def _sum_used(cycle: CycleState) -> dict[str, Levels]:
    """Return by account what all leases have used since its last charge; `fsum` makes it independent of their order."""
    view, now = cycle.view, cycle.now
    reservations, accounts = view.reservations, view.accounts
    parts: dict[str, list[list[float]]] = {}
    for leases in view.leases_on.values():
        for (owner, _), lease in leases.items():
            if lease.charged_at is None or lease.level >= FREE:
                continue
            row = reservations[owner]
            account = find_account(accounts, row.request.account, row.sequence)
            if account is not None:
                seconds = now - max(account.charged_at, lease.charged_at)
                if seconds > 0:
                    used = parts.setdefault(account.id, [[] for _ in PAID])
                    used[lease.level].append(lease.weight * seconds)
    return {name: cast("Levels", tuple(map(fsum, used))) for name, used in parts.items()}
