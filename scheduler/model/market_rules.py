"""The rules by which a pool buys machines: where prices come from, and what it does not pay. The table
`config.pools.NAME.market`.
"""

from typing import Annotated

from scheduler.model.validation import Amount, Before, Document, expected, is_number


def _share(value: object) -> object:
    if not is_number(value) or not 0 < value <= 1:
        raise expected("a number > 0 and at most 1")
    return value


class MarketRules(Document):
    """Where the prices of a pool's offerings come from, and which prices it does not pay."""

    prices: bool = False
    """Whether an offering without a `price` gets the price of the table `prices`, and is not launched if there is none.
    In a pool with an offering with `require` this always holds.
    """
    max_price: Amount | None = None
    """Most dollars per hour of one machine. A dearer offering is not launched; machines that run stay. Default: no
    limit.
    """
    spot_below: Annotated[float, Before(_share)] | None = None
    """Share of the on-demand price of the same type, up to which spot machines are launched; default: any price. A type
    whose on-demand price is unknown has no such limit.
    """
