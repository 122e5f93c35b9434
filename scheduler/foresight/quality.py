"""Counts how well forecasts were kept, by classes of reservations. Bounded: the last outcomes of the first classes."""

from collections import deque
from collections.abc import Sequence
from statistics import fmean, median
from typing import Final, NamedTuple

from scheduler.foresight.margins import Waits
from scheduler.model.forecasts import Quality

ALL: Final = "all"
KEPT: Final = 500
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
        self._kept: dict[str, deque[_Kept]] = {ALL: deque(maxlen=KEPT)}

    def note(self, name: str, given: Waits | None, seconds: float) -> None:
        """Count a start of the class `name` after this wait. `given`: its forecast; None: there was none."""
        if name not in self._kept and len(self._kept) <= MOST_CLASSES:
            self._counts[name], self._kept[name] = 0, deque(maxlen=KEPT)
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
