"""Changes of pools that may end a reservation's wait: more slots, one more offering that exists, a higher price factor,
or more leases per slot.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import ceil
from typing import Any, Final

from scheduler.explain.search import (
    MOST_CANDIDATES,
    Search,
    Suggestion,
    count_wanted,
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
