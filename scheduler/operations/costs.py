"""Sums of the cost ledger, as commands and metrics show them."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Final, Literal, get_args

import msgspec

from scheduler.model.costs import COST_KINDS, Cost
from scheduler.model.slots import CostKind

By = Literal["pool", "account", "offering", "kind"]
WAYS: Final[tuple[By, ...]] = get_args(By)


class CostSum(msgspec.Struct, frozen=True, kw_only=True):
    """What the machines of one pool, account, offering or kind have cost, in dollars. `name`: the pool, account,
    offering or kind; "" for costs without an account or offering. `seconds`: the time of the machines.
    """

    name: str
    dollars: float
    seconds: float
    unpriced_seconds: float
    """The part of `seconds` for which the price is unknown, so that it costs 0 dollars."""
    dollars_by_kind: dict[CostKind, float]
    seconds_by_kind: dict[CostKind, float]


def sum_by(costs: Iterable[Cost], by: By) -> list[CostSum]:
    """Return the sums of these costs by pool, account, offering or kind (`by`), the highest cost first. Offerings are
    named with their pools: `POOL/OFFERING`.
    """
    groups: dict[str, list[Cost]] = defaultdict(list)
    for cost in costs:
        groups[f"{cost.pool}/{cost.offering}" if by == "offering" else getattr(cost, by)].append(cost)
    sums = [_add_up(name, each) for name, each in groups.items()]
    return sorted(sums, key=lambda each: (-each.dollars, -each.seconds, each.name))


def add_up(costs: Iterable[Cost]) -> CostSum:
    """Return the sum of all these costs, with an empty name."""
    return _add_up("", list(costs))


def _add_up(name: str, costs: list[Cost]) -> CostSum:
    dollars, seconds = dict.fromkeys(COST_KINDS, 0.0), dict.fromkeys(COST_KINDS, 0.0)
    for cost in costs:
        dollars[cost.kind] += cost.dollars
        seconds[cost.kind] += cost.seconds
    return CostSum(
        name=name,
        dollars=sum(dollars.values()),
        seconds=sum(seconds.values()),
        unpriced_seconds=sum(cost.unpriced for cost in costs),
        dollars_by_kind=dollars,
        seconds_by_kind=seconds,
    )
