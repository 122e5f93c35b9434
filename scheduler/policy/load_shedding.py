"""Which requests are answered "come again later" while more of them wait than can be answered in time.

The least important and cheapest are put off first: questions and registrations, which change nothing or are repeated
anyway; then what producers ask; last the words of holders and operators, who keep leases alive or repair something.
"""

from collections import deque
from typing import Final

from scheduler.model.command_schemas import OPERATOR_VERBS

QUESTIONS: Final = frozenset({"query", "explain", "conditions", "leases"})
"""Requests that change nothing: an answer that arrives after its sender gave up is useless."""
_FIRST: Final = QUESTIONS | {"register"}
_LAST: Final = OPERATOR_VERBS | {"renew", "release", "confirm", "fail", "surrender", "decline", "suspend", "leave"}
TIMES_LONGER: Final = (1, 5, 15)
"""How many times as long as `longest` requests may wait until others like them are put off, by their rank."""
SHORTEST_RETRY: Final = 1.0
LONGEST_RETRY: Final = 30.0
_USUAL_SECONDS: Final = 0.01
"""What a request takes, until some were measured."""
_WEIGHT: Final = 0.1
"""Of the newest measurement in the mean."""
_SAMPLES: Final = 20


def find_rank(verb: str) -> int:
    """0: put off first; 2: last."""
    if verb in _FIRST:
        return 0
    return 2 if verb in _LAST else 1


def find_retry(verb: str, wait: float, longest: float) -> float | None:
    """After how many seconds a request should come again, when the queue behind it takes `wait` seconds; None: it is
    carried out.
    """
    if wait <= longest * TIMES_LONGER[find_rank(verb)]:
        return None
    return min(max(wait, SHORTEST_RETRY), LONGEST_RETRY)


class QueueGauge:
    """How long the requests that wait will take, as one of the workers of the queue can know it.

    It measures how long a request takes here, and which part of all requests is carried out here.
    """

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._seconds = _USUAL_SECONDS
        self._counts: deque[tuple[int, int]] = deque(maxlen=_SAMPLES)
        self._share = 1.0
        self.depth = 0
        """How many requests wait, as far as is known."""

    def note_run(self, seconds: float) -> None:
        """A request took so long, from when it was taken until it was answered."""
        self._seconds += _WEIGHT * (seconds - self._seconds)

    def note_sample(self, depth: int, here: int, everywhere: int) -> None:
        """So many requests wait; so many were taken by this worker and by all workers since they began to count."""
        self.depth = depth
        if self._counts and everywhere < self._counts[-1][1]:
            self._counts.clear()
        self._counts.append((here, everywhere))
        taken_here, taken = (new - old for new, old in zip(self._counts[-1], self._counts[0], strict=True))
        if taken > 0:
            self._share = min(max(taken_here / taken, 1 / 64), 1.0)

    def note_taken(self) -> None:
        """One of those that wait was taken."""
        self.depth = max(self.depth - 1, 0)

    @property
    def wait(self) -> float:
        """The seconds until a request that is sent now is taken."""
        return self.depth * self._seconds * self._share / self._concurrency
