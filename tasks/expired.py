"""Expired messages are counted by queue and warned about: a backlog, or the wrong clock of a sender, must show.

A worker that was paused may find thousands of them. So counts are written at most once a second, and the warning comes
at most once a minute.
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
    """What one worker dropped. For any number of threads."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._uncounted: Counter[str] = Counter()
        self._unreported: Counter[str] = Counter()
        self._counted_at = self._warned_at = _NEVER

    def note(self, queue: str) -> None:
        """Take note of one message that was dropped."""
        with self._guard:
            self._uncounted[queue] += 1
            self._unreported[queue] += 1
        self.report()

    def report(self) -> None:
        """Write the counts and the warning that are due. Called regularly, so that the last ones get written, too."""
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
