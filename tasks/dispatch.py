"""The scheduler's port Dispatcher, implemented with Celery. Slow work is sent as messages with ids of rows, and an
alarm (a timer) requests the next due tick.

No message is sent with an ETA or a countdown: on Redis such a message is delivered repeatedly once it is older than the
visibility timeout. Delays are stored in SQL, and beat's ticks check them.
"""

import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import redis
from celery import Celery
from kombu import Connection, Exchange, Producer, Queue
from kombu.exceptions import OperationalError
from kombu.utils.json import dumps

from scheduler.model.slots import Slot, list_batches
from scheduler.ports import OutboxMessage
from scheduler.protocol.names import TICKS
from scheduler.protocol.task_messages import MessageWriter
from tasks.queues import (
    CHECK,
    LAUNCH_BATCH,
    LAUNCH_SLOT,
    START_SLOTS,
    STOP_SLOTS,
    TERMINATE_SLOT,
    TERMINATE_SLOTS,
    TICK,
)
from tasks.signing import find_signer
from workers.logs import get_logger
from workers.queue_watch import SENT_AT

log = get_logger(__name__)

MOST_TERMINATED: Final = 500
"""The most slots in one message that requests terminations."""
MOST_POWERED: Final = 250
"""The most slots in one message that requests starts or stops."""
WORK_SECONDS: Final = 3600.0
"""Seconds until a message with slow work expires. Far longer than a queue may need for the machines of a large cluster.
"""
LEAST_WAIT: Final = 0.02
"""The least seconds until an alarm (a timer that requests a tick), so that work that stays due does not cause ticks
without a pause.
"""


class CeleryDispatcher:
    """Sends the scheduler's slow work, requests for ticks, and callbacks (messages to producers) as Celery messages.
    Threads may share an object; processes may not. `now` returns cluster time.

    `tick_seconds`: the interval of periodic ticks; requests for ticks expire after twice this time. Messages with slow
    work expire after WORK_SECONDS: work that waits is not sent again, so copies do not fill a slow queue.
    """

    def __init__(
        self,
        app: Celery,
        *,
        tick_seconds: float,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._app, self._now = app, now
        self._writer = MessageWriter(self._write_form, dumps, find_signer(app))
        self._tick_seconds = tick_seconds
        self._alarm = Alarm(self._send_due_tick)

    def send_launches(self, slots: Sequence[Slot]) -> None:
        """Send one message for each batch of these slots, and for each slot without a batch, to the queue `launch`: a
        worker then launches the machines.
        """
        self._send(LAUNCH_BATCH, [[batch] for batch in list_batches(slots)], WORK_SECONDS)
        self._send(LAUNCH_SLOT, [[slot.id, slot.launch_id] for slot in slots if slot.batch is None], WORK_SECONDS)

    def send_terminations(self, slots: Sequence[Slot]) -> None:
        """Send messages for these slots to the queue `terminate`: a worker then ends the machines that the slots have
        in their present epochs. A message is about one slot or about a list of slots.
        """
        pairs = [[slot.id, slot.epoch] for slot in slots]
        if len(pairs) == 1:
            self._send(TERMINATE_SLOT, pairs, WORK_SECONDS)
        lists = [pairs[first : first + MOST_TERMINATED] for first in range(0, len(pairs), MOST_TERMINATED)]
        self._send(TERMINATE_SLOTS, [[each] for each in lists if len(pairs) > 1], WORK_SECONDS)

    def send_power(self, slots: Sequence[Slot]) -> None:
        """Send messages with lists of these slots: to the queue `launch` for starts, to `terminate` for stops. A worker
        then starts or stops the machines that the slots have in their present epochs.
        """
        for power, task in (("start", START_SLOTS), ("stop", STOP_SLOTS)):
            pairs = [[slot.id, slot.epoch] for slot in slots if slot.power == power]
            lists = [pairs[first : first + MOST_POWERED] for first in range(0, len(pairs), MOST_POWERED)]
            self._send(task, [[each] for each in lists], WORK_SECONDS)

    def send_checks(self, slots: Sequence[str]) -> None:
        """Send one message to the queue `health`: a worker then checks the machines of the slots with these ids."""
        if slots:
            self._send(CHECK, [[list(slots)]], WORK_SECONDS)

    def send_tick(self) -> None:
        """Send a message that requests a tick (one run of the scheduler) now."""
        self._send(TICK, [[]], 2 * self._tick_seconds)

    def write_tick(self) -> str:
        """Return the message that `send_tick` sends, for a caller that puts it into the queue by itself."""
        now = self._now()
        expires = datetime.fromtimestamp(now + 2 * self._tick_seconds, UTC).isoformat()
        return self._writer.write(TICK, TICKS, None, None, {SENT_AT: now, "expires": expires})

    def send_callback(self, outgoing: OutboxMessage) -> None:
        """Send a callback (a message from the outbox to a producer) to the task and the queue that the producer named.
        If the Redis key with the queue's name is no list, log a warning and drop the callback.

        Raises ConnectionError if the broker does not take the message.
        """
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
                raise ConnectionError(f"the broker did not take the callback {outgoing.id}: {error}") from error
            # The queue will never accept the callback, and repeating it would delay other callbacks.
            log.warning(
                "A callback was dropped: the Redis key with the name of its queue is no list.",
                action="callback.refused",
                queue=name,
                callback=outgoing.id,
            )
        except (OperationalError, redis.RedisError, OSError) as error:
            raise ConnectionError(f"the broker did not take the callback {outgoing.id}: {error}") from error

    def wake_at(self, due: float | None, now: float) -> None:
        """Set the alarm that requests a tick at the cluster time `due` (None: no alarm). If the next periodic tick
        comes before `due`, set no alarm.
        """
        self._alarm.set(None if due is None or due - now >= self._tick_seconds else max(due - now, LEAST_WAIT))

    def _send(self, task: str, messages: Sequence[list[Any]], expires: float) -> None:
        if not messages:
            return
        with self._app.producer_or_acquire() as producer:
            for arguments in messages:
                self._app.send_task(task, args=arguments, producer=producer, expires=expires)

    def _write_form(self, task: str, queue: str) -> dict[str, Any]:
        """Let Celery and kombu write one message of this task, and return it as the template of all other messages of
        the task.
        """
        with Connection("memory://") as connection:
            producer: Any = Producer(connection)
            self._app.send_task(task, args=[], producer=producer, expires=2 * self._tick_seconds, retry=False)
            found: dict[str, Any] = producer.channel._get(queue)  # noqa: SLF001 - the message as it is stored
            return found

    def _send_due_tick(self) -> None:
        try:
            self.send_tick()
        except (OperationalError, OSError) as error:
            log.warning("The message for a due tick was not sent.", action="tick.not_sent", error=str(error))


class Alarm:
    """A timer that calls the function `ring` once, in a thread of its own. A new setting replaces the earlier one."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._guard = threading.Lock()
        self._timer: threading.Timer | None = None

    def set(self, seconds: float | None) -> None:
        """Call the function of this alarm once after `seconds` (None: do not call it). This replaces an earlier
        setting.
        """
        with self._guard:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = None if seconds is None else threading.Timer(seconds, self._ring)
            if self._timer is not None:
                self._timer.name, self._timer.daemon = "leasehold-alarm", True
                self._timer.start()
