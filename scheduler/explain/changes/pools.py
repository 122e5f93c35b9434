"""Changes of pools that may end a reservation's wait: more slots, other offerings, larger machines, more leases per
slot, other labels, or a new pool.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count
from math import ceil
from typing import Any, Final

from scheduler.explain.search import (
    Search,
    Suggestion,
    count_wanted,
    describe_labels,
    find_lacking,
    find_second,
    join,
    list_components,
    list_pools,
    required_labels,
)
from scheduler.model.machines import Offering
from scheduler.model.pools import Pool
from scheduler.model.reservations import Component, list_instances
from scheduler.model.resources import Resources, has_labels
from scheduler.model.slots import Slot
from scheduler.policy.capacity.fits import fits, given_to

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
            change = search.find_least(lambda more, name=name, most=most: _with_slots(name, most, more), wanted)  # type: ignore[misc]
            if change is not None:
                found.append((change.config["pools"][name]["max_slots"] - most, change))
    return min(found, key=lambda each: each[0])[1] if found else None


def _with_slots(name: str, most: int, more: int) -> Suggestion:
    return Suggestion(
        kind="max_slots",
        text=f"pool {name} is at its max_slots of {most}: {most + more} would do",
        rows=tuple(Slot(id=f"{name}-{most + number}", pool=name) for number in range(1, more + 1)),
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
    """Yield changes that add one offering (EC2 machine type), which another pool has, to a pool that may serve the
    reservation. The cheapest offering comes first.
    """
    known = [each for pool in search.rules.pools.values() for each in pool.offerings if each.is_for_sale]
    for offering in sorted(known, key=lambda each: (each.price, each.name)):
        for name, pool in list_pools(search):
            if pool.is_elastic and offering not in pool.offerings:
                yield Suggestion(
                    kind="offering",
                    text=f"offering {offering.name} would fit and is not in the pool {name}",
                    config={"pools": {name: {"offerings": [*_dump((*pool.offerings, offering))]}}},
                )


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


def list_larger_machines(search: Search) -> Iterator[Suggestion]:
    """Yield changes after which a pool has machines that are large enough for each component of the reservation: larger
    `resources` of the pool or, if the pool has offerings, one new offering.
    """
    instances = list_instances(search.reservation.request, "essential")
    for name, pool in list_pools(search):
        if pool.is_elastic and not pool.counts_leases_only:
            wanted: dict[str, float] = {}
            for instance in instances:
                for key, amount in given_to(instance.component, pool).items():
                    wanted[key] = max(amount, wanted.get(key, 0))
            yield _with_larger_machines(name, pool, wanted)


def _with_larger_machines(name: str, pool: Pool, wanted: Resources) -> Suggestion:
    words = ", ".join(f"{amount:g} {key}" for key, amount in sorted(wanted.items()))
    if not pool.offerings:
        held = pool.resources or {}
        larger = {key: max(wanted.get(key, 0), held.get(key, 0)) for key in {**held, **wanted}}
        table: dict[str, Any] = {"resources": larger}
        text = f"needs machines with {words} in pool {name}"
    else:
        price = max(each.price for each in pool.offerings)
        table = {
            "offerings": [*_dump(pool.offerings), {"name": _find_name(pool), "price": price, "resources": dict(wanted)}]
        }
        text = f"needs an offering with {words} in pool {name}"
    return Suggestion(kind="machines", text=text, config={"pools": {name: table}})


def _find_name(pool: Pool) -> str:
    """Return a name for a new offering that is not the name of an offering of the pool."""
    taken = {each.name for each in pool.offerings}
    return next(name for number in count(1) if (name := f"larger-{number}") not in taken)


def list_relabelled_pools(search: Search) -> Iterator[Suggestion]:
    """Yield changes that add labels to the new slots of a pool: those that the reservation requires and the pool lacks.
    The change with the fewest labels comes first.
    """
    found = [
        (name, pool, find_lacking(pool.labels, required_labels(search.reservation, component)))
        for component in list_components(search.reservation)
        for name, pool in list_pools(search)
        if pool.is_elastic
    ]
    for name, pool, lacking in sorted(found, key=lambda each: len(each[2])):
        if lacking:
            yield Suggestion(
                kind="pool_labels",
                text=f"needs {describe_labels(lacking)} on new slots of pool {name}",
                config={"pools": {name: {"labels": {**pool.labels, **lacking}}}},
            )


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


def add_pool(search: Search) -> Suggestion | None:
    """Return a change that adds a pool with as few slots as end the reservation's wait. The new pool is a copy of an
    existing pool. Return None if no such change ends the wait, or if a pool that may serve the reservation exists
    already.
    """
    if list_pools(search):
        return None
    models = (name for name, pool in search.rules.pools.items() if pool.is_elastic)
    return search.find_least_of((partial(_with_pool_like, search, name) for name in models), count_wanted(search))


def list_new_pools(search: Search) -> Iterator[Suggestion]:
    """Yield changes that add a pool with one slot. Each new pool is a copy of an existing pool. Yield nothing if a pool
    that may serve the reservation exists already.
    """
    if not list_pools(search):
        for name, pool in search.rules.pools.items():
            if pool.is_elastic:
                yield _with_pool_like(search, name, 1)


def _with_pool_like(search: Search, model: str, most: int) -> Suggestion:
    request, pools = search.reservation.request, search.rules.pools
    name = request.pool or next(each for each in _number(request.system or "pool") if each not in pools)
    table = pools[model].model_dump(exclude_unset=True) | {"max_slots": most, "min_slots": 0, "target_warm_slots": 0}
    whose = f"of that name ({name})"
    if request.pool is None:
        table["system"], whose = request.system, f"for {request.system}"
    return Suggestion(
        kind="pool",
        text=f"needs a pool {whose}: one like {model} with max_slots {most} would do",
        rows=tuple(Slot(id=f"{name}-{number}", pool=name) for number in range(1, most + 1)),
        config={"pools": {name: table}},
    )


def _number(name: str) -> Iterator[str]:
    """Yield `name`, then `name-2`, `name-3` and so on without end."""
    yield name
    yield from (f"{name}-{number}" for number in count(2))


def _dump(offerings: Iterable[Offering]) -> list[dict[str, Any]]:
    return [each.model_dump(exclude_unset=True) for each in offerings if each.is_for_sale]
