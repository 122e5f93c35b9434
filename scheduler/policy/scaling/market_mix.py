"""The mix of a pool: how its slots divide among the markets (spot and on-demand), and which market its next launch is
to have.

Source: EC2 Auto Scaling (`OnDemandBaseCapacity`, `OnDemandPercentageAboveBaseCapacity`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from typing import Final

from scheduler.model.pools import MarketRules
from scheduler.model.slots import Market
from scheduler.model.transitions import IN_FLIGHT

_STAYING: Final = IN_FLIGHT | {"ready"}
"""States of the slots that count in the mix. Slots that drain or terminate do not count, because a launch has to
replace them.
"""
_DIGITS: Final = 9
"""A share of slots is rounded to this number of decimals before it is rounded up: as floats, 0.1 × 30 is a little more
than 3.
"""


@dataclass(slots=True)
class MarketMix:
    """How many slots of a pool are in flight or ready (`slots`), and how many of them are on-demand (`on_demand`). A
    slot without a market does not count as on-demand.
    """

    slots: int = 0
    on_demand: int = 0

    def add(self, market: str, count: int = 1) -> None:
        """Add `count` slots of this market to the mix; a negative number takes slots out."""
        self.slots += count
        self.on_demand += count * (market == "on-demand")


def count_mix(found: Iterable[tuple[str, str]]) -> MarketMix:
    """Return the mix of slots. `found`: (state, market) of each slot."""
    mix = MarketMix()
    for state, market in found:
        if state in _STAYING:
            mix.add(market)
    return mix


def find_turn(rules: MarketRules, mix: MarketMix) -> Market | None:
    """Return the market that the next launch of a pool is to have; None if the price decides.

    The pool's slots and the next one are counted together. Of them, `on_demand_base` have to be on-demand, and of the
    remaining ones the share `on_demand_share`, rounded up. If fewer are on-demand, the next launch is on-demand.
    Otherwise the next launch is spot if the pool has an `on_demand_share`, and the price decides if it has none.
    """
    number, share = mix.slots + 1, rules.on_demand_share
    above = max(0, number - rules.on_demand_base)
    if mix.on_demand < number - above + ceil(round(above * (share or 0.0), _DIGITS)):
        return "on-demand"
    return None if share is None else "spot"


def describe_turn(rules: MarketRules, mix: MarketMix) -> str | None:
    """Return a text about the market that the next launch is to have, and why; None if the price decides."""
    turn = find_turn(rules, mix)
    if turn is None:
        return None
    keys = [f"on_demand_base {rules.on_demand_base}"] if rules.on_demand_base else []
    keys += [] if rules.on_demand_share is None else [f"on_demand_share {rules.on_demand_share:g}"]
    counts = f"{mix.on_demand} of {mix.slots} slots are on-demand"
    return f"the next machine is to be {turn}: {counts} ({', '.join(keys)})"
