"""The clock of a process, which shows cluster time. The process reads cluster time from a reference, and advances it by
the host's monotonic clock until the next reading.

A host's wall clock may be wrong and may jump; the monotonic clock never jumps. The reference is the database, or Redis
plus a published offset. This module imports only the standard library, so that a producer can import it.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

LARGEST_STEP: Final = 1.0
"""Largest correction backwards, in seconds, for which the clock stands still until the corrected time has caught up.
For a larger correction the clock jumps back.
"""

EXACT_SECONDS: Final = 0.02
FIRST_LOOKS: Final = 3
"""The most readings of the reference when the clock starts. The clock repeats the reading until one takes at most
EXACT_SECONDS: the first reading may open a connection, and the clock is wrong by up to half of the reading's duration.
"""

_CLOCKS: Final = ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC")
_MONOTONIC: Final[int | None] = next((getattr(time, name) for name in _CLOCKS if hasattr(time, name)), None)
"""Id of a monotonic clock that continues while the host sleeps: CLOCK_BOOTTIME on Linux, CLOCK_MONOTONIC on macOS. None
on Windows, where `time.monotonic` continues too.
"""


def read_monotonic() -> float:
    """Return the seconds since some moment in the past, which is the same moment for all processes until the host
    restarts.
    """
    return time.monotonic() if _MONOTONIC is None else time.clock_gettime(_MONOTONIC)


class ProcessOffset(NamedTuple):
    """By how many seconds the wall clock of one process is ahead of cluster time (negative: behind), as the process
    measured it.
    """

    process: str
    host: str
    seconds: float


KEPT_SECONDS: Final = 60.0
"""Age in seconds above which the clock offset that a process has measured is ignored."""


def read_offsets(stored: Mapping[bytes, bytes], now: float | None = None) -> list[ProcessOffset]:
    """Return the clock offsets in the Redis hash `<prefix>clocks`, sorted by process and host. A field of the hash is
    "<process> <host>"; its value is JSON of [offset in seconds, cluster time of the measurement].

    Two kinds of measurements are omitted: unreadable ones, and those whose time differs from `now` by more than
    KEPT_SECONDS. `now` None: the time of the newest measurement.
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
    """Return the fields of the Redis hash `<prefix>clocks` that can be deleted: fields whose measurement is unreadable,
    or was made at a time that differs from `now` by more than KEPT_SECONDS.
    """
    measured = {field: _read_measurement(value) for field, value in stored.items()}
    return [field for field, found in measured.items() if found is None or abs(now - found[1]) > KEPT_SECONDS]


def _read_measurement(value: bytes) -> tuple[float, float] | None:
    try:
        seconds, at = json.loads(value)
        return float(seconds), float(at)
    except (ValueError, TypeError):
        return None


class ClusterClock:
    """A clock that shows cluster time: it reads a reference now and then, and advances by the monotonic clock in
    between. Safe for threads.

    The argument `look` is a function that returns the time of the reference. The method `look` raises the errors of
    this function; `now` raises them only before the first reading.
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
        """Cluster time minus the monotonic clock, in seconds; None before the first reading."""
        self._last = float("-inf")

    @property
    def has_looked(self) -> bool:
        """Whether the clock has read its reference at least once."""
        return self._ahead is not None

    @property
    def offset(self) -> float:
        """Cluster time minus the wall clock of this host, in seconds."""
        return self.now() - self._wall()

    def now(self) -> float:
        """Return cluster time in seconds since the epoch. After a correction backwards of less than LARGEST_STEP the
        time stands still instead of going back.
        """
        if self._ahead is None:
            return self.look()
        with self._guard:
            return self._advance(self._ahead + self._monotonic())

    def look(self) -> float:
        """Read the reference, correct the clock, and return cluster time.

        The reference read its own clock at some moment between question and answer, so the present time lies between a
        least and a greatest possible time. The clock is corrected only if its time is not between these two.
        """
        reference, before, after = self._measure()
        for _ in range(0 if self.has_looked else FIRST_LOOKS - 1):
            if after - before > EXACT_SECONDS:
                reference, before, after = self._measure()
        return self.correct(reference, before, after)

    def correct(self, reference: float, before: float, after: float) -> float:
        """Correct the clock by one reading of its reference, and return cluster time.

        `reference`: the time that was read. `before`, `after`: the monotonic clock before and after the reading. At the
        moment `after` the true time is from `reference` to `reference` + `after` - `before`. A clock outside these
        limits is set to the nearer one. The first reading sets the clock to their middle.
        """
        with self._guard:
            latest = reference + after - before
            carried = (reference + latest) / 2 if self._ahead is None else self._ahead + after
            self._ahead = min(max(carried, reference), latest) - after
            return self._advance(self._ahead + self._monotonic())

    def _measure(self) -> tuple[float, float, float]:
        """Return three times in seconds: the time of the reference, and the monotonic clock before and after the
        reading.
        """
        before = self._monotonic()
        reference = self._ask()
        return reference, before, self._monotonic()

    def _advance(self, now: float) -> float:
        self._last = self._last if 0 < self._last - now < LARGEST_STEP else now
        return self._last


class PublishedClock(ClusterClock):
    """Cluster time for a process that opens no database: the time of Redis plus the offset that the leader publishes
    there.

    After a jump of Redis's clock the published offset is wrong until the leader publishes a new one. So a reading that
    differs from the present time by LARGEST_STEP or more is accepted only after another offset was published. A missing
    offset (after a flush of Redis, or without a leader) is not another offset.
    """

    def __init__(
        self,
        read: Callable[[], tuple[float, bytes | None]],
        monotonic: Callable[[], float] = read_monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Make a clock. `read` returns (1) the time of Redis in seconds since the epoch, and (2) the offset that the
        leader has published, as the bytes that Redis has stored; None if there is no offset.
        """
        super().__init__(self._find_time, monotonic, wall)
        self._read = read
        self._doubted: bytes | None = None

    @property
    def is_in_doubt(self) -> bool:
        """Whether the last reading was not accepted, because it differed too much from the time of this clock."""
        return self._doubted is not None

    def take(self, redis_time: float, published: bytes | None, before: float, after: float) -> float:
        """Correct the clock by a reading that the caller has made, and return cluster time. Its parts are those of the
        argument `read` and of `correct`.
        """
        return self.correct(self._choose(redis_time, published), before, after)

    def _find_time(self) -> float:
        return self._choose(*self._read())

    def _choose(self, redis_time: float, published: bytes | None) -> float:
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
