"""The consumer of a worker (Celery's part that takes messages), which gives a task to an idle process of the pool at
once and sends events about tasks a moment later.

Celery's own consumer does both in the next round of its loop, after the timers that are due, which delays the task.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from celery.worker.consumer import Consumer as CeleryConsumer

EVENT_SECONDS: Final = 0.2
"""Seconds for which Celery's events about tasks are collected. Each event contains the time at which it happened."""


class Consumer(CeleryConsumer):
    """Celery's consumer, changed in two points: a task goes to an idle process of the pool at once, and Celery's events
    about tasks are collected for EVENT_SECONDS and sent together.
    """

    hub: Any
    pool: Any
    _flush_events: Callable[[], None]
    connection_errors: tuple[type[Exception], ...]
    _due = float("-inf")
    """Monotonic time of the next sending of collected events; in the past if no sending is planned."""

    def __init__(self, on_task_request: Callable[[Any], object], *args: Any, **options: Any) -> None:
        def hand_over(request: Any) -> None:
            on_task_request(request)
            # The jobs that wait in the pool are written to its idle processes now; Celery's loop would do this only in
            # its next round. If a process cannot take a whole job now, the loop writes the rest.
            pool: Any = getattr(self.pool, "_pool", None)
            # Only a pool of processes has this buffer.
            if self.hub is None or not getattr(pool, "outbound_buffer", None):
                return
            # In order, so that of several idle processes mostly the same one works: its memory is in the CPU's caches.
            if idle := sorted(pool._all_inqueues - pool._busy_workers - pool._active_writes):  # noqa: SLF001 - as the loop
                self.hub.consolidate_callback(idle)

        super().__init__(hand_over, *args, **options)

    def on_send_event_buffered(self) -> None:  # type: ignore[override] # the stubs want a function
        """Send the collected events soon. Celery calls this for each event that was collected."""
        now = time.monotonic()
        # After a lost connection Celery clears the timers of the loop, so a time in the past means that none is set.
        if self.hub is not None and now > self._due:
            self._due = now + EVENT_SECONDS
            self.hub.call_later(EVENT_SECONDS, self._flush_events)

    def stop(self) -> None:
        """Send the collected events, and stop the consumer."""
        with suppress(*self.connection_errors):
            self._flush_events()
        super().stop()
