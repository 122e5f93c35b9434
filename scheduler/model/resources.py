"""Resource vectors: maps of a name to an amount, any names; a name that is missing counts as 0.

Source: Orchard's named resources. Unlike there, what is free is never below 0: a host that came back
smaller has nothing left of that name, instead of a number that wrapped around.
"""

from collections.abc import Iterable, Mapping

Resources = Mapping[str, float]
SLACK = 1e-9
"""What adding and subtracting fractions may lose: three times 0.1 cpus fit on 0.3."""


def fits(request: Resources, free: Resources) -> bool:
    """Whether every amount of `request` is at most what `free` has of that name (exactly as much fits)."""
    for name, amount in request.items():  # noqa: SIM110  a generator takes three times as long
        if amount > 0 and amount > free.get(name, 0) + SLACK:
            return False
    return True


def add(left: Resources, right: Resources) -> dict[str, float]:
    """The sum, name by name: {vms: 1} and {vms: 3} are {vms: 4}."""
    total = dict(left)
    for name, amount in right.items():
        total[name] = total.get(name, 0) + amount
    return total


def subtract(left: Resources, right: Resources) -> dict[str, float]:
    """What is left, name by name, never below 0; names that only `right` has are left out."""
    return {name: max(0, amount - right.get(name, 0)) for name, amount in left.items()}


def merge(left: Resources, right: Resources) -> dict[str, float]:
    """Both maps in one; where both name it, the right one wins: defaults on the left, wishes on the right."""
    return {**left, **right}


def total(requests: Iterable[Resources]) -> dict[str, float]:
    """The sum of any number of vectors; of none it is {}."""
    result: dict[str, float] = {}
    for request in requests:
        for name, amount in request.items():
            result[name] = result.get(name, 0) + amount
    return result


def shape_of(resources: Resources) -> tuple[tuple[str, float], ...]:
    """A hashable form: equal maps have equal shapes ({a: 0} and {} are not equal)."""
    return tuple(sorted(resources.items()))
