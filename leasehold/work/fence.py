"""The fence of a command: the time until which a host may run it without a further answer of the scheduler.

A host counts from the time at which it sent the last request that was answered, because the scheduler carried it out
later than that. Times are seconds on the boot clock, which runs while the machine sleeps (`guard.read_boot_clock`).
"""

from math import inf
from typing import Final, NamedTuple

MARGIN_SECONDS: Final = 2.0
"""Seconds before the end of a lease at which its command is killed: the time that the end takes, and the difference
between the rates of two clocks.
"""
MOST_MARGIN: Final = 0.2
"""The margin is at most this part of the time that a lease has."""
RENEWALS: Final = 3
"""Renewals in the time that a lease has, so that some may get no answer."""
SHORTEST_RENEWAL: Final = 0.3


class Term(NamedTuple):
    """How long a host may rely on an answer, in seconds. `ttl`: until the lease expires; `offline_timeout`: until the
    host counts as offline. None: without end.
    """

    ttl: float | None = None
    offline_timeout: float | None = None

    @property
    def seconds(self) -> float:
        return min(inf if each is None else each for each in self)


def find_fence(sent_at: float, term: Term) -> float | None:
    """Return the deadline of a command after an answer to a request that was sent at `sent_at`. None: none."""
    return None if term.seconds == inf else sent_at + term.seconds - find_margin(term)


def find_margin(term: Term) -> float:
    return min(MARGIN_SECONDS, max(term.seconds, 0.0) * MOST_MARGIN)


def find_renewal(sent_at: float, term: Term) -> float | None:
    """Return when the next renewal is due after one that was sent at `sent_at`. None: never."""
    return None if term.seconds == inf else sent_at + max(term.seconds / RENEWALS, SHORTEST_RENEWAL)


def move_fence(present: float | None, sent_at: float, term: Term) -> float | None:
    """Return the deadline after a further answer: a late answer to an older request does not move it back."""
    found = find_fence(sent_at, term)
    return None if found is None or present is None else max(found, present)
