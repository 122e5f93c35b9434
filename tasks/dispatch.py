"""The Dispatcher on Celery: slow work becomes messages that name rows by id; what is due soon becomes an alarm.

Nothing is ever sent with an ETA or a countdown: on Redis such messages run again and again once they outlive
the visibility timeout. Delays live in SQL, and beat's ticks look at them.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import redis
from celery import Celery
from kombu import Exchange, Queue
from kombu.exceptions import OperationalError

from scheduler.model.slots import Slot
from scheduler.ports import OutboxMessage
from tasks.queues import CHECK, LAUNCH_SLOT, TERMINATE_SLOT, TICK
from workers.logs import get_logger

log = get_logger(__name__)

LEAST_WAIT: Final = 0.02
"""Seconds before an alarm rings at the soonest: what is due for ever must not make ticks chase each other."""


class CeleryDispatcher:
    """See `scheduler.ports.Dispatcher`. For any number of threads; each process makes its own.

    `resend_seconds`: `recover` sends slow work again after so long. A message that waited twice as long is
    dropped by the worker, so that a slow queue does not fill up with copies.
    """

    def __init__(self, app: Celery, *, tick_seconds: float, resend_seconds: float, sweep_seconds: float) -> None:
        self._app = app
        self._tick_seconds = tick_seconds
        self._slow_expires, self._check_expires = 2 * resend_seconds, 3 * sweep_seconds
        self._alarm = Alarm(self._send_due_tick)

    def send_launches(self, slots: Sequence[Slot]) -> None:
        """See Dispatcher."""
        self._send(LAUNCH_SLOT, [[slot.id, slot.launch_id] for slot in slots], self._slow_expires)

    def send_terminations(self, slots: Sequence[Slot]) -> None:
        """See Dispatcher."""
        self._send(TERMINATE_SLOT, [[slot.id, slot.epoch] for slot in slots], self._slow_expires)

    def send_checks(self, slots: Sequence[str]) -> None:
        """See Dispatcher."""
        if slots:
            self._send(CHECK, [[list(slots)]], self._check_expires)

    def send_tick(self) -> None:
        """Ask for a tick now."""
        self._send(TICK, [[]], 2 * self._tick_seconds)

    def send_callback(self, outgoing: OutboxMessage) -> None:
        """See Dispatcher."""
        name = outgoing.callback.queue
        # The producer's queue, which we neither know nor declare: straight onto the list of that name.
        queue = Queue(name, Exchange("", type="direct", no_declare=True), routing_key=name, no_declare=True)
        try:
            self._app.send_task(
                outgoing.callback.task,
                args=[outgoing.payload],
                queue=queue,  # type: ignore[arg-type]
                argsrepr=outgoing.id,
            )
        except redis.ResponseError as error:
            if not str(error).startswith("WRONGTYPE"):
                raise ConnectionError(f"the broker did not take {outgoing.id}: {error}") from error
            # It never will: sending it again would only hold up the others.
            log.warning("A callback's queue is none.", action="callback.refused", queue=name, callback=outgoing.id)
        except (OperationalError, redis.RedisError, OSError) as error:
            raise ConnectionError(f"the broker did not take {outgoing.id}: {error}") from error

    def wake_at(self, due: float | None, now: float) -> None:
        """See Dispatcher. What is due after the next periodic tick is left to that tick."""
        wait = None if due is None or due - now >= self._tick_seconds else max(due - now, LEAST_WAIT)
        self._alarm.set(wait)

    def _send(self, task: str, messages: Sequence[list[Any]], expires: float) -> None:
        if not messages:
            return
        with self._app.producer_or_acquire() as producer:
            for arguments in messages:
                self._app.send_task(task, args=arguments, producer=producer, expires=expires)

    def _send_due_tick(self) -> None:
        try:
            self.send_tick()
        except (OperationalError, OSError) as error:
            log.warning("A tick that is due could not be sent.", action="tick.not_sent", error=str(error))


class Alarm:
    """Rings once, in a thread of its own, when the time that was set last is over."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._guard = threading.Lock()
        self._timer: threading.Timer | None = None

    def set(self, seconds: float | None) -> None:
        """Ring in so many seconds (None: not at all) instead of whatever was set before."""
        with self._guard:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = None if seconds is None else threading.Timer(seconds, self._ring)
            if self._timer is not None:
                self._timer.name, self._timer.daemon = "leasehold-alarm", True
                self._timer.start()
