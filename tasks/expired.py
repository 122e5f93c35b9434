"""Count expired messages by queue and warn about them: the queue has a backlog, or a sender's clock is wrong.

A worker that was paused may find thousands of them, so counts are written at most once a second, and the warning is
logged at most once a minute.
"""

import threading
from collections import Counter
from typing import Final

from leasehold.common.clock import read_monotonic
from scheduler.view.metric_table import EXPIRED
from workers.logs import get_logger

log = get_logger(__name__)

COUNT_SECONDS: Final = 1.0
WARN_SECONDS: Final = 60.0
_NEVER: Final = float("-inf")
_SENTENCE: Final = (
    "Messages expired before a worker took them: their queue is backed up, or the clock of their sender is behind"
    " (`leasehold doctor` compares the clocks)."
)


class ExpiredMessages:
    """The expired messages that one worker dropped. Safe for threads."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._uncounted: Counter[str] = Counter()
        self._unreported: Counter[str] = Counter()
        self._counted_at = self._warned_at = _NEVER

    def note(self, queue: str) -> None:
        """Record one dropped message."""
        with self._guard:
            self._uncounted[queue] += 1
            self._unreported[queue] += 1
        self.report()

    def report(self) -> None:
        """Write the counts and the warning that are due. It is called regularly, so that the last ones are written."""
        now = read_monotonic()
        with self._guard:
            counted = self._take_due(self._uncounted, self._counted_at + COUNT_SECONDS, now)
            warned = self._take_due(self._unreported, self._warned_at + WARN_SECONDS, now)
            self._counted_at = now if counted else self._counted_at
            self._warned_at = now if warned else self._warned_at
        for queue, count in counted.items():
            _count(queue, count)
        for queue, count in warned.items():
            log.warning(_SENTENCE, action="messages.expired", queue=queue, count=count)

    def _take_due(self, counts: Counter[str], due: float, now: float) -> dict[str, int]:
        if now < due:
            return {}
        taken = dict(counts)
        counts.clear()
        return taken


def _count(queue: str, count: int) -> None:
    from tasks.app import services  # noqa: PLC0415 - the app imports what calls this

    services.meter.count(EXPIRED, {"queue": queue}, count)


expired: Final = ExpiredMessages()
