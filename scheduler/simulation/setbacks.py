"""Ends runs that would never end: jobs lose their machines again and again, or get none."""

from collections import Counter
from typing import Final

from scheduler.model.events import Event
from scheduler.model.validation import InvalidInputError, fault

MOST_SETBACKS: Final = 1000
"""A job that has lost its leases, and its work with them, this often is assumed never to end. A job that is interrupted
seven times in its run time, on average, completes once in about this many tries.
"""
MOST_IDLE_TICKS: Final = 50_000
"""Ticks in a row that leave all jobs waiting: over a month of refused launches, with one try a minute."""


class Setbacks:
    """Counts events that bring no job forward, and raises InvalidInputError when there are too many."""

    def __init__(self, most_setbacks: int = MOST_SETBACKS, most_idle_ticks: int = MOST_IDLE_TICKS) -> None:
        self._most_setbacks, self._most_idle_ticks = most_setbacks, most_idle_ticks
        self._by_job: Counter[str] = Counter()
        self._moved_at = 0
        """The last tick at which a job had a lease, or none was waiting."""

    def note(self, event: Event) -> None:
        """Count an event of a job."""
        job = event.reservation or ""
        if event.name == "reservation_released":
            del self._by_job[job]
        elif event.name == "reservation_pending":
            self._by_job[job] += 1
            if self._by_job[job] >= self._most_setbacks:
                reason = event.detail.get("reason")
                raise _never_ends(f"{job} went back to the queue {self._most_setbacks:,} times ({reason})")

    def note_ticks(self, ticks: int, *, all_wait: bool) -> None:
        """Note the number of ticks so far. `all_wait`: there are jobs, and none of them has a lease."""
        if not all_wait:
            self._moved_at = ticks
        elif ticks - self._moved_at >= self._most_idle_ticks:
            raise _never_ends(f"all jobs waited through {self._most_idle_ticks:,} ticks in a row")


def _never_ends(got: str) -> InvalidInputError:
    return fault("config", "a fleet and a cloud on which every job of the trace ends", got)
