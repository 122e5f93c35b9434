"""Load shedding: requests are refused with "retry later" while more requests wait than can be answered in time.

Queries and registrations of hosts are refused first: queries change nothing, and hosts repeat registrations. Requests
of producers come next. Messages of holders and operators are refused last: they keep leases alive or repair something.
"""

from collections import deque
from typing import Final

from scheduler.protocol.verbs import VERBS

_RANKS: Final = {name: ("first", "later", "last").index(each.put_off) for name, each in VERBS.items()}
TIMES_LONGER: Final = (1, 5, 15)
"""For the ranks 0, 1 and 2 of a request (see `find_rank`): a factor. A request is refused if it has to wait longer than
this factor times `longest` (see `find_retry`).
"""
SHORTEST_RETRY: Final = 1.0
LONGEST_RETRY: Final = 30.0
_USUAL_SECONDS: Final = 0.01
"""The seconds that a request is assumed to take until the worker has measured some requests."""
_WEIGHT: Final = 0.1
"""Weight of the newest measurement in the running mean of the seconds for a request."""
_SAMPLES: Final = 20


def find_rank(verb: str) -> int:
    """Return the rank of requests with this verb: under load, requests of rank 0 are refused first, those of rank 2
    last.
    """
    return _RANKS.get(verb, 1)


def find_retry(verb: str, wait: float, longest: float) -> float | None:
    """Return after how many seconds the sender of a request should send it again; None if the request is not refused.

    `wait`: the estimated seconds until the request is answered. `longest`: the greatest `wait` in seconds at which a
    query is accepted. Requests with other verbs are accepted up to a multiple of `longest` (`TIMES_LONGER`): for
    example a `renew` is accepted while `wait` is at most 15 × `longest`.
    """
    is_put_off = wait > longest * TIMES_LONGER[find_rank(verb)]
    return min(max(wait, SHORTEST_RETRY), LONGEST_RETRY) if is_put_off else None


class QueueGauge:
    """Estimates, in one worker, how long the requests that wait in its queue will take.

    It measures the duration of a request in this worker, and the share of all requests that this worker carries out.
    The share counts as at least 1/64, because a worker that took no request during the samples takes some later.
    """

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._seconds = _USUAL_SECONDS
        self._counts: deque[tuple[int, int]] = deque(maxlen=_SAMPLES)
        self._share = 1.0
        self.depth = 0
        """Last known number of requests that wait in the queue."""

    def note_run(self, seconds: float, running: int = 1) -> None:
        """Record that this worker needed `seconds` for one request, from taking the request until its answer was sent.

        `running`: the number of requests that this worker had at that time, this one included. If there are more of
        them than processes, some are carried out together.
        """
        seconds *= self._concurrency / max(running, self._concurrency)
        self._seconds += _WEIGHT * (seconds - self._seconds)

    def note_sample(self, depth: int, here: int, everywhere: int) -> None:
        """Record a sample of the queue. `depth`: the number of requests that wait. `here`, `everywhere`: the numbers of
        requests that this worker and all workers together have taken so far.
        """
        self.depth = depth
        if self._counts and everywhere < self._counts[-1][1]:
            self._counts.clear()
        self._counts.append((here, everywhere))
        taken_here, taken = (new - old for new, old in zip(self._counts[-1], self._counts[0], strict=True))
        if taken > 0:
            self._share = min(max(taken_here / taken, 1 / 64), 1.0)

    def note_taken(self) -> None:
        """Record that this worker took a waiting request."""
        self.depth = max(self.depth - 1, 0)

    @property
    def wait(self) -> float:
        """The estimated seconds until a worker takes a request that is sent now."""
        return self.depth * self._seconds * self._share / self._concurrency
