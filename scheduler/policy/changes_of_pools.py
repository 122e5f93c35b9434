"""Changes of pools that could end a wait: more slots, other offerings, larger machines, more leases a slot."""

from collections.abc import Iterable, Mapping
from itertools import count
from math import ceil
from typing import Any, Final

from scheduler.model.labels import has_labels
from scheduler.model.reservations import Component
from scheduler.model.resources import Resources, fits
from scheduler.model.rules import Offering, Pool
from scheduler.model.slots import Slot
from scheduler.policy.candidates import count_wanted, list_pools, only_component, required_labels
from scheduler.policy.needs import given_to
from scheduler.policy.suggest import Search, Suggestion

_STEPS: Final = 10_000
"""A price factor is told to four digits."""


def add_slots(search: Search) -> Suggestion | None:
    """More slots in one pool, or over all pools: the fewest."""
    wanted = count_wanted(search)
    found: list[tuple[int, Suggestion]] = []
    for name, pool in list_pools(search):
        most = pool.max_slots
        if pool.is_elastic and most is not None:
            change = search.find_least(lambda more, name=name, most=most: _with_slots(name, most, more), wanted)  # type: ignore[misc]
            if change is not None:
                found.append((change.config["pools"][name]["max_slots"] - most, change))
    if found:
        return min(found, key=lambda each: each[0])[1]
    return _add_slots_over_all(search, wanted)


def _with_slots(name: str, most: int, more: int) -> Suggestion:
    return Suggestion(
        kind="max_slots",
        text=f"pool {name} is at its max_slots of {most}: {most + more} would do",
        rows=tuple(Slot(id=f"{name}-{most + number}", pool=name) for number in range(1, more + 1)),
        config={"pools": {name: {"max_slots": most + more}}},
    )


def _add_slots_over_all(search: Search, wanted: int) -> Suggestion | None:
    scheduler = search.rules.scheduler
    tables: list[tuple[str, int, dict[str, Any]]] = [("scheduler", scheduler.max_slots, {})]
    tables += [(f"scheduler.system.{name}", own.max_slots, {"system": name}) for name, own in scheduler.system.items()]
    for path, most, where in tables:
        if most:
            change = search.find_least(
                lambda more, path=path, most=most, where=where: _with_more_over_all(path, most, more, where),  # type: ignore[misc]
                wanted,
            )
            if change is not None:
                return change
    return None


def _with_more_over_all(path: str, most: int, more: int, where: Mapping[str, str]) -> Suggestion:
    table: dict[str, Any] = {"max_slots": most + more}
    return Suggestion(
        kind="max_slots",
        text=f"{path}.max_slots is {most}: {most + more} would do",
        config={"scheduler": {"system": {where["system"]: table}} if where else table},
    )


def add_offering(search: Search) -> Suggestion | None:
    """Offerings that other pools have, the cheapest first."""
    known = [offering for pool in search.rules.pools.values() for offering in pool.offerings]
    return search.find_first(
        Suggestion(
            kind="offering",
            text=f"offering {offering.name} would fit and is not in the pool {name}",
            config={"pools": {name: {"offerings": [*_dump(pool), *_dump_each([offering])]}}},
        )
        for offering in sorted(known, key=lambda each: (each.price, each.name))
        for name, pool in list_pools(search)
        if pool.is_elastic and offering not in pool.offerings
    )


def raise_price_factor(search: Search) -> Suggestion | None:
    """A dearer offering of its own pools counts as eligible: the one that is dearer by the smallest factor."""
    component = only_component(search.reservation)
    found: list[tuple[float, str, str]] = []
    for name, pool in list_pools(search):
        fitting = [each for each in pool.offerings if component is None or _could_be(search, pool, each, component)]
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


def enlarge_pool(search: Search) -> Suggestion | None:
    """Larger machines in one pool: its `resources`, or an offering that nobody has."""
    component = only_component(search.reservation)
    if component is None:
        return None
    return search.find_first(
        _with_larger_machines(name, pool, given_to(component, pool))
        for name, pool in list_pools(search)
        if pool.is_elastic and not pool.counts_leases_only
    )


def _with_larger_machines(name: str, pool: Pool, wanted: Resources) -> Suggestion:
    words = ", ".join(f"{amount:g} {key}" for key, amount in sorted(wanted.items()))
    if not pool.offerings:
        held = pool.resources or {}
        larger = {key: max(wanted.get(key, 0), held.get(key, 0)) for key in {**held, **wanted}}
        table: dict[str, Any] = {"resources": larger}
        text = f"needs machines with {words} in pool {name}"
    else:
        price = max(each.price for each in pool.offerings)
        table = {"offerings": [*_dump(pool), {"name": _find_name(pool), "price": price, "resources": dict(wanted)}]}
        text = f"needs an offering with {words} in pool {name}"
    return Suggestion(kind="machines", text=text, config={"pools": {name: table}})


def _find_name(pool: Pool) -> str:
    """A name that no offering of the pool has."""
    taken = {each.name for each in pool.offerings}
    return next(name for number in count(1) if (name := f"larger-{number}") not in taken)


def raise_lease_limit(search: Search) -> Suggestion | None:
    """One lease more on each slot of a pool."""
    return search.find_first(
        Suggestion(
            kind="max_leases_per_slot",
            text=f"pool {name} takes {int(pool.lease_limit)} leases a slot: {int(pool.lease_limit) + 1} would do",
            config={"pools": {name: {"max_leases_per_slot": int(pool.lease_limit) + 1}}},
        )
        for name, pool in list_pools(search)
        if pool.lease_limit != float("inf")
    )


def _dump(pool: Pool) -> list[dict[str, Any]]:
    return _dump_each(pool.offerings)


def _dump_each(offerings: Iterable[Offering]) -> list[dict[str, Any]]:
    return [each.model_dump(exclude_unset=True) for each in offerings]
