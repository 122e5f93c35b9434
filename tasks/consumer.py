"""The consumer of a worker (Celery's part that takes messages), which sends events about tasks a moment later.

Celery sends them in the next round of the loop, in a round trip of their own, and the process of the pool gets its task
only after that round trip.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from celery.worker.consumer import Consumer as CeleryConsumer

EVENT_SECONDS: Final = 0.02
"""Seconds for which events about tasks are collected. They contain the time at which they happened."""


class Consumer(CeleryConsumer):
    """Celery's consumer, which collects events about tasks for EVENT_SECONDS."""

    hub: Any
    _flush_events: Callable[[], None]
    connection_errors: tuple[type[Exception], ...]
    _due = float("-inf")
    """Monotonic time at which the collected events are sent."""

    def on_send_event_buffered(self) -> None:  # type: ignore[override] # the stubs want a function
        """Send the collected events soon. Celery calls this for each event that was collected."""
        now = time.monotonic()
        # After a lost connection Celery clears the timers of the loop, so a time in the past means that none is set.
        if self.hub is not None and now > self._due:
            self._due = now + EVENT_SECONDS
            self.hub.call_later(EVENT_SECONDS, self._flush_events)

    def stop(self) -> None:
        """Send the collected events, and stop."""
        with suppress(*self.connection_errors):
            self._flush_events()
        super().stop()
