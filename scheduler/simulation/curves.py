"""Curves over time in bounded memory, for plots of runs whose end is not known in advance."""

from array import array

import msgspec

MOST_BINS = 2048


class Curve(msgspec.Struct, frozen=True):
    """The mean and the maximum of a value in each of a sequence of equally wide bins; `width` in seconds."""

    width: float
    means: tuple[float, ...]
    peaks: tuple[float, ...]


class CurveRecorder:
    """Records a value that is constant between changes. When there are too many bins, each two become one."""

    def __init__(self, width: float = 60.0) -> None:
        self._width = width
        self._sums, self._peaks = array("d"), array("d")
        self._end = 0.0

    def add(self, value: float, begin: float, end: float) -> None:
        """Record that the value was `value` from `begin` until `end`. Calls follow each other in time."""
        self._end = end
        while end > self._width * MOST_BINS:
            self._double()
        first, last = int(begin / self._width), int(end / self._width)
        if last >= len(self._sums):
            missing = [0.0] * (last + 1 - len(self._sums))
            self._sums.extend(missing)
            self._peaks.extend(missing)
        if not value:
            return
        for index in range(first, last + 1):
            inside = min(end, (index + 1) * self._width) - max(begin, index * self._width)
            if inside > 0:
                self._sums[index] += value * inside
                self._peaks[index] = max(self._peaks[index], value)

    def _double(self) -> None:
        """Merge each two bins. The cost is that of all bins, once for each doubling of the recorded time."""
        sums, peaks = self._sums, self._peaks
        if len(sums) % 2:
            sums.append(0.0)
            peaks.append(0.0)
        pairs = range(0, len(sums), 2)
        self._sums = array("d", (sums[index] + sums[index + 1] for index in pairs))
        self._peaks = array("d", (max(peaks[index], peaks[index + 1]) for index in pairs))
        self._width *= 2

    def finish(self) -> Curve:
        """Return the curve so far. Its last bin may be incomplete."""
        means = [each / self._width for each in self._sums]
        if means:
            inside = self._end - (len(means) - 1) * self._width
            means[-1] = self._sums[-1] / inside if inside > 0 else 0.0
        return Curve(self._width, tuple(means), tuple(self._peaks))
