"""The process by which simulated spot prices move: a seeded random walk of a share of the on-demand price.

The EC2 emulator and the simulation use it. AWS does not publish how spot prices come about, so the process is only a
stand-in: prices that differ from type to type, move slowly, and stay within bounds.
"""

from math import exp, sqrt
from random import Random
from typing import Final

HOUR: Final = 3600.0


class PriceWalk:
    """The random walk of one price, as shares of the on-demand price.

    The first share is uniform between `low` and `high`. Each step multiplies it by exp(x), where x is normal with the
    standard deviation `volatility` × √(step in hours), and keeps the result between `low` and `high`. `seed`: equal
    texts give equal walks.
    """

    def __init__(self, low: float, high: float, volatility: float, step_seconds: float, seed: str) -> None:
        self._low, self._high = low, high
        self._change = volatility * sqrt(step_seconds / HOUR)
        self._random = Random(seed)
        self._shares = [self._random.uniform(low, high)]

    def find_share(self, steps: int) -> float:
        """Return the price, as a share of the on-demand price, after `steps` steps of `step_seconds` from the start of
        the walk. 0: the first share.
        """
        shares = self._shares
        while len(shares) <= steps:
            moved = shares[-1] * exp(self._random.gauss(0.0, self._change))
            shares.append(min(self._high, max(self._low, moved)))
        return shares[steps]
