"""Replays arrivals: the work that was submitted at the same hours of past days.

Each day of a play repeats the arrivals of one past day, drawn at random. In the first day of a record there are none to
repeat, so nothing arrives.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from math import ceil
from random import Random
from typing import Final

from scheduler.foresight.play import Arrival
from scheduler.foresight.present import Kind

DAY: Final = 86_400.0
MOST_DAYS: Final = 28
MOST_ARRIVALS: Final = 100_000
"""The most arrivals in the record; the oldest are forgotten."""


class ArrivalRecord:
    """The arrivals of the last days, in the order of their times."""

    def __init__(self, most: int = MOST_ARRIVALS) -> None:
        self._most = most
        self._times: list[float] = []
        self._kinds: list[tuple[Kind, float]] = []
        self._since: float | None = None

    def __len__(self) -> int:
        return len(self._times)

    def translate(self, find: Callable[[Kind], Kind]) -> None:
        """Replace each kind of the record, because the rules have changed."""
        known = {kind: find(kind) for kind in {kind for kind, _ in self._kinds}}
        self._kinds = [(known[kind], rank) for kind, rank in self._kinds]

    def begin(self, now: float) -> None:
        """Note that arrivals are recorded from now on. After a clock that was set back the record begins again."""
        if self._since is None or (self._times and self._times[-1] > now):
            self._times.clear()
            self._kinds.clear()
            self._since = now

    def recall(self, past: Iterable[tuple[float, Kind, float]], since: float) -> None:
        """Put arrivals in the order of their times before the record. `since`: from then on none is missing."""
        known = zip(self._times, self._kinds, strict=True)
        every = [*((at, (kind, rank)) for at, kind, rank in past if at >= since), *known]
        self._times, self._kinds = [at for at, _ in every], [each for _, each in every]
        self._since = since if self._since is None else min(self._since, since)

    def add(self, at: float, kind: Kind, rank: float) -> None:
        """Record an arrival. It counts as late as the one before at least."""
        self._times.append(max(at, self._times[-1]) if self._times else at)
        self._kinds.append((kind, rank))
        if len(self._times) >= 2 * self._most:
            del self._times[: self._most], self._kinds[: self._most]
            self._since = self._times[0]

    def forget_old(self, now: float) -> None:
        """Forget what no play repeats any more."""
        gone = bisect_right(self._times, now - (MOST_DAYS + 1) * DAY)
        if gone > len(self._times) // 2:
            del self._times[:gone], self._kinds[:gone]
            self._since = max(self._since or 0.0, now - (MOST_DAYS + 1) * DAY)

    def replay(self, now: float, horizon: float, random: Random) -> Iterator[Arrival]:
        """Yield the arrivals of a play that begins now, up to the end of the day in which its horizon ends."""
        days = 0 if self._since is None else min(int((now - self._since) // DAY), MOST_DAYS)
        begin = now
        while days >= 1 and begin < now + horizon:
            back = ceil((begin - now) / DAY) + random.randint(1, days)
            first = bisect_right(self._times, begin - back * DAY)
            last = bisect_right(self._times, begin + DAY - back * DAY)
            for index in range(first, last):
                kind, rank = self._kinds[index]
                yield Arrival(self._times[index] + back * DAY, kind, rank)
            begin += DAY
