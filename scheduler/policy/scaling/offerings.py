"""The offerings that a launch may choose: their order, those that are eligible, and the fallback to on-demand.

Sources: Arvados (choice of an instance type); the market of a launch is that of `market_mix.py`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from scheduler.model.launch_backoff import Hold, hold_id
from scheduler.model.pools import Pool
from scheduler.model.resources import Labels, Resources
from scheduler.model.slots import Market
from scheduler.policy.capacity.requests import InstanceRequest


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


def could_serve(name: str, choice: Choice, needs: Iterable[InstanceRequest]) -> bool:
    """Return whether a new slot of this choice in a pool could hold one of these instances."""
    there = (need for need in needs if name in need.given)
    return any(need.could_hold(name, choice.capacity, choice.labels) for need in there)


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


def list_eligible(choices: Sequence[Choice], pool: Pool, turn: Market | None = None) -> list[Choice]:
    """Return the choices of the market `turn` (None: of any) that cost at most `price_factor` times as much as the
    cheapest one of them, which is the first.

    The cheapest one sets the price even while a back-off prevents its launch.
    """
    offered = choices if turn is None else [choice for choice in choices if choice.market == turn]
    most = offered[0].price * max(1.0, pool.price_factor) if offered else 0.0
    return [choice for choice in offered if choice.price <= most]


def list_fallback(
    name: str, pool: Pool, fitting: Sequence[Choice], eligible: Sequence[Choice], holds: Mapping[str, Hold],
    turn: Market | None = None, *, is_impatient: bool = False,
) -> list[Choice]:  # fmt: skip
    """Return the on-demand offerings that may be chosen after the `eligible` ones, whatever they cost.

    They may be chosen after `on_demand_after` capacity errors in a row on each eligible spot offering, or at once if it
    is spot's turn and no spot offering is for sale. `is_impatient`: also after as many interruptions of the
    reservation. When it is the turn of on-demand, the eligible ones are all that may be launched.
    """
    most, spot = pool.on_demand_after, [choice for choice in eligible if choice.market == "spot"]
    if not most or not (spot or turn == "spot"):
        return []
    refused = [holds.get(hold_id(name, "capacity", choice.key or "")) for choice in spot]
    if not is_impatient and any(hold is None or hold.streak < most for hold in refused):
        return []
    return [choice for choice in fitting if choice.market == "on-demand" and choice not in eligible]


def find_end(pool: Pool, market: str, hold: Hold) -> float:
    """Return until when a launch back-off pauses an offering of this market.

    After `on_demand_after` refusals in a row for lack of capacity, a spot offering is tried again when
    `spot_again_after` has passed since the last one. Otherwise launches would go from one market to the other at each
    end of a `capacity_hold`.
    """
    has_fallen_back = hold.kind == "capacity" and market == "spot" and 0 < pool.on_demand_after <= hold.streak
    return max(hold.until, hold.refused_at + pool.market.spot_again_after) if has_fallen_back else hold.until


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
