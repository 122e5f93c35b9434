"""What the main process of a worker does with requests that wait for a process of its pool. It gathers requests: short
requests about one reservation are sent together to the next free process. And it lets few searches run at a time.

A prefork pool gives a process one message at a time. So the main process keeps such requests until a process is free,
and sends them to that process as one job. No request waits for others: a free process gets the requests that have
arrived.

For Celery each request stays a request of its own: its message is acknowledged after the job has ended, and it is
counted, reported and cancelled by itself. The time limits of the tasks apply to the job. If the process of a job dies,
the requests of the job are carried out one by one, so that a request that ends its process ends no other request.

Searches, such as `explain`, take up to some seconds. All processes but one carry them out, at least one; further ones
wait here. Else sixteen of them would keep all other requests waiting.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary, ref

from billiard.einfo import ExceptionWithTraceback  # type: ignore[attr-defined] # the stubs leave it out
from billiard.exceptions import WorkerLostError
from celery.exceptions import TaskRevokedError
from celery.worker import state
from celery.worker.strategy import default

from tasks.gathered import Entry, run_gathered
from tasks.queues import MOST_BYTES, SEARCHES, is_gatherable
from workers.logs import get_logger

log = get_logger(__name__)
MOST_GATHERED: Final = 100
"""The most requests in one job."""


class Gatherer:
    """The requests in one consumer (the part of a Celery worker that takes messages) that wait for a free process.

    `hand_over(request)`: a function that gives a request or a Job to the pool as soon as a process is free.
    `soon(function, argument)`: a function that calls `function` after the worker has taken all messages that have
    arrived.
    """

    def __init__(self, hand_over: Callable[[Any], object], soon: Callable[..., object]) -> None:
        self._hand_over, self._soon = hand_over, soon
        self._waiting: deque[Any] = deque()
        self._searches: deque[Any] = deque()
        """The searches that wait."""
        self._searching = 0
        """Number of searches that the pool has."""
        self._is_queued = False
        """Whether a Job of this gatherer waits for a free process. When a process is free, the job takes the requests
        that wait then.
        """

    def add(self, request: Any) -> None:
        """Keep a request until a process of the pool is free."""
        self._waiting.append(request)
        self._queue_job()

    def add_search(self, request: Any, processes: int) -> None:
        """Keep a search (SEARCHES) until fewer of them run than the pool has `processes` without one, so that other
        requests find a free process.
        """
        self._searches.append(request)
        self._start_search(processes)

    def _start_search(self, processes: int) -> None:
        while self._searches and self._searching < max(1, processes - 1):
            request = self._searches.popleft()
            request.on_left = partial(self._end_search, processes)
            self._searching += 1
            self._soon(self._hand_over, request)

    def _end_search(self, processes: int) -> None:
        self._searching -= 1
        self._start_search(processes)

    def _queue_job(self) -> None:
        if not self._is_queued:
            self._is_queued = True
            self._soon(self._hand_over, Job(self))

    def take(self) -> list[Any]:
        """Remove and return the requests that waited longest for one job: at most MOST_GATHERED, and no further one
        after bodies of MOST_BYTES. Further requests get another job.
        """
        taken: list[Any] = []
        size = 0
        while self._waiting and len(taken) < MOST_GATHERED and size < MOST_BYTES:
            taken.append(self._waiting.popleft())
            size += len(taken[-1].body)
        self._is_queued = False
        if self._waiting:
            self._queue_job()
        return taken

    def hand_over_alone(self, request: Any) -> None:
        """Give a request to the pool in a job of its own."""
        self._soon(self._hand_over, request)


class Job:
    """One unit of work for a process of the worker's pool. When a process is free, the job takes the requests that have
    waited longest, at most MOST_GATHERED. Celery's worker handles a job like a request: it calls `execute_using_pool`.
    """

    def __init__(self, gatherer: Gatherer) -> None:
        self._gatherer = gatherer
        self._requests: list[Any] = []

    def execute_using_pool(self, pool: Any, **_options: Any) -> Any:
        """Send the requests to a process of the pool. Raises TaskRevokedError, as Celery expects, if no request is left
        to run.
        """
        self._requests = [each for each in self._gatherer.take() if not each.revoked()]
        if not self._requests:
            raise TaskRevokedError("no request of this job is left to run")
        if len(self._requests) == 1:
            return self._requests[0].execute_using_pool(pool)
        first = self._requests[0]
        result = pool.apply_async(
            run_gathered,
            args=([Entry(each.name, each.id, each.request_dict, each.body) for each in self._requests],),
            accept_callback=self._on_accepted,
            timeout_callback=self._on_timeout,
            callback=self._on_success,
            error_callback=self._on_failure,
            soft_timeout=first.task.soft_time_limit,
            timeout=first.task.time_limit,
            correlation_id=first.id,
        )
        for each in self._requests:
            each._apply_result = None if result is None else ref(result)  # noqa: SLF001 - as Celery's request does
        return result

    def _on_accepted(self, pid: int, accepted_at: float) -> None:
        for each in self._requests:
            each.on_accepted(pid, accepted_at)

    def _on_timeout(self, soft: bool, timeout: float) -> None:  # noqa: FBT001 - Celery's signature
        for each in self._requests:
            each.on_timeout(soft, timeout)

    def _on_success(self, results: Any, **_options: Any) -> None:
        for each, result in zip(self._requests, results, strict=True):
            each.on_success(result)

    def _on_failure(self, error: Any, **_options: Any) -> None:
        cause = error.exception
        cause = cause.exc if isinstance(cause, ExceptionWithTraceback) else cause
        if isinstance(cause, WorkerLostError) and not _is_stopping():
            log.warning(
                "A process died while it carried out several requests; they are carried out one by one.",
                action="requests.separated",
                requests=len(self._requests),
            )
            for each in self._requests:
                self._gatherer.hand_over_alone(each)
            return
        for each in self._requests:
            each.on_failure(error)


_GATHERERS: WeakKeyDictionary[Any, tuple[Any, Gatherer]] = WeakKeyDictionary()
"""Consumer -> (its connection, its gatherer). After a reconnect the waiting requests are dropped, as in Celery itself,
because the broker delivers their messages again.
"""


class _GatheringConsumer:
    """Stands in for Celery's consumer in Celery's strategy (the function that handles each message). Requests that may
    be gathered (`is_gatherable`) go to the gatherer, all others to the consumer.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        known = _GATHERERS.get(consumer)
        if known is None or known[0] is not consumer.connection:
            soon = (lambda act, *args: act(*args)) if consumer.hub is None else consumer.hub.call_soon
            known = _GATHERERS[consumer] = consumer.connection, Gatherer(consumer.on_task_request, soon)
        self._gatherer = known[1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def on_task_request(self, request: Any) -> None:
        """Pass a request that may wait in this worker to the gatherer, and another one to the pool."""
        if is_gatherable(request.name, request.body):
            self._gatherer.add(request)
        elif request.name in SEARCHES:
            self._gatherer.add_search(request, getattr(self._consumer.pool, "num_processes", 1))
        else:
            self._consumer.on_task_request(request)


def _is_stopping() -> bool:
    """Return whether the worker is stopping, by a warm or a cold shutdown."""
    flags: tuple[object, object] = state.should_stop, state.should_terminate
    return any(flag is not None and flag is not False for flag in flags)


def start_strategy(task: Any, app: Any, consumer: Any) -> Any:
    """Return Celery's default strategy (the function that handles each message), changed to gather the requests that
    `is_gatherable` permits.
    """
    return default(task, app, _GatheringConsumer(consumer))
