"""The Dispatcher on Celery: slow work becomes messages with ids of rows; the next due time becomes an alarm.

No message is sent with an ETA or a countdown: on Redis such a message is delivered repeatedly once it is older than the
visibility timeout. Delays are stored in SQL, and beat's ticks check them.
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
"""Least seconds before an alarm, so that work which stays due does not cause one tick after the other."""


class CeleryDispatcher:
    """See `scheduler.ports.Dispatcher`. Safe for threads; each process makes its own.

    `resend_seconds`: the interval in which `recover` sends slow work again. Messages expire after twice this time, so
    that copies do not fill a slow queue.
    """

    def __init__(self, app: Celery, *, tick_seconds: float, resend_seconds: float, sweep_seconds: float) -> None:
        self._app = app
        self._tick_seconds = tick_seconds
        self._slow_expires, self._check_expires = 2 * resend_seconds, 3 * sweep_seconds
        self._alarm = Alarm(self._send_due_tick)

    def send_launches(self, slots: Sequence[Slot]) -> None:
        """Send the launches of these slots to the launch queue. See Dispatcher."""
        self._send(LAUNCH_SLOT, [[slot.id, slot.launch_id] for slot in slots], self._slow_expires)

    def send_terminations(self, slots: Sequence[Slot]) -> None:
        """Send the terminations of these slots' machines, in these epochs, to the terminate queue. See Dispatcher."""
        self._send(TERMINATE_SLOT, [[slot.id, slot.epoch] for slot in slots], self._slow_expires)

    def send_checks(self, slots: Sequence[str]) -> None:
        """Send checks of these slots to the health queue. See Dispatcher."""
        if slots:
            self._send(CHECK, [[list(slots)]], self._check_expires)

    def send_tick(self) -> None:
        """Request a tick now."""
        self._send(TICK, [[]], 2 * self._tick_seconds)

    def send_callback(self, outgoing: OutboxMessage) -> None:
        """Send a callback to its task and queue. See Dispatcher."""
        name = outgoing.callback.queue
        # The producer's queue, which is not declared here: the message goes onto the Redis list of that name.
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
            # The queue will never accept it, and repeating it would delay other callbacks.
            log.warning(
                "The queue of a callback is a Redis key of another type than list: the callback was not sent.",
                action="callback.refused",
                queue=name,
                callback=outgoing.id,
            )
        except (OperationalError, redis.RedisError, OSError) as error:
            raise ConnectionError(f"the broker did not take {outgoing.id}: {error}") from error

    def wake_at(self, due: float | None, now: float) -> None:
        """Schedule a tick for `due` (None: no scheduled tick). A due time after the next periodic tick needs no alarm.
        See Dispatcher.
        """
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
            log.warning("The message for a due tick was not sent.", action="tick.not_sent", error=str(error))


class Alarm:
    """Calls a function once, in a thread of its own, when the time that was set last is over."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._guard = threading.Lock()
        self._timer: threading.Timer | None = None

    def set(self, seconds: float | None) -> None:
        """Call the function after this time; None: not at all. This replaces an earlier setting."""
        with self._guard:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = None if seconds is None else threading.Timer(seconds, self._ring)
            if self._timer is not None:
                self._timer.name, self._timer.daemon = "leasehold-alarm", True
                self._timer.start()
