"""Contradictions: values that are each valid but cannot work together.

`leasehold config check`, `leasehold apply` and the start of a process refuse them. Unlikely combinations that can work
are warnings instead.
"""

from collections.abc import Iterator
from typing import Final

from scheduler.model.resources import Resources, fits
from scheduler.model.rules import Pool, Rules
from scheduler.model.validation import Fault, show

OUR_TAGS: Final = "leasehold:"
"""Prefix of the tags that name the cluster, pool, slot and launch of a machine."""


def find_contradictions(rules: Rules) -> Iterator[Fault]:
    """Yield every contradiction, each with the path of the key that should change."""
    for name, pool in rules.pools.items():
        if pool.is_elastic:
            yield from find_misfits(f"pools.{name}", pool)
            yield from _find_claimed_tags(f"pools.{name}", pool)
    yield from _find_minima(rules)


def find_misfits(path: str, pool: Pool) -> Iterator[Fault]:
    """Yield the `default_resources` of a pool that exceed every slot of the pool: its requests could never fit."""
    if pool.counts_leases_only:
        return
    held = _list_capacities(pool)
    names = {name for each in held for name in each}
    found = False
    for name, amount in pool.default_resources.items():
        largest = max((each.get(name, 0.0) for each in held), default=0.0)
        if amount > largest:
            found = True
            known = f"at most {largest:g}" if name in names else f"one of {', '.join(sorted(names)) or 'none'}"
            yield Fault(f"{path}.default_resources.{name}", f"{known} (no slot holds more)", f"{amount:g}")
    if not found and not any(fits(pool.default_resources, each) for each in held):
        got = ", ".join(f"{name} {amount:g}" for name, amount in pool.default_resources.items())
        yield Fault(f"{path}.default_resources", "amounts that one offering holds together", got)


def _list_capacities(pool: Pool) -> list[Resources]:
    """Return the capacities that a new slot may have: those of the offerings, else that of the pool."""
    own = pool.resources or {}
    return [own if each.resources is None else each.resources for each in pool.offerings] or [own]


def _find_claimed_tags(path: str, pool: Pool) -> Iterator[Fault]:
    """Yield tags of a pool that would mark its machines as those of another owner."""
    for name in pool.ec2.tags:
        if name.startswith(OUR_TAGS):
            yield Fault(f"{path}.ec2.tags.{name}", f"a tag that does not begin with {OUR_TAGS}", show(name))


def _find_minima(rules: Rules) -> Iterator[Fault]:
    """Yield limits that are lower than the sum of the pools' min_slots."""
    tables = {"scheduler": (rules.scheduler.max_slots, list(rules.pools.values()))}
    for name, own in rules.scheduler.system.items():
        tables[f"scheduler.system.{name}"] = own.max_slots, [p for p in rules.pools.values() if p.system == name]
    for path, (most, pools) in tables.items():
        least = sum(pool.min_slots for pool in pools if pool.is_elastic)
        if most and least > most:
            yield Fault(f"{path}.max_slots", f"at least the pools' min_slots ({least})", str(most))
