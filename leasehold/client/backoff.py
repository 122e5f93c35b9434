"""Pauses between repeated attempts. Each pause is twice as long as the one before, up to a limit, and is shortened by a
random part.

Without the random part, thousands of clients that failed at the same moment would retry at the same moment.
"""

import random
from collections.abc import Callable
from typing import Final

JITTER: Final = 0.25
"""Largest part of a pause that is removed at random, as a fraction."""


class Backoff:
    """The increasing pauses of one series of attempts. `draw` returns a random number from 0 to 1."""

    def __init__(self, first: float, most: float, draw: Callable[[], float] = random.random) -> None:
        self._first, self._most, self._draw = first, most, draw
        self._following = first

    def take(self) -> float:
        """Return the pause before the next attempt in seconds, and double the one after it up to the limit."""
        pause, self._following = self._following, min(2 * self._following, self._most)
        return shorten(pause, self._draw)

    def reset(self) -> None:
        """Start the series of pauses between attempts again with the shortest pause."""
        self._following = self._first


def shorten(seconds: float, draw: Callable[[], float] = random.random) -> float:
    """Return `seconds` less a random part of at most the fraction JITTER."""
    return seconds * (1 - JITTER * draw())


def lengthen(seconds: float, draw: Callable[[], float] = random.random) -> float:
    """Return `seconds` plus a random part of at most half of `seconds`."""
    return seconds * (1 + draw() / 2)
