"""The offerings of a pool in the order in which a launch chooses them. Source: Arvados (choice of an instance type)."""

from collections.abc import Collection
from dataclasses import dataclass

from scheduler.model.pools import Pool
from scheduler.model.resources import Labels, Resources


@dataclass(frozen=True, slots=True)
class Choice:
    """One offering that a launch in a pool may choose. `key` is None if the pool has no offerings."""

    key: str | None
    market: str
    price: float
    capacity: Resources | None
    labels: Labels
    is_for_sale: bool = True

    @property
    def rank(self) -> tuple[float, float, float, str]:
        """The sort key of an offering: cheapest first, then more memory, then more cpus, then by name."""
        held = self.capacity or {}
        return (self.price, -held.get("memory_mib", 0), -held.get("cpus", 0), self.key or "")


def list_choices(pool: Pool) -> list[Choice]:
    """Return the offerings that a new slot of this pool could be, in the order in which they are tried.

    A pool without offerings counts as one offering. Offerings that are not for sale, because their type or price is
    unknown or their price too high, are missing.
    """
    return [choice for choice in list_configured(pool) if choice.is_for_sale]


def list_configured(pool: Pool) -> list[Choice]:
    """Return all offerings of a pool in the order of choice, also those that are not for sale."""
    if not pool.offerings:
        return [Choice(None, "", 0.0, pool.resources, pool.labels)]
    choices = [
        Choice(
            key=key,
            market=offering.market,
            price=offering.price,
            capacity=pool.resources if offering.resources is None else offering.resources,
            labels={**pool.labels, **(offering.labels or {})},
            is_for_sale=offering.is_for_sale,
        )
        for key, offering in pool.offering_by_key.items()
    ]
    return sorted(choices, key=lambda choice: choice.rank)


def list_eligible(choices: list[Choice], pool: Pool) -> list[Choice]:
    """Return the choices that cost at most `price_factor` times as much as the cheapest one, which is the first.

    The cheapest one sets the price even while a back-off prevents its launch.
    """
    most = choices[0].price * max(1.0, pool.price_factor) if choices else 0.0
    return [choice for choice in choices if choice.price <= most]


def list_alternatives(pool: Pool, chosen: Choice, held: Collection[str]) -> list[Choice]:
    """Return `chosen` and the other choices of its market that a launch may get in its place, best first.

    An alternative has at least the resources and the labels of the chosen one, so that it serves all reservations for
    which the slot is meant. It costs at most `price_factor` times as much as the cheapest of them. `held`: the keys of
    the offerings that a launch back-off pauses.
    """
    alike = [each for each in list_choices(pool) if each.market == chosen.market and _covers(each, chosen)]
    return [chosen, *(each for each in list_eligible(alike, pool) if each.key not in {chosen.key, *held})]


def _covers(choice: Choice, other: Choice) -> bool:
    if (choice.capacity is None) != (other.capacity is None) or not other.labels.items() <= choice.labels.items():
        return False
    amounts = choice.capacity or {}
    return all(amounts.get(name, 0.0) >= amount for name, amount in (other.capacity or {}).items())
