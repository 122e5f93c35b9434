"""The kinds of change that may end a reservation's wait: of quota accounts, budgets, pools, slots, the reservation
itself or the queue.

Each kind is a function that finds the smallest change of this kind. It lists candidates (possible changes) from the
rows and the rules, and a trial plan with a candidate decides whether the reservation is served. A candidate that does
not help costs one plan and causes no wrong answer. Source of the changes of accounts: qscheduler.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from math import ceil
from typing import Any, Final, cast

import msgspec

from scheduler.explain.conditions import describe_subject, forecast, list_recoveries
from scheduler.explain.search import (
    MOST_CANDIDATES,
    Candidates,
    Kind,
    Search,
    Suggestion,
    combine_two,
    count_wanted,
    find_second,
    join,
    list_components,
    list_pools,
    list_slots,
    required_labels,
)
from scheduler.model.accounts import PAID, Account, Levels
from scheduler.model.budgets import NOTHING_SPENT, find_allowed
from scheduler.model.machines import Offering
from scheduler.model.pools import Pool
from scheduler.model.reservations import Component, is_on_hold, list_instances
from scheduler.model.resources import Resources, has_labels
from scheduler.model.slots import Slot
from scheduler.model.transitions import UNPAID
from scheduler.policy.capacity.fits import fits, given_to
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
    used = [
        sum(settle(lease, now).cost[level] for _, lease in search.view.leases_of(slot.id))
        for slot, _ in list_slots(search)
    ]
    running = forecast(search.view, account, now).use[level] * max(0.0, now - account.charged_at)
    return ceil(max(used, default=0.0) + running + max(0.0, account.due[level])) + 1


def _with_balance(account: Account, level: int, amount: float, words: str) -> Suggestion:
    balance = [float(amount) if each == level else account.balance[each] for each in PAID]
    return Suggestion(
        kind="balance",
        text=f"a balance of {account.id} {words} at level {level} would do",
        rows=(msgspec.structs.replace(account, balance=cast("Levels", tuple(balance))),),
    )


_CENTS: Final = 100
"""Cents of a dollar. Suggested amounts are whole cents."""


def raise_budgets(search: Search) -> Suggestion | None:
    """Return the smallest rise of budgets that would end the reservation's wait: of one budget that limits the launches
    for the reservation, else of all these budgets. Return None if no rise ends the wait.
    """
    pools = [name for name, pool in list_pools(search) if pool.is_elastic]
    account = search.reservation.request.account or ""
    budgets = search.rules.budgets.items()
    names = [name for name, each in budgets if each.is_limit and any(each.covers(pool, account) for pool in pools)]
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
        limits = {
            "per_hour": (budget.per_hour, 0.0),
            "per_day": (budget.per_day, spent.day),
            "per_month": (budget.per_month, spent.month),
        }
        least = {key: ceil(round((wanted + used) * _CENTS, 6)) / _CENTS for key, (_, used) in limits.items()}
        tables[name] = {key: least[key] for key, (most, _) in limits.items() if most is not None and most < least[key]}
        texts.append(f"budget {name} allows {allowed:.2f} dollars an hour at present: {wanted:.2f} would do")
    return Suggestion(kind="budget", text=", and ".join(texts), config={"budgets": tables})


_STEPS: Final = 10_000
"""A suggested price factor is rounded up to a multiple of 1/10,000."""


def add_slots(search: Search) -> Suggestion | None:
    """Return the smallest rise of `max_slots` that would end the reservation's wait: of one pool, else of a limit over
    several pools, else of both. Return None if no rise ends the wait.
    """
    wanted = count_wanted(search)
    return (
        _add_slots_in_pool(search)
        or search.find_least_of(_list_bounds_over_all(search), wanted)
        or _add_slots_of_both(search, wanted)
    )


def _add_slots_in_pool(search: Search) -> Suggestion | None:
    wanted = count_wanted(search)
    found: list[tuple[int, Suggestion]] = []
    for name, pool in list_pools(search):
        most = pool.max_slots
        if pool.is_elastic and most is not None:
            change = search.find_least(partial(_with_slots, search, name, most), wanted)
            if change is not None:
                found.append((change.config["pools"][name]["max_slots"] - most, change))
    return min(found, key=lambda each: each[0])[1] if found else None


def _with_slots(search: Search, name: str, most: int, more: int) -> Suggestion:
    # A slot beyond the present limit may still have its machine.
    names = [each for number in range(1, more + 1) if (each := f"{name}-{most + number}") not in search.view.slots]
    return Suggestion(
        kind="max_slots",
        text=f"pool {name} is at its max_slots of {most}: {most + more} would do",
        rows=tuple(Slot(id=each, pool=name) for each in names),
        config={"pools": {name: {"max_slots": most + more}}},
    )


def _add_slots_of_both(search: Search, wanted: int) -> Suggestion | None:
    """Return a change that raises two limits so that the reservation's wait ends: (1) the `max_slots` of one pool; (2)
    a `max_slots` that limits several pools together. Return None if no such change ends the wait.

    First assume that limit (2) is raised by `wanted`, the largest rise that is tried. Find the smallest rise of limit
    (1) that then ends the wait. With this rise of limit (1), find the smallest rise of limit (2).
    """
    for make in _list_bounds_over_all(search):
        second = find_second(search, make(wanted), [_add_slots_in_pool])
        if second is not None:
            return search.find_least(partial(_join_slots, make, second), wanted)
    return None


def _join_slots(make: Callable[[int], Suggestion], second: Suggestion, more: int) -> Suggestion:
    return join(make(more), second, "max_slots")


def _list_bounds_over_all(search: Search) -> Iterator[Callable[[int], Suggestion]]:
    """Yield a function for each `max_slots` that limits several pools together. The function `make(n)` returns the
    change that raises this limit by `n`.
    """
    scheduler = search.rules.scheduler
    if scheduler.max_slots:
        yield partial(_with_more_over_all, "scheduler", scheduler.max_slots, None)
    for name, own in scheduler.system.items():
        if own.max_slots:
            yield partial(_with_more_over_all, f"scheduler.system.{name}", own.max_slots, name)


def _with_more_over_all(path: str, most: int, system: str | None, more: int) -> Suggestion:
    table: dict[str, Any] = {"max_slots": most + more}
    return Suggestion(
        kind="max_slots",
        text=f"{path}.max_slots is {most}: {most + more} would do",
        config={"scheduler": table if system is None else {"system": {system: table}}},
    )


def list_offerings_more(search: Search) -> Iterator[Suggestion]:
    """Yield changes that add one offering (EC2 machine type) to a pool that may serve the reservation. The offering is
    one that another pool of the same system has, or a type of the catalogue. The cheapest offering comes first.

    A pool without offerings launches the type of its template or image, which the first offering would replace: no
    change adds it.
    """
    found = [
        (offering.price, name, number, offering)
        for name, pool in list_pools(search)
        if pool.is_elastic and pool.offerings
        for number, offering in enumerate(_list_real(search, name, pool))
        if any(_could_be(search, pool, offering, each) for each in list_components(search.reservation))
    ]
    for _, name, _, offering in sorted(found, key=lambda each: each[:3])[:MOST_CANDIDATES]:
        present = [each.model_dump(exclude_unset=True) for each in search.applied.rules.pools[name].offerings]
        table = offering.model_dump(exclude_unset=True)
        if search.rules.pools[name].takes_prices:
            table.pop("price", None)
        yield Suggestion(
            kind="offering",
            text=f"offering {offering.name} would fit and is not in the pool {name}",
            config={"pools": {name: {"offerings": [*present, table]}}},
        )


def _list_real(search: Search, name: str, pool: Pool) -> Iterator[Offering]:
    """Yield offerings that exist and that the pool does not have: those of other pools of its system, whose images have
    its architecture, then those of the catalogue. Each has its own resources, labels and price.
    """
    known = {(each.instance_type, each.market, each.zone) for each in pool.offerings}
    for other_name, other in search.rules.pools.items():
        if other_name == name or other.system != pool.system:
            continue
        for each in other.offerings:
            is_there = each.zone is None or not pool.zones or each.zone in pool.zones
            if each.is_for_sale and is_there and (each.instance_type, each.market, each.zone) not in known:
                held = each.resources if each.resources is not None else other.resources
                labels = {**other.labels, **(each.labels or {})}
                yield _make_own(each, held, {key: text for key, text in labels.items() if pool.labels.get(key) != text})
    for each in search.applied.list_for_sale(name):
        if (each.instance_type, each.market, each.zone) not in known:
            yield each


def _make_own(offering: Offering, held: Resources | None, labels: Mapping[str, str]) -> Offering:
    """Return an offering that does not depend on the pool it comes from. `held`: the resources of its machines."""
    given = {"resources": held, "labels": dict(labels)}
    fields = offering.model_dump(exclude_unset=True) | {key: value for key, value in given.items() if value}
    return Offering(**fields | {"price": offering.price})


def raise_price_factor(search: Search) -> Suggestion | None:
    """Return the smallest rise of a pool's `price_factor` that would end the reservation's wait. A higher factor allows
    more expensive offerings (EC2 machine types). Return None if no rise ends the wait.
    """
    instances = list_instances(search.reservation.request, "essential")
    component = instances[0].component if len(instances) == 1 else None  # None: the reservation is a gang
    found: list[tuple[float, str, str]] = []
    for name, pool in list_pools(search):
        sold = [each for each in pool.offerings if each.is_for_sale]
        fitting = [each for each in sold if component is None or _could_be(search, pool, each, component)]
        least = min((each.price for each in fitting), default=0.0)
        found += [(ceil(each.price / least * _STEPS) / _STEPS, name, each.name) for each in fitting if least > 0]
    return search.find_first(
        Suggestion(
            kind="price_factor",
            text=f"offering {offering} would do with a price_factor of {factor:g} in pool {name}",
            config={"pools": {name: {"price_factor": factor}}},
        )
        for factor, name, offering in sorted(found)
        if factor > search.rules.pools[name].price_factor
    )


def _could_be(search: Search, pool: Pool, offering: Offering, component: Component) -> bool:
    held = pool.resources if offering.resources is None else offering.resources
    labels = {**pool.labels, **(offering.labels or {})}
    fitting = held is None or fits(given_to(component, pool), held)
    return fitting and has_labels(labels, required_labels(search.reservation, component))


def list_leases_more(search: Search) -> Iterator[Suggestion]:
    """Yield a change for each pool that may serve the reservation and has a `max_leases_per_slot`: one that raises this
    limit by one.
    """
    for name, pool in list_pools(search):
        if pool.lease_limit != float("inf"):
            yield Suggestion(
                kind="max_leases_per_slot",
                text=f"pool {name} takes {int(pool.lease_limit)} leases a slot: {int(pool.lease_limit) + 1} would do",
                config={"pools": {name: {"max_leases_per_slot": int(pool.lease_limit) + 1}}},
            )


def list_uncordoned(search: Search) -> Iterator[Suggestion]:
    """Yield changes that each uncordon one slot: a cordoned ready slot of a pool that may serve the reservation."""
    for slot in islice((slot for slot, _ in list_slots(search) if slot.cordoned), MOST_CANDIDATES):
        yield Suggestion(
            kind="cordon",
            text=f"slot {slot.id} would do and is cordoned",
            rows=(msgspec.structs.replace(slot, cordoned=False),),
        )


def list_freed(search: Search) -> Iterator[Suggestion]:
    """Yield the change that takes the reservation of this search off hold: it is resumed, and a priority of 0 becomes
    1. Yield nothing if the reservation is not on hold.
    """
    reservation = search.reservation
    if is_on_hold(reservation):
        words = "it would be placed if it were resumed" if reservation.suspended else "a priority above 0 would do"
        if reservation.suspended and not reservation.priority:
            words += " with a priority above 0"
        freed = msgspec.structs.replace(reservation, suspended=False, priority=reservation.priority or 1)
        yield Suggestion(kind="hold", text=words, rows=(freed,))


def list_waits(search: Search) -> Iterator[Suggestion]:
    """Yield suggestions to wait until a launch back-off is over in a pool that may serve the reservation. The back-off
    that ends first comes first.
    """
    pools = {name for name, _ in list_pools(search)}
    holds = [each for each in search.view.holds.values() if each.pool in pools | {"*"} and each.until > search.now]
    for hold in sorted(holds, key=lambda each: (each.until, each.id)):
        if hold.kind != "strangers":
            yield Suggestion(
                kind="wait",
                text=f"the launch back-off of {describe_subject(hold)} ({hold.kind})"
                f" ends in {hold.until - search.now:.0f} s",
                wait_seconds=hold.until - search.now,
            )


def list_overtaking(search: Search) -> Iterator[Suggestion]:
    """Yield changes of the rules that let the reservation be placed before an earlier reservation that does not fit.
    There are two: backfill is switched on; the starvation guard is switched off.
    """
    settings = search.rules.settings_of(search.reservation.request.pool, search.reservation.request.system)
    changes: list[tuple[str, dict[str, Any]]] = []
    if not settings.backfill:
        changes.append(("with backfill it would not wait for an earlier reservation in the queue", {"backfill": True}))
    if settings.starvation_guard:
        changes.append(
            ("the starvation_guard keeps slots for an earlier reservation in the queue", {"starvation_guard": 0})
        )
    queue = search.rules.queue_of(search.reservation.request.pool, search.reservation.request.system)
    for text, keys in changes:
        table = {"system": {queue: keys}} if queue else keys
        yield Suggestion(kind="overtaking", text=text, config={"scheduler": table})


def end_lease(search: Search) -> Suggestion | None:
    """Return a change that ends another reservation, so that one of its slots can serve the waiting reservation. Return
    None if no such change ends the wait. Reservations with the fewest and smallest leases are tried first.
    """
    owners: dict[str, str] = {}
    for slot, _ in list_slots(search):
        for owner, _ in search.view.leases_of(slot.id):
            owners.setdefault(owner, slot.id)
    holders = [search.view.reservations[owner] for owner in owners if owner in search.view.reservations]
    return search.find_first(
        Suggestion(
            kind="release",
            text=f"the end of {holder.id}, which holds {owners[holder.id]}, would do",
            rows=(msgspec.structs.replace(holder, phase="released", leases=()),),
        )
        for holder in sorted(
            holders,
            key=lambda each: (
                len(each.leases),
                sum(sum(lease.resources.values()) for lease in each.leases),
                each.sequence,
            ),
        )[:MOST_CANDIDATES]
    )


def _first_of(list_changes: Candidates) -> Kind:
    """Return a function that tries the changes which `list_changes` yields, in order. It returns the first change that
    would end the reservation's wait, or None.
    """
    return lambda search: search.find_first(list_changes(search))


OPENERS: Final[tuple[Candidates, ...]] = (
    list_freed,
    list_uncordoned,
    list_waits,
    list_account_waits,
    list_freed_work,
    list_offerings_more,
    list_leases_more,
    list_overtaking,
)
"""Functions for `combine_two`, which tries changes in pairs. Each function lists changes of one kind, and each of these
changes may be the first one of a pair. Only kinds of change without an amount are here, e.g. to uncordon a slot.
"""
SINGLE_KINDS: Final[tuple[Kind, ...]] = (
    _first_of(list_freed),
    _first_of(list_uncordoned),
    _first_of(list_waits),
    _first_of(list_account_waits),
    raise_limit,
    grant_what_is_lacking,
    _first_of(list_freed_work),
    add_slots,
    raise_budgets,
    _first_of(list_offerings_more),
    raise_price_factor,
    _first_of(list_leases_more),
    _first_of(list_overtaking),
    grant_balance,
    end_lease,
)
"""Functions that each search for one kind of change, in the order in which they are called. Kinds of change that cost
nothing come first.
"""
KINDS_OF_CHANGE: Final[tuple[Kind, ...]] = (
    *SINGLE_KINDS,
    lambda search: combine_two(search, OPENERS, SINGLE_KINDS),
)
"""All functions that search for a change, in the order in which they are called: single changes, then pairs of
changes.
"""
