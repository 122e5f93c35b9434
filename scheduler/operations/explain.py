"""Explain why a reservation waits and which smallest change would end the wait; describe conditions of slots and pools.

These operations read all rows at one moment and plan on that copy. They lock nothing, write nothing and stop searching
after some seconds, so that no tick waits for them.
"""

from collections.abc import Callable
from time import monotonic
from typing import Any, Final

import msgspec

from scheduler.explain.changes import KINDS_OF_CHANGE
from scheduler.explain.conditions import describe_account, describe_pool, describe_schedules, describe_slot, forecast
from scheduler.explain.matrix import Queued, examine
from scheduler.explain.search import Applied, Search, describe_change, is_served, suggest_change
from scheduler.model.faults import fault, one_of
from scheduler.model.machines import Offering
from scheduler.model.reservations import Reservation
from scheduler.model.rules import InForce, Rules, RulesInForce
from scheduler.model.runs import describe_run
from scheduler.model.view import View
from scheduler.operations.costs import add_spending
from scheduler.operations.market import list_unlisted, resolve_rules
from scheduler.operations.paused_gc import PausedGC
from scheduler.operations.ports import Ports
from scheduler.policy.plan import plan
from scheduler.policy.plan_cache import PlanCache
from scheduler.ports import ViewUnavailableError

SEARCH_SECONDS: Final = 1.5
"""Seconds after which the search for the smallest change that would end a wait tries no other change. The limit is
below a client's timeout, so that the client gets an answer.
"""


def explain(ports: Ports, name: str, patience: float = SEARCH_SECONDS) -> dict[str, Any]:
    """Return the state of a reservation and why it waits, by the present rows and rules. Return {} for an unknown
    reservation. `patience`: seconds after which the search for the smallest change tries no other change.

    `waiting`: waiting code and sentence. `headline`: what does not fit, as a sentence. `position`, `of`: the place of
    the reservation in the queue, and the length of the queue. `served`: whether the next tick places the reservation.
    `change`: the smallest change that would end the wait (see `describe_change`); None if the next tick places the
    reservation, or if no change was found. `rules_version`: the version of the rules for which the change was found.
    `needs`: what would have to be true for a lease, if no change was found or if it ends another lease. `is_complete`:
    whether every kind of change was tried in time. `eta`: the forecast of its start (scheduler/protocol/forecasts.py);
    None: there is none. `conditions`: the conditions of a lease in a fixed order, each with
    `name`, `met` (null: not applicable or not known) and `evidence` (see `explain.matrix`). `account`: a sentence about
    the balance of its account and when the account can pay again; None where accounts do not count. `pools`: what
    pauses launches in the pools that may serve the reservation. `ended`: how its command ended, as a sentence; null if
    it has not, and missing without a command.
    """
    deadline = monotonic() + patience
    now, row = ports.store.now(), _find(ports, name)
    rules = add_spending(ports.store, ports.rules_at(now).rules, now, ports.time_zero)
    if row is not None and row.phase == "pending":
        view = View(ports.store.read_rows())
        current = view.reservations.get(name)
        if current is not None and current.phase == "pending":
            found = explain_wait(view, rules, current, now, lambda: monotonic() < deadline, find_applied(ports))
            eta = _find_eta(ports, name)
            return _describe(current, now) | found | {"rules_version": ports.stored_rules().version, "eta": eta}
        # The reservation was leased, or ended, before the rows were read.
        row = _find(ports, name)
    return {} if row is None else _describe(row, now)


def find_applied(ports: Ports) -> Applied:
    """Return the rules as they were applied, with the market and the schedules that make rules in force of them."""
    stored, market = ports.store.load_rules(), ports.store.load_market()
    limits = ports.rules().limits

    def put_in_force(rules: Rules, now: float) -> InForce:
        resolved = resolve_rules(rules, market).model_copy(update={"limits": limits})
        found = RulesInForce().find(resolved, now + ports.time_zero)
        return found._replace(until=found.until - ports.time_zero)

    def list_for_sale(name: str) -> list[Offering]:
        return list_unlisted(ports.rules().pools[name], stored.rules.pools[name], market)

    return Applied(stored.rules, put_in_force, list_for_sale)


