"""The rules by which a pool buys machines: where prices come from, what it does not pay, and how its machines divide
among the markets. The table `config.pools.NAME.market`.
"""

from typing import Annotated

from scheduler.model.validation import Amount, Before, Count, Document, Seconds, expected, is_number


def _share_above_none(value: object) -> object:
    if not is_number(value) or not 0 < value <= 1:
        raise expected("a number > 0 and at most 1")
    return value


def _share(value: object) -> object:
    if not is_number(value) or not 0 <= value <= 1:
        raise expected("a number from 0 to 1")
    return value


Share = Annotated[float, Before(_share)]
"""A share from 0 to 1; both ends belong to it."""


class MarketRules(Document):
    """Where the prices of a pool's offerings come from, and which prices and markets it buys."""

    prices: bool = False
    """Whether an offering without a `price` gets the price of the table `prices`, and is not launched if there is none.
    In a pool with an offering with `require` this always holds.
    """
    max_price: Amount | None = None
    """Most dollars per hour of one machine. A dearer offering is not launched; machines that run stay. Default: no
    limit.
    """
    spot_below: Annotated[float, Before(_share_above_none)] | None = None
    """Share of the on-demand price of the same type, up to which spot machines are launched; default: any price. A type
    whose on-demand price is unknown has no such limit.
    """
    on_demand_base: Count = 0
    """Number of slots that have to be on-demand before the pool launches other ones; 0 = none."""
    on_demand_share: Share | None = None
    """Share of the slots above `on_demand_base` that is on-demand, rounded up to whole slots; the others are spot.
    Default: the price decides.
    """
    spot_again_after: Seconds = 0.0
    """Time after a refusal in which a spot offering is not tried again, if `on_demand_after` launches of it in a row
    were refused; 0 = `capacity_hold`.
    """

    @property
    def has_mix(self) -> bool:
        """Whether the pool divides its slots among the markets."""
        return self.on_demand_base > 0 or self.on_demand_share is not None
