"""Explain: why a reservation waits, the smallest change that would end it, and conditions in words.

Readers: they plan on a copy of their own, made of one consistent read, lock nothing and write nothing, and give up
searching after a few seconds. No tick waits for them.
"""

from collections.abc import Callable
from time import monotonic
from typing import Any, Final

from scheduler.explain.changes.kinds import KINDS_OF_CHANGE
from scheduler.explain.conditions import describe_pool, describe_slot
from scheduler.explain.forecast import describe_account, forecast
from scheduler.explain.search import Search, describe_change, is_served, suggest_change
from scheduler.model.decisions import Plan
from scheduler.model.reservations import Reservation
from scheduler.model.rules import Rules
from scheduler.model.view import View
from scheduler.operations.paused_gc import PausedGC
from scheduler.operations.ports import Ports
from scheduler.policy.plan import plan
from scheduler.policy.plan_cache import PlanCache

SEARCH_SECONDS: Final = 1.5
"""A search for the smallest change begins no further plan after this: before a client asks again."""


def explain(ports: Ports, name: str, patience: float = SEARCH_SECONDS) -> dict[str, Any]:
    """Why this reservation is where it is, on the rows and rules as they are now.

    `waiting`: code and detail; `position` of `of` in the queue of those who wait; `change`: see `describe_change`
    (None: no change that is thought of would do, nor two, or it is served by the next tick, which `served` says);
    `account`: what its account has and when it can pay again, None where accounts do not count;
    `is_complete`: whether every kind was tried in time; `pools`: what holds back launches of the pools that may
    serve it. {} for a reservation that nobody knows.
    """
    deadline = monotonic() + patience
    now, rules, row = ports.store.now(), ports.rules(), _find(ports, name)
    if row is not None and row.phase == "pending":
        view = View(ports.store.read_rows())
        current = view.reservations.get(name)
        if current is not None and current.phase == "pending":
            said = _describe(current, now)
            return said | explain_wait(view, rules, current, now, lambda: monotonic() < deadline)
        # It was served, or ended, before the rows were read.
        row = _find(ports, name)
    return {} if row is None else _describe(row, now)


def _find(ports: Ports, name: str) -> Reservation | None:
    return next(iter(ports.store.find_reservations(ids=[name])), None)


def _describe(row: Reservation, now: float) -> dict[str, Any]:
    return {"reservation": row.id, "phase": row.phase, "reason": row.reason, "as_of": now}


def explain_wait(
    view: View, rules: Rules, row: Reservation, now: float, has_time: Callable[[], bool] = lambda: True
) -> dict[str, Any]:
    """The same for one that is pending in this view."""
    cache = PlanCache()
    with PausedGC():
        change_set = plan(view, rules, now, cache)
        search = Search(view, rules, row, now, has_time, cache)
        change = suggest_change(search, KINDS_OF_CHANGE)
    pools = rules.serving_pools(row.request.pool, row.request.system)
    return {
        **_find_place(change_set, row.id),
        "served": is_served(change_set, row.id),
        "change": None if change is None else describe_change(view, change),
        "account": _describe_payer(view, rules, row, now),
        "is_complete": not search.is_cut_short,
        "pools": {name: words for name in pools if (words := describe_pool(view, rules, name, now))},
    }


def _describe_payer(view: View, rules: Rules, row: Reservation, now: float) -> str | None:
    account = view.account_of(row)
    if account is None or rules.settings_of(row.request.pool, row.request.system).queue != "quota":
        return None
    return describe_account(forecast(view, account, now))


def _find_place(change_set: Plan, name: str) -> dict[str, Any]:
    place, found = next(
        ((place, each) for place, each in enumerate(change_set.waiting, 1) if each.reservation == name), (None, None)
    )
    waiting = {"code": found.code, "detail": found.detail} if found else None
    return {"waiting": waiting, "position": place, "of": len(change_set.waiting)}


def describe_conditions(ports: Ports, pool: str | None = None) -> dict[str, Any]:
    """Of all slots and pools, or of one pool, what is to be said of them: `slots` and `pools`, texts by id; those of
    which nothing is to be said are left out.
    """
    now, rules = ports.store.now(), ports.rules()
    view = View(each for each in ports.store.read_rows() if not isinstance(each, Reservation))
    slots = (each for each in view.slots.values() if pool in {None, each.pool})
    names = [name for name in rules.pools if pool in {None, name}]
    return {
        "as_of": now,
        "slots": {each.id: words for each in slots if (words := describe_slot(each, rules.pools.get(each.pool), now))},
        "pools": {name: words for name in names if (words := describe_pool(view, rules, name, now))},
    }
