"""Learns margins from outcomes, so that intervals have their share of the starts.

Plays do not know everything, so the intervals of their starts are too narrow, too early or too late. The outcomes show
by what factor: each end of an interval gets the margin that a share of the past outcomes needed (conformal prediction).
The shares themselves move with the misses (adaptive conformal inference, Gibbs and Candès 2021). Margins are factors of
the wait. Only outcomes with similar predictions count, because short waits are missed by greater factors.

How many outcomes are similar, and how much the ends of a prediction are worth beside its median, differs from time to
time. So several ways compute each end, and it is their mean, in which the ways that lost little lately weigh more
(exponential weights, Cesa-Bianchi and Lugosi 2006).
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, exp, log
from statistics import fmean, median
from typing import Final, NamedTuple

import msgspec

from scheduler.model.forecasts import Quality

LEAST: Final = 50
"""The fewest outcomes with which there are forecasts."""
KEPT: Final = 2500
WAYS: Final = tuple(product((60, 250, 1000), (0.0, 0.5, 1.0)))
"""The ways to compute an end: how many of the kept outcomes decide, those with the most similar predictions; and what
part of the distance between the predicted end and the median counts. What a few plays say about rare cases is often
worth less than what they say about the middle.
"""
RATE: Final = 2.0
"""By this much a unit of loss lowers the logarithm of a way's weight."""
MEMORY: Final = 0.99
"""What remains of earlier losses after another outcome."""
GRAIN: Final = 0.01
"""Predictions whose medians differ by less than this factor have the same margins, so that these are computed once."""
STEP: Final = 0.003
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


Ends = tuple[tuple[float, ...], ...]
"""Where each way puts each end, as logarithms of waits."""


class Given(NamedTuple):
    """A prediction with its margins."""

    waits: Waits
    ends: Ends


class _Row(NamedTuple):
    """What is kept of an outcome: the logarithm of the predicted median, and beside it those of the wait and of the
    predicted ends.
    """

    place: float
    taken: float
    low: float
    high: float
    late: float


@dataclass
class _End:
    """One end of the interval: its number, the share of the outcomes that it has to hold, the share that is asked now,
    and the logarithms of the weights of the ways.
    """

    number: int
    target: float
    sign: int
    share: float
    weights: list[float]

    def note(self, *, is_miss: bool) -> None:
        """Ask for more after a miss, for less after a hit, so that misses have their share in the long run."""
        self.share += STEP * (is_miss - (1 - self.target))
        self.share = min(max(self.share, self.target - MOST_MOVED), self.target + MOST_MOVED)

    def weigh(self, places: tuple[float, ...], taken: float) -> None:
        """Count the pinball loss of each way."""
        missed, kept = RATE * self.target, RATE * (1 - self.target)
        for way, place in enumerate(places):
            beyond = self.sign * (taken - place)
            self.weights[way] = MEMORY * self.weights[way] - max(missed * beyond, -kept * beyond)

    def average(self, places: tuple[float, ...]) -> float:
        """Return the mean of the ways by their weights."""
        most = max(self.weights)
        weights = [exp(each - most) for each in self.weights]
        return sum(weight * place for weight, place in zip(weights, places, strict=True)) / sum(weights)


class MarginsRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of margins: the outcomes, and the shares and weights of the three ends."""

    rows: tuple[tuple[float, float, float, float, float], ...]
    shares: tuple[float, float, float]
    weights: tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]


class Margins:
    """The outcomes of forecasts, and the margins that follow from them."""

    def __init__(self) -> None:
        self._rows = deque[_Row](maxlen=KEPT)
        self._ends = tuple(
            _End(number, target, sign, target, [0.0] * len(WAYS))
            for number, (target, sign) in enumerate(((0.9, -1), (0.9, 1), (0.95, 1)))
        )
        self._known: dict[int, Ends] = {}
        """Median in units of GRAIN -> the margins of each way at each end."""

    def __len__(self) -> int:
        return len(self._rows)

    def dump(self) -> MarginsRecord:
        """Return what margins are made again from."""
        low, high, late = self._ends
        return MarginsRecord(
            rows=tuple(self._rows),
            shares=(low.share, high.share, late.share),
            weights=(tuple(low.weights), tuple(high.weights), tuple(late.weights)),
        )

    def load(self, record: MarginsRecord) -> None:
        """Take a record. The weights of other ways than those of this version count as nothing."""
        self._known.clear()
        self._rows.extend(_Row(*each) for each in record.rows)
        for end, share, weights in zip(self._ends, record.shares, record.weights, strict=True):
            end.share = share
            if len(weights) == len(WAYS):
                end.weights = list(weights)

    @property
    def are_known(self) -> bool:
        """Whether there are enough outcomes."""
        return len(self._rows) >= LEAST

    def note(self, outcome: Outcome, given: Given | None) -> None:
        """Count an outcome. `given`: the forecast with its margins; None: there was none."""
        self._known.clear()
        predicted, seconds = outcome
        place, taken = _scale(predicted.median), _scale(seconds)
        low, high, late = (each - place for each in _list_ends(predicted))
        self._rows.append(_Row(place, taken - place, low, high, late))
        if given is not None:
            waits = (given.waits.low, given.waits.high, given.waits.late)
            for end, stated, places in zip(self._ends, waits, given.ends, strict=True):
                end.note(is_miss=end.sign * (seconds - stated) > 0)
                end.weigh(places, taken)

    def widen(self, predicted: Waits) -> Given:
        """Return the prediction with its margins."""
        place = _scale(predicted.median)
        ends = tuple(
            tuple(place + part * (each - place) + margin for (_, part), margin in zip(WAYS, margins, strict=True))
            for each, margins in zip(_list_ends(predicted), self._find_margins(place), strict=True)
        )
        low, high, late = (end.average(places) for end, places in zip(self._ends, ends, strict=True))
        least = max(0.0, _unscale(low) - ROUNDING)
        most = max(least, _unscale(high) + ROUNDING)
        median = min(max(predicted.median, least), most)
        return Given(Waits(least, median, most, max(most, _unscale(late) + ROUNDING)), ends)

    def _find_margins(self, place: float) -> Ends:
        """Return by how much each way moves each end at this median."""
        grain = round(place / GRAIN)
        known = self._known.get(grain)
        if known is None:
            middle = grain * GRAIN
            near = list(reversed(self._rows))  # of equally similar ones the last ones count
            near.sort(key=lambda row: abs(row.place - middle))
            known = self._known[grain] = tuple(
                tuple(_find_margin(near[:most], end, part) for most, part in WAYS) for end in self._ends
            )
        return known


def _find_margin(near: list[_Row], end: _End, part: float) -> float:
    first = 2 + end.number
    ordered = sorted(end.sign * (row.taken - part * row[first]) for row in near)
    if not ordered:
        return 0.0
    place = ceil(min(end.share, MOST) * (len(ordered) + 1)) - 1
    return end.sign * ordered[min(max(place, 0), len(ordered) - 1)]


def _list_ends(predicted: Waits) -> tuple[float, float, float]:
    """Return the low, high and late ends of a prediction as logarithms."""
    return _scale(predicted.low), _scale(predicted.high), _scale(predicted.late)


def _scale(seconds: float) -> float:
    return log(seconds + SECONDS)


def _unscale(value: float) -> float:
    return max(0.0, exp(min(value, 50.0)) - SECONDS)


# Counts how well forecasts were kept, by classes of reservations. Bounded: the last outcomes of the first classes.


ALL: Final = "all"
KEPT_OUTCOMES: Final = 500
MOST_CLASSES: Final = 50
SHARES: Final = (0.1, 0.5, 0.9, 0.95)
"""The probabilities of the quantiles in `Waits`."""


class _Kept(NamedTuple):
    given: Waits
    seconds: float


class QualityRecord:
    """The last outcomes of each class, and of all."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {ALL: 0}
        self._kept: dict[str, deque[_Kept]] = {ALL: deque(maxlen=KEPT_OUTCOMES)}

    def note(self, name: str, given: Waits | None, seconds: float) -> None:
        """Count a start of the class `name` after this wait. `given`: its forecast; None: there was none."""
        if name not in self._kept and len(self._kept) <= MOST_CLASSES:
            self._counts[name], self._kept[name] = 0, deque(maxlen=KEPT_OUTCOMES)
        for each in {name, ALL} & self._kept.keys():
            self._counts[each] += 1
            if given is not None:
                self._kept[each].append(_Kept(given, seconds))

    def list(self) -> tuple[Quality, ...]:
        """Return the quality of all forecasts, and that of each class by name."""
        return tuple(
            _judge(name, self._counts[name], [*self._kept[name]])
            for name in sorted(self._kept, key=lambda each: (each != ALL, each))
        )


def find_loss(share: float, stated: float, seconds: float) -> float:
    """Return the pinball loss of a stated quantile."""
    return max(share * (seconds - stated), (1 - share) * (stated - seconds))


def _judge(name: str, count: int, kept: Sequence[_Kept]) -> Quality:
    if not kept:
        return Quality(name=name, count=count)
    return Quality(
        name=name,
        count=count,
        coverage=fmean(each.given.low <= each.seconds <= each.given.high for each in kept),
        width=median(each.given.high - each.given.low for each in kept),
        loss=fmean(
            find_loss(0.1, each.given.low, each.seconds) + find_loss(0.9, each.given.high, each.seconds)
            for each in kept
        ),
        calibration=tuple(
            (share, fmean(each.seconds <= each.given[place] for each in kept)) for place, share in enumerate(SHARES)
        ),
    )