def _find(ports: Ports, name: str) -> Reservation | None:
    return next(iter(ports.store.find_reservations(ids=[name])), None)


def _find_eta(ports: Ports, name: str) -> dict[str, Any] | None:
    try:
        found = ports.forecasts.read([name]).get(name)
    except ViewUnavailableError:
        return None
    return None if found is None else found.list_fields()


def _describe(row: Reservation, now: float) -> dict[str, Any]:
    found: dict[str, Any] = {"reservation": row.id, "phase": row.phase, "reason": row.reason, "as_of": now}
    return found if row.run is None else found | {"ended": describe_run(row.run)}


def explain_wait(
    view: View,
    rules: Rules,
    row: Reservation,
    now: float,
    has_time: Callable[[], bool] = lambda: True,
    applied: Applied | None = None,
) -> dict[str, Any]:
    """Return why a pending reservation waits: the part of the answer of `explain` that concerns pending reservations.
    `has_time`: a function that returns False when the search for a change has to stop. `applied`: the rules from which
    `rules`, those in force, were made (default: `rules`).
    """
    cache = PlanCache()
    with PausedGC():
        planned = plan(view, rules, now, cache)
        position, found = next(
            ((at, each) for at, each in enumerate(planned.waiting, 1) if each.reservation == row.id), (None, None)
        )
        queued = Queued(found.code, found.detail, position, len(planned.waiting)) if found else Queued()
        wait = examine(view, rules, row, now, planned, queued)
        search = Search(view, rules, row, now, has_time, cache, applied)
        change = suggest_change(search, KINDS_OF_CHANGE)
    pools = rules.serving_pools(row.request.pool, row.request.system, needs_agent=row.run is not None)
    is_free = change is not None and "release" not in change.kind
    return {
        "waiting": {"code": found.code, "detail": found.detail} if found else None,
        "headline": wait.headline,
        "position": position,
        "of": len(planned.waiting),
        "served": is_served(planned, row.id),
        "change": None if change is None else describe_change(view, change),
        "needs": [] if is_free else [*wait.needs],
        "account": _describe_payer(view, rules, row, now),
        "is_complete": not search.is_cut_short,
        "pools": {name: texts for name in pools if (texts := describe_pool(view, rules, name, now))},
        "conditions": msgspec.to_builtins(wait.conditions),
    }


def _describe_payer(view: View, rules: Rules, row: Reservation, now: float) -> str | None:
    account = view.account_of(row)
    if account is None or rules.settings_of(row.request.pool, row.request.system).queue != "quota":
        return None
    return describe_account(forecast(view, account, now))


def describe_conditions(ports: Ports, pool: str | None = None) -> dict[str, Any]:
    """Return the conditions of slots and pools as sentences: for example that a slot is cordoned, or that launches are
    paused. `pool`: return only this pool and its slots; None: all. Raises InvalidInputError for a pool that does not
    exist.

    The result has the keys `slots` and `pools`, each a dict of id -> sentences. Slots and pools without a condition are
    missing.
    """
    now = ports.store.now()
    rules = ports.rules_at(now).rules
    view = View(each for each in ports.store.read_rows() if not isinstance(each, Reservation))
    if pool is not None and pool not in rules.pools and all(each.pool != pool for each in view.slots.values()):
        raise fault("pool", one_of(pool, rules.pools), pool)
    slots = (each for each in view.slots.values() if pool in {None, each.pool})
    return {
        "as_of": now,
        "slots": {each.id: texts for each in slots if (texts := describe_slot(each, rules.pools.get(each.pool), now))},
        "pools": {
            name: texts
            for name in rules.pools
            if pool in {None, name}
            and (
                texts := [
                    *describe_schedules(rules.pools[name], now + ports.time_zero),
                    *describe_pool(view, rules, name, now),
                ]
            )
        },
    }
