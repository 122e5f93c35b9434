"""What a new slot of a pool could be, and in which order the offerings are tried.

Source: Arvados' choice of an instance type. A pool without offerings counts as one offering.
"""

from dataclasses import dataclass

from scheduler.model.labels import Labels
from scheduler.model.resources import Resources
from scheduler.model.rules import Pool


@dataclass(frozen=True, slots=True)
class Choice:
    """One offering of a pool. `key` is None if the pool has none."""

    key: str | None
    market: str
    price: float
    capacity: Resources | None
    labels: Labels

    @property
    def rank(self) -> tuple[float, float, float, str]:
        """Sort key: cheapest first, then more memory, then more cpus, then by name."""
        held = self.capacity or {}
        return (self.price, -held.get("memory_mib", 0), -held.get("cpus", 0), self.key or "")


def list_choices(pool: Pool) -> list[Choice]:
    """Return what a new slot of this pool could be, in the order in which it is tried."""
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
    """Return those that cost at most `price_factor` times as much as the cheapest, which is the first of them. The
    cheapest one counts even while a back-off holds it.
    """
    most = choices[0].price * max(1.0, pool.price_factor) if choices else 0.0
    return [choice for choice in choices if choice.price <= most]
