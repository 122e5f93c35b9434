"""Pauses between repeated attempts. Each pause is twice as long as the one before, up to a limit. A random part of each
pause is removed.

Without the random part, thousands of clients that failed at the same moment would try again at the same moment.
"""

import random
from collections.abc import Callable
from typing import Final

JITTER: Final = 0.25
"""A pause is shortened by a random fraction from 0 to this number, e.g. a pause of 4 s to a time from 3 s to 4 s."""


class Backoff:
    """The growing pauses between the attempts at one action. `first`: the first pause, `most`: the longest one, in
    seconds. `draw` returns a random number from 0 to 1.
    """

    def __init__(self, first: float, most: float, draw: Callable[[], float] = random.random) -> None:
        self._first, self._most, self._draw = first, most, draw
        self._following = first

    def take(self) -> float:
        """Return the pause before the next attempt, in seconds. The pause after it will be twice as long, up to the
        limit.
        """
        pause, self._following = self._following, min(2 * self._following, self._most)
        return shorten(pause, self._draw)

    def reset(self) -> None:
        """Make the next pause the shortest one again."""
        self._following = self._first


def shorten(seconds: float, draw: Callable[[], float] = random.random) -> float:
    """Return `seconds` minus a random part, which is at most the fraction JITTER of `seconds`."""
    return seconds * (1 - JITTER * draw())


def lengthen(seconds: float, draw: Callable[[], float] = random.random) -> float:
    """Return `seconds` plus a random part, which is at most half of `seconds`."""
    return seconds * (1 + draw() / 2)
