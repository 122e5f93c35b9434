"""Learns margins from outcomes, so that intervals have their share of the starts.

Plays do not know everything, so the intervals of their starts are too narrow, too early or too late. The outcomes show
by what factor: each end of an interval gets the margin that a share of the past outcomes needed (conformal prediction).
The shares themselves move with the misses (adaptive conformal inference, Gibbs and Candès 2021). Margins are factors of
the wait. Only outcomes with similar predictions count, because short waits are missed by greater factors.
"""

from collections import deque
from dataclasses import dataclass
from heapq import nsmallest
from math import ceil, exp, log
from typing import Final, NamedTuple

import msgspec

LEAST: Final = 50
"""The fewest outcomes with which there are forecasts."""
KEPT: Final = 1000
NEAR: Final = 150
"""How many of the kept outcomes decide about a margin: those with the most similar predictions."""
STEP: Final = 0.005
"""By how much a miss moves the share of an end, at most by MOST_MOVED in all."""
MOST_MOVED: Final = 0.3
SECONDS: Final = 60.0
"""Is added to waits before they are compared, so that seconds do not count for much."""
MOST: Final = 0.995
ROUNDING: Final = 1e-3
"""The seconds by which an end may lie beside a start that was predicted exactly, because logarithms are rounded."""


class Waits(NamedTuple):
    """Quantiles of a wait in seconds: 10, 50, 90 and 95 %."""

    low: float
    median: float
    high: float
    late: float


class Outcome(NamedTuple):
    """What plays predicted, and how long the wait was."""

    predicted: Waits
    seconds: float


@dataclass
class _End:
    """One end of the interval: the share of the outcomes that it has to hold, and the share that is asked now."""

    target: float
    share: float
    sign: int

    def note(self, *, is_miss: bool) -> None:
        """Ask for more after a miss, for less after a hit, so that misses have their share in the long run."""
        self.share += STEP * (is_miss - (1 - self.target))
        self.share = min(max(self.share, self.target - MOST_MOVED), self.target + MOST_MOVED)


class MarginsRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of margins: the scores of the outcomes, and the shares of the three ends."""

    scores: tuple[tuple[float, float, float, float], ...]
    shares: tuple[float, float, float]


class Margins:
    """The outcomes of forecasts, and the margins that follow from them."""

    def __init__(self) -> None:
        self._outcomes = deque[tuple[float, float, float, float]](maxlen=KEPT)
        """(predicted median, scores of the low, high and late ends): logarithms of factors."""
        self._ends = (_End(0.9, 0.9, -1), _End(0.9, 0.9, 1), _End(0.95, 0.95, 1))

    def __len__(self) -> int:
        return len(self._outcomes)

    def dump(self) -> MarginsRecord:
        """Return what margins are made again from."""
        low, high, late = (end.share for end in self._ends)
        return MarginsRecord(scores=tuple(self._outcomes), shares=(low, high, late))

    def load(self, record: MarginsRecord) -> None:
        """Take a record."""
        self._outcomes.extend(record.scores)
        for end, share in zip(self._ends, record.shares, strict=True):
            end.share = share

    @property
    def are_known(self) -> bool:
        """Whether there are enough outcomes."""
        return len(self._outcomes) >= LEAST

    def note(self, outcome: Outcome, given: Waits | None) -> None:
        """Count an outcome. `given`: the forecast with its margins; None: there was none."""
        predicted, seconds = outcome
        taken = _scale(seconds)
        ends = _list_ends(predicted)
        low, high, late = (end.sign * (taken - each) for end, each in zip(self._ends, ends, strict=True))
        self._outcomes.append((_scale(predicted.median), low, high, late))
        if given is not None:
            for end, each in zip(self._ends, (given.low, given.high, given.late), strict=True):
                end.note(is_miss=end.sign * (seconds - each) > 0)

    def widen(self, predicted: Waits) -> Waits:
        """Return the prediction with its margins."""
        place = _scale(predicted.median)
        # Of equally similar ones the last ones count.
        near = nsmallest(NEAR, reversed(self._outcomes), key=lambda each: abs(each[0] - place))
        low, high, late = (
            each + end.sign * _find_score(sorted(outcome[number] for outcome in near), end.share)
            for number, (end, each) in enumerate(zip(self._ends, _list_ends(predicted), strict=True), 1)
        )
        least = max(0.0, _unscale(low) - ROUNDING)
        most = max(least, _unscale(high) + ROUNDING)
        return Waits(least, min(max(predicted.median, least), most), most, max(most, _unscale(late) + ROUNDING))


def _list_ends(predicted: Waits) -> tuple[float, float, float]:
    """Return the low, high and late ends of a prediction before their margins, as logarithms. Each lies halfway to the
    median: what a few plays say about rare cases is worth less than what they say about the middle.
    """
    middle = _scale(predicted.median)
    low, high, late = ((_scale(each) + middle) / 2 for each in (predicted.low, predicted.high, predicted.late))
    return low, high, late


def _find_score(ordered: list[float], share: float) -> float:
    if not ordered:
        return 0.0
    place = ceil(min(share, MOST) * (len(ordered) + 1)) - 1
    return ordered[min(max(place, 0), len(ordered) - 1)]


def _scale(seconds: float) -> float:
    return log(seconds + SECONDS)


def _unscale(value: float) -> float:
    return max(0.0, exp(min(value, 50.0)) - SECONDS)
