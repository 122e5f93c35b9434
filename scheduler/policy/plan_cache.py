"""Recall: a tick that finds its view as the last one left it, and nothing fallen due since, need not be planned again.

Only a plan that decides nothing is kept: what is decided changes the view.
"""

from bisect import bisect_left
from collections.abc import Iterator
from math import inf

import msgspec

from scheduler.model.decisions import Plan
from scheduler.model.rules import Rules
from scheduler.model.view import View


class _Kept(msgspec.Struct, frozen=True):
    outcome: Plan
    rules: Rules
    since: float
    until: float
    """Before then a plan would be the same."""


def recall(view: View, rules: Rules, now: float) -> Plan | None:
    """The plan of this view under these rules, if that was made before and `now` changes nothing in it."""
    kept: _Kept | None = view.last
    if kept is None or kept.rules is not rules or not kept.since <= now < kept.until:
        return None
    return kept.outcome


def keep_in_mind(view: View, rules: Rules, now: float, outcome: Plan) -> Plan:
    """Gives back the plan. Under quota, where accounts earn and pay all the time, none is kept."""
    if not outcome.decisions and not rules.has_quota:
        falls_due = inf if outcome.wake_at is None else outcome.wake_at
        view.last = _Kept(outcome, rules, now, min([falls_due, *_list_protections(view, rules, now)]))
    return outcome


def _list_protections(view: View, rules: Rules, now: float) -> Iterator[float]:
    """When the next one has waited for so long that the starvation guard protects it, for each length of it."""
    waiters, _, _ = view.waiters.list()
    for limit in {each.starvation_guard for each in (rules.scheduler, *rules.scheduler.system.values())}:
        first = bisect_left(waiters, x=True, key=lambda each, limit=limit: now - each.created_at <= limit)  # type: ignore[misc]
        if limit and first < len(waiters):
            yield waiters[first].created_at + limit
