"""Changes of quota accounts that end a reservation's wait under the queue `quota`: waiting for a balance, a higher
limit, permission for free work, or a higher balance. Source: qscheduler.
"""

from collections.abc import Iterator
from functools import partial
from math import ceil
from typing import Final, cast

import msgspec

from scheduler.explain.conditions import forecast, list_recoveries
from scheduler.explain.search import Search, Suggestion, count_wanted, list_slots
from scheduler.model.accounts import PAID, Account, Levels
from scheduler.policy.quota.accounting import settle

_A_LITTLE: Final = 0.001
"""The balance in worker-seconds that a suggested change sets when any balance above 0 suffices."""


def _find_payer(search: Search) -> Account | None:
    """Return the quota account that pays for the reservation of this search. Return None if the reservation has no
    account, or if its queue is not `quota`.
    """
    request = search.reservation.request
    if search.rules.settings_of(request.pool, request.system).queue != "quota":
        return None
    return search.view.account_of(search.reservation)


def list_account_waits(search: Search) -> Iterator[Suggestion]:
    """Yield suggestions to wait for one of two things: (1) reservations that this one preempted give their slots back;
    (2) the reservation's quota account can pay again.
    """
    for lease in search.reservation.leases:
        ends = {other.revoke_by for _, other in search.view.leases_of(lease.slot) if other.revoke_by is not None}
        for until in sorted(end for end in ends if end > search.now):
            yield Suggestion(
                kind="wait",
                text=f"the reservations that it preempted have to give {lease.slot} back in {until - search.now:.0f} s",
                wait_seconds=until - search.now,
            )
    account = _find_payer(search)
    for seconds, level in list_recoveries(forecast(search.view, account, search.now)) if account is not None else ():
        yield Suggestion(
            kind="wait",
            text=f"account {account.id} can pay again at level {level} in {ceil(seconds)} s",  # type: ignore[union-attr]
            wait_seconds=seconds,
        )


def raise_limit(search: Search) -> Suggestion | None:
    """Return the smallest rise of a limit of the reservation's quota account that would end the reservation's wait: of
    `max_fanout`, else of a limit in `per_label_task_limits`. Return None if no rise ends it.
    """
    account = _find_payer(search)
    if account is None:
        return None
    makers = [partial(_with_fanout, account)] if account.max_fanout else []
    makers += [partial(_with_label_limit, account, name) for name in account.per_label_task_limits]
    return search.find_least_of(makers, count_wanted(search))


def _with_fanout(account: Account, more: int) -> Suggestion:
    most = account.max_fanout + more
    return Suggestion(
        kind="account_limit",
        text=f"a max_fanout of {most} instead of {account.max_fanout} for {account.id} would do",
        rows=(msgspec.structs.replace(account, max_fanout=most),),
    )


def _with_label_limit(account: Account, name: str, more: int) -> Suggestion:
    present = account.per_label_task_limits[name]
    limits = {**account.per_label_task_limits, name: present + more}
    return Suggestion(
        kind="account_limit",
        text=f"a per_label_task_limits of {present + more} instead of {present} for {name} of {account.id} would do",
        rows=(msgspec.structs.replace(account, per_label_task_limits=limits),),
    )


def list_freed_work(search: Search) -> Iterator[Suggestion]:
    """Yield the change that allows the reservation's quota account to run work at the free level. Yield nothing unless
    the account has the setting `disable_free_tasks`.
    """
    account = _find_payer(search)
    if account is not None and account.disable_free_tasks:
        yield Suggestion(
            kind="free_tasks",
            text=f"it would run at the free level if {account.id} had no disable_free_tasks",
            rows=(msgspec.structs.replace(account, disable_free_tasks=False),),
        )


def grant_what_is_lacking(search: Search) -> Suggestion | None:
    """Return the smallest rise of the quota account's balance that would end the reservation's wait. Return None if no
    rise ends it.

    Only for accounts with `disable_free_tasks`. For other accounts the result is None, because their reservations can
    run at the free level without a balance.
    """
    account = _find_payer(search)
    return grant_balance(search) if account is not None and account.disable_free_tasks else None


def grant_balance(search: Search) -> Suggestion | None:
    """Return the smallest rise of the quota account's balance, at one level, that would end the reservation's wait.
    Return None if no rise ends it or the reservation has no account.

    Levels at which the account earns are tried before other levels. Of each of these two kinds the worst level is tried
    first, because work at a worse level preempts fewer reservations.
    """
    account = _find_payer(search)
    if account is None:
        return None
    found = forecast(search.view, account, search.now)
    earned = [level for level in PAID if account.charge_rate[level] > 0]
    levels = [level for level in PAID if level < found.level]
    for level in sorted(levels, key=lambda each: (each not in earned, -each)):
        little = _with_balance(account, level, _A_LITTLE, f"above {max(0.0, account.balance[level]):g}")
        change = search.find_first([little]) or search.find_least(
            lambda amount, level=level: _with_balance(account, level, amount, f"of {amount}"),  # type: ignore[misc]
            _most_needed(search, account, level),
        )
        if change is not None or search.is_cut_short:
            return change
    return None


def _most_needed(search: Search, account: Account, level: int) -> int:
    """Return a balance in worker-seconds that is certainly enough for the account to preempt at this level. It is
    greater than the sum of what the leases on any one slot have cost and what the account's own work has cost since its
    last charge.
    """
    now = search.now
    used = [0.0]
    for slot, _ in list_slots(search):
        used.append(sum(settle(lease, now).cost[level] for _, lease in search.view.leases_of(slot.id)))
    running = forecast(search.view, account, now).use[level] * max(0.0, now - account.charged_at)
    return ceil(max(used) + running + max(0.0, account.due[level])) + 1


def _with_balance(account: Account, level: int, amount: float, words: str) -> Suggestion:
    balance = [float(amount) if each == level else account.balance[each] for each in PAID]
    return Suggestion(
        kind="balance",
        text=f"a balance of {account.id} {words} at level {level} would do",
        rows=(msgspec.structs.replace(account, balance=cast("Levels", tuple(balance))),),
    )
