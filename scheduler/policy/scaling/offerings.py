"""Offerings: what a new slot of a pool could be, and in which order they are tried.

Source: Arvados' choice of an instance type. A pool that lists no offerings counts as one.
"""

from dataclasses import dataclass

from scheduler.model.labels import Labels
from scheduler.model.resources import Resources
from scheduler.model.rules import Pool


@dataclass(frozen=True, slots=True)
class Choice:
    """One thing that could be launched in a pool. `key` is None where the pool lists no offerings."""

    key: str | None
    market: str
    price: float
    capacity: Resources | None
    labels: Labels

    @property
    def rank(self) -> tuple[float, float, float, str]:
        """Cheapest first, then more memory, then more cpus, then by name."""
        held = self.capacity or {}
        return (self.price, -held.get("memory_mib", 0), -held.get("cpus", 0), self.key or "")


def list_choices(pool: Pool) -> list[Choice]:
    """What a new slot of this pool could be, in the order in which it is tried."""
    if not pool.offerings:
        return [Choice(None, "", 0.0, pool.resources, pool.labels)]
    choices = [
        Choice(
            key=key,
            market=offering.market,
            price=offering.price,
            capacity=pool.resources if offering.resources is None else offering.resources,
            labels={**pool.labels, **(offering.labels or {})},
        )
        for key, offering in pool.offering_by_key.items()
    ]
    return sorted(choices, key=lambda choice: choice.rank)


def list_eligible(choices: list[Choice], pool: Pool) -> list[Choice]:
    """Of those that fit (cheapest first), each at most `price_factor` times as dear as the cheapest one,
    held or not.
    """
    most = choices[0].price * max(1.0, pool.price_factor) if choices else 0.0
    return [choice for choice in choices if choice.price <= most]
