"""The clock of a process: cluster time, read from a reference and advanced by the host's monotonic clock between two
readings.

A host's wall clock may be wrong and may jump. Cluster time is the time of one reference: the database, or Redis plus a
published offset. The monotonic clock never jumps. Only the standard library is used, so that a producer can import this
module.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

LARGEST_STEP: Final = 1.0
"""Largest correction backwards, in seconds, for which the clock stands still until the corrected time has caught up.
The clock jumps back by a larger one.
"""

EXACT_SECONDS: Final = 0.02
FIRST_LOOKS: Final = 3
"""Maximum number of first readings. They are repeated until one takes at most EXACT_SECONDS, because the first may open
a connection, and half of its duration is the error of the clock.
"""

_CLOCKS: Final = ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC")
_MONOTONIC: Final[int | None] = next((getattr(time, name) for name in _CLOCKS if hasattr(time, name)), None)
"""The id of a monotonic clock that continues while the host sleeps: CLOCK_BOOTTIME on Linux, CLOCK_MONOTONIC on macOS.
On Windows, `time.monotonic` does so.
"""


def read_monotonic() -> float:
    """Return seconds since an arbitrary time, which is the same for all processes until the host restarts."""
    return time.monotonic() if _MONOTONIC is None else time.clock_gettime(_MONOTONIC)


class ProcessOffset(NamedTuple):
    """The wall clock of a process minus cluster time, as the process measured it. Above 0 the wall clock is ahead."""

    process: str
    host: str
    seconds: float


KEPT_SECONDS: Final = 60.0
"""Age in seconds after which a process's measurement of its clock is ignored."""


def read_offsets(stored: Mapping[bytes, bytes], now: float | None = None) -> list[ProcessOffset]:
    """Return the offsets in the hash `<prefix>clocks`, sorted by process and host. Its fields are "<process> <host>" ->
    JSON of [offset in seconds, cluster time of the measurement].

    Unreadable entries, and those older than KEPT_SECONDS before `now` (default: before the newest measurement), are
    omitted.
    """
    measured = {field: found for field, value in stored.items() if (found := _read_measurement(value))}
    present = max((at for _, at in measured.values()), default=0.0) if now is None else now
    return sorted(
        ProcessOffset(process, host, seconds)
        for field, (seconds, at) in measured.items()
        for process, _, host in [field.decode(errors="replace").partition(" ")]
        if abs(present - at) <= KEPT_SECONDS
    )


def list_gone(stored: Mapping[bytes, bytes], now: float) -> list[bytes]:
    """Return the fields of the hash `<prefix>clocks` that `read_offsets` omits."""
    measured = {field: _read_measurement(value) for field, value in stored.items()}
    return [field for field, found in measured.items() if found is None or abs(now - found[1]) > KEPT_SECONDS]


def _read_measurement(value: bytes) -> tuple[float, float] | None:
    try:
        seconds, at = json.loads(value)
        return float(seconds), float(at)
    except (ValueError, TypeError):
        return None


class ClusterClock:
    """Cluster time, advanced by the monotonic clock between readings of the reference. Safe for threads.

    `look` reads the reference. Its errors are raised by `look()`, and by `now()` before the first reading.
    """

    def __init__(
        self,
        look: Callable[[], float],
        monotonic: Callable[[], float] = read_monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._ask, self._monotonic, self._wall = look, monotonic, wall
        self._guard = threading.Lock()
        self._ahead: float | None = None
        """Cluster time minus the monotonic clock, in seconds."""
        self._last = float("-inf")

    @property
    def has_looked(self) -> bool:
        """Whether the reference time was ever read."""
        return self._ahead is not None

    @property
    def offset(self) -> float:
        """Cluster time minus the wall clock of this host, in seconds."""
        return self.now() - self._wall()

    def now(self) -> float:
        """Return cluster time in seconds since the epoch. It never goes back by less than LARGEST_STEP."""
        if self._ahead is None:
            return self.look()
        with self._guard:
            return self._advance(self._ahead + self._monotonic())

    def look(self) -> float:
        """Read the reference, correct the clock as little as the reading requires, and return cluster time.

        The reference read its clock at some time between question and answer. If the present time lies within the
        bounds that follow from this, it is not corrected.
        """
        reference, before, after = self._measure()
        for _ in range(0 if self.has_looked else FIRST_LOOKS - 1):
            if after - before > EXACT_SECONDS:
                reference, before, after = self._measure()
        with self._guard:
            latest = reference + after - before
            carried = (reference + latest) / 2 if self._ahead is None else self._ahead + after
            self._ahead = min(max(carried, reference), latest) - after
            return self._advance(self._ahead + self._monotonic())

    def _measure(self) -> tuple[float, float, float]:
        """Return the reference's time, and the monotonic clock before and after the reading."""
        before = self._monotonic()
        reference = self._ask()
        return reference, before, self._monotonic()

    def _advance(self, now: float) -> float:
        self._last = self._last if 0 < self._last - now < LARGEST_STEP else now
        return self._last


class PublishedClock(ClusterClock):
    """Cluster time for a process that opens no database: the time of Redis plus the offset that the leader publishes.

    After a jump of Redis's clock the old offset is wrong until the leader publishes a new one. A reading that differs
    from the present time by LARGEST_STEP is therefore only accepted after another offset was published. A missing
    offset (after a flush, or without a leader) corrects nothing.
    """

    def __init__(
        self,
        read: Callable[[], tuple[float, bytes | None]],
        monotonic: Callable[[], float] = read_monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Make a clock. `read` returns the time of Redis in seconds since the epoch, and the published offset as
        stored.
        """
        super().__init__(self._find_time, monotonic, wall)
        self._read = read
        self._doubted: bytes | None = None

    @property
    def is_in_doubt(self) -> bool:
        """Whether the last reading differed from the present time and was not accepted."""
        return self._doubted is not None

    def _find_time(self) -> float:
        redis_time, published = self._read()
        found = redis_time + float(published or 0)
        return found if self._believes(found, published or b"") else self.now()

    def _believes(self, found: float, published: bytes) -> bool:
        if not self.has_looked or abs(found - self.now()) < LARGEST_STEP:
            self._doubted = None
            return True
        if self._doubted is None:
            self._doubted = published
        # promise: jump-of-redis
        if published in {self._doubted, b""}:
            return False
        self._doubted = None
        return True
