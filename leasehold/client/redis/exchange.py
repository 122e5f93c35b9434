"""When a request without an answer is sent again: at growing intervals, until its answer arrives.

No copy of a request is sent while an earlier copy still waits in the queue; workers publish which message they took
last. A worker that is overloaded answers that the request should be sent again later (`retry_after`).
"""

import time
from collections.abc import Mapping
from typing import Any, Final, cast

from leasehold.client.backoff import Backoff, lengthen, shorten

RESEND_SECONDS: Final = 2.0
"""Seconds without an answer after which the first copy of a request is sent. The time before each further copy doubles.
"""
LONGEST_RESEND_SECONDS: Final = 15.0
LONGEST_HOLD_SECONDS: Final = 30.0
"""The most seconds for which no further copy of a request is sent because an earlier copy seems to wait in the queue.
The limit is needed because the clocks of senders may differ.
"""
LONGEST_RETRY_SECONDS: Final = 60.0


class Pending:
    """A request that has no answer yet, with the time at which its next copy is sent."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self.due = 0.0
        self.sent_at: float | None = None
        """The time in the header of the newest copy of the request; None before the request is sent."""
        self.times_shed = 0
        self._backoff = Backoff(RESEND_SECONDS, LONGEST_RESEND_SECONDS)
        self._held_until = 0.0

    def note_sent(self, sent_at: float, at: float | None = None) -> None:
        """Record that the request or a copy of it was sent to the broker. `sent_at`: the time in its header. `at`: the
        monotonic time at which it was sent; None: now.
        """
        now = time.monotonic() if at is None else at
        self.sent_at, self._held_until = sent_at, now + LONGEST_HOLD_SECONDS
        self.due = now + self._backoff.take()  # promise: request-sent-again

    def may_be_held(self) -> bool:
        """Return whether the newest copy of the request may still wait in the queue: it was sent less than
        LONGEST_HOLD_SECONDS ago.
        """
        return self.sent_at is not None and time.monotonic() < self._held_until

    def hold(self) -> None:
        """Delay the next copy of the request, because the newest copy is still in the queue."""
        self.due = time.monotonic() + shorten(RESEND_SECONDS)

    def note_shed(self, seconds: float) -> None:
        """Record that an overloaded worker asked for the request to be sent again after `seconds`."""
        self.times_shed += 1
        self._backoff.reset()
        # No copy waits in the queue any more, so the next one is sent when it is due.
        self.sent_at = None
        self.due = time.monotonic() + lengthen(min(seconds, LONGEST_RETRY_SECONDS))


def read_retry(answer: Mapping[str, Any]) -> float | None:
    """If this is the answer of an overloaded worker, return after how many seconds the request is to be sent again.
    Return None for any other answer.
    """
    seconds = answer.get("retry_after")
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    return float(cast("float", seconds)) if is_number and answer.get("ok") is False else None


def find_reason(pending: Pending) -> str:
    """Return why a request has no answer, as far as its sender knows."""
    if pending.times_shed:
        times = "once" if pending.times_shed == 1 else f"{pending.times_shed} times"
        return f"the service is overloaded and asked {times} to come again later"
    return "messages wait in the queue `reservations` until a worker takes them"
