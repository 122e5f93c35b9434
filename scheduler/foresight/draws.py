"""Draws the run times of work at random, from the run times of its classes.

Each class has few run times, so a draw mixes them with those of the class's parents: the more run times the class has,
the more often one of them is drawn. Work that states an `expected_runtime` draws ratios of run time and expectation.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from random import Random
from typing import Final, NamedTuple

from scheduler.foresight.present import Kind
from scheduler.model.run_times import RunTimes

OF_PARENTS: Final = 4.0
"""A class with this number of run times is asked in half of the draws, its parents in the other half."""
BLOCK: Final = 5
OF_LAST: Final = 0.5
"""In this share of the plays a class draws from its last run times, else from others that followed each other."""
BOOT_SECONDS: Final = 120.0
"""How long a machine takes to come if none has been seen."""
UNKNOWN_SECONDS: Final = 3600.0
"""The mean run time of work without any known run time."""


class _Known(NamedTuple):
    row: RunTimes
    seconds: list[float]
    ratios: list[float]


class _Block(NamedTuple):
    """From what a class draws during one play. `is_own`: from its own run times, not from those of its parents."""

    is_own: bool
    seconds: list[float]
    ratios: list[float]


class Draws:
    """Draws run times. `run_times`: the rows of the view by class."""

    def __init__(self, run_times: Mapping[str, RunTimes], random: Random) -> None:
        self._run_times, self._random = run_times, random
        self._sorted: dict[str, _Known] = {}
        self._blocks: dict[str, _Block] = {}

    def take_rows(self, run_times: Mapping[str, RunTimes]) -> None:
        """Draw from these rows from now on."""
        self._run_times = run_times
        if len(self._sorted) > 2 * len(run_times) + 100:
            self._sorted.clear()

    def draw(self, kind: Kind, elapsed: float) -> float:
        """Return a run time of work of this kind that has run for `elapsed` seconds: longer than that, and at most its
        limit.
        """
        stated = kind.request.expected_runtime
        unit = stated or 1.0
        found = self._draw(kind.classes, elapsed / unit, has_unit=stated is not None)
        if found is not None and found > 1 and stated is not None:
            # The ratio may come from much shorter work, so it is no reason to run longer than any work has run.
            other = self._draw(kind.classes, elapsed, has_unit=False)
            found = min(found, max(1.0, (other or 0.0) / stated))
        if found is None:
            found = (elapsed + self._random.expovariate(1 / (stated or max(UNKNOWN_SECONDS, elapsed)))) / unit
        return max(elapsed + 1.0, min(found * unit, kind.most))

    def _draw(self, classes: tuple[str, ...], elapsed: float, *, has_unit: bool) -> float | None:
        last = None
        for name in classes:
            known = self._find(name)
            if known is None:
                continue
            block = self._blocks.get(name) or self._choose_block(name, known.row)
            values = block.ratios if has_unit else block.seconds
            if not values or values[-1] <= elapsed:
                values = known.ratios if has_unit else known.seconds
            longer = len(values) - bisect_right(values, elapsed) if elapsed > 0 else len(values)
            if longer:
                last = values[len(values) - longer + int(self._random.random() * longer)]
                if block.is_own:
                    return last
        return last

    def _choose_block(self, name: str, row: RunTimes) -> _Block:
        random, seconds, ratios = self._random.random, row.seconds, row.ratios
        is_own = random() < len(seconds) / (len(seconds) + OF_PARENTS)
        share = 1.0 if random() < OF_LAST else random()
        found = _Block(is_own, _cut(seconds, share), _cut(ratios, share))
        self._blocks[name] = found
        return found

    def _find(self, name: str) -> _Known | None:
        row = self._run_times.get(name)
        if row is None:
            return None
        known = self._sorted.get(name)
        if known is None or known.row is not row:
            known = self._sorted[name] = _Known(row, sorted(row.seconds), sorted(row.ratios))
        return known

    def begin(self) -> None:
        """Begin a play. Within one play the run times of a class are alike, as those of a burst of work are."""
        self._blocks.clear()

    def draw_boot(self, seconds: Sequence[float]) -> float:
        """Return one of the times that machines took to come."""
        return seconds[int(self._random.random() * len(seconds))] if seconds else BOOT_SECONDS


def _cut(values: Sequence[float], share: float) -> list[float]:
    """Return values that follow each other, in order. `share`: where they stand; 1: they are the last ones."""
    last = max(0, len(values) - BLOCK)
    first = min(last, int(share * (last + 1)))
    return sorted(values[first : first + BLOCK])
