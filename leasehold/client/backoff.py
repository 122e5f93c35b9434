"""Pauses between attempts: each twice as long as the one before, up to a limit, and each a little shorter by chance.

Without the chance, thousands of clients that failed at the same moment would try again at the same moment.
"""

import random
from collections.abc import Callable
from typing import Final

JITTER: Final = 0.25
"""A pause is shorter than its nominal length by at most this share."""


class Backoff:
    """The pauses of one series of attempts. `draw` returns a number from 0 to 1."""

    def __init__(self, first: float, most: float, draw: Callable[[], float] = random.random) -> None:
        self._first, self._most, self._draw = first, most, draw
        self._following = first

    def take(self) -> float:
        """The next pause in seconds."""
        pause, self._following = self._following, min(2 * self._following, self._most)
        return shorten(pause, self._draw)

    def reset(self) -> None:
        """Start again with the shortest pause."""
        self._following = self._first


def shorten(seconds: float, draw: Callable[[], float] = random.random) -> float:
    """This long, less a random part of at most JITTER."""
    return seconds * (1 - JITTER * draw())


def lengthen(seconds: float, draw: Callable[[], float] = random.random) -> float:
    """This long, and up to half as long again."""
    return seconds * (1 + draw() / 2)
