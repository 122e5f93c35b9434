"""The smallest rise of budgets (limits in dollars) that would end a reservation's wait."""

from collections.abc import Iterator, Mapping
from math import ceil
from typing import Any, Final

from scheduler.explain.search import Search, Suggestion, count_wanted, list_pools
from scheduler.model.budgets import NOTHING_SPENT, Budget, Spent, find_allowed
from scheduler.model.transitions import UNPAID

_CENTS: Final = 100
"""Cents of a dollar. Suggested amounts are whole cents."""


def raise_budgets(search: Search) -> Suggestion | None:
    """Return the smallest rise of budgets that would end the reservation's wait: of one budget that limits the launches
    for the reservation, else of all these budgets. Return None if no rise ends the wait.
    """
    names = list(_list_limiting(search))
    if not names:
        return None
    most = _find_most(search, names)
    for name in names:
        change = search.find_least(lambda cents, name=name: _raise(search, {name: cents}), most)  # type: ignore[misc]
        if change is not None or search.is_cut_short:
            return change
    return _raise_all(search, dict.fromkeys(names, most)) if len(names) > 1 else None


def _raise_all(search: Search, rises: dict[str, int]) -> Suggestion | None:
    """Return a change that raises several budgets. One after the other is raised by as little as possible, while the
    later ones have their greatest rise. Return None if the greatest rises do not end the wait, or if time is over.
    `rises`: name of a budget -> its greatest rise in cents.
    """
    if not search.serves(_raise(search, rises)):
        return None
    for name, most in list(rises.items()):
        low, high = -1, most
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if search.serves(_raise(search, rises | {name: middle})) else (middle, high)
        rises[name] = high
    change = _raise(search, {name: cents for name, cents in rises.items() if cents})
    return change if search.lasts(change) and not search.is_cut_short else None


def _list_limiting(search: Search) -> Iterator[str]:
    pools = [name for name, pool in list_pools(search) if pool.is_elastic]
    account = search.reservation.request.account or ""
    for name, budget in search.rules.budgets.items():
        if budget.is_limit and any(budget.covers(pool, account) for pool in pools):
            yield name


def _find_most(search: Search, names: list[str]) -> int:
    """Return a rise in cents that is certainly enough: with it, each of the budgets `names` allows the launches for all
    pending reservations.
    """
    prices = [each.price for _, pool in list_pools(search) for each in pool.offerings]
    running = sum(slot.price or 0.0 for slot in search.view.slots.values() if slot.state not in UNPAID)
    return ceil(_CENTS * (running + count_wanted(search) * max(prices, default=0.0))) + len(names)


def _raise(search: Search, rises: Mapping[str, int]) -> Suggestion:
    tables, texts = {}, []
    for name, cents in rises.items():
        budget, spent = search.rules.budgets[name], search.rules.spending.get(name, NOTHING_SPENT)
        allowed = find_allowed(budget, spent)
        wanted = (ceil(round(allowed * _CENTS, 6)) + cents) / _CENTS
        tables[name] = _allow(budget, spent, wanted)
        texts.append(f"budget {name} allows {allowed:.2f} dollars an hour at present: {wanted:.2f} would do")
    return Suggestion(kind="budget", text=", and ".join(texts), config={"budgets": tables})


def _allow(budget: Budget, spent: Spent, wanted: float) -> dict[str, Any]:
    """Return new values for those keys of a budget (`per_hour`, `per_day`, `per_month`) that are too low for machines
    of `wanted` dollars an hour: key -> the least amount that allows them. `spent`: what the budget's machines have cost
    in this day and month.
    """
    limits = {
        "per_hour": (budget.per_hour, 0.0),
        "per_day": (budget.per_day, spent.day),
        "per_month": (budget.per_month, spent.month),
    }
    least = {key: ceil(round((wanted + used) * _CENTS, 6)) / _CENTS for key, (_, used) in limits.items()}
    return {key: least[key] for key, (most, _) in limits.items() if most is not None and most < least[key]}
