"""The pool of threads for workers that call EC2: a cold shutdown does not wait for a call that hangs.

A thread cannot be ended from outside. Celery's pool joins its threads when it stops, and Python joins them when the
process ends, so a stop would take as long as EC2's answer.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NoReturn

from celery.concurrency.thread import TaskPool
from celery.exceptions import WorkerTerminate
from celery.platforms import EX_FAILURE
from celery.worker import state

from workers.logs import get_logger

log = get_logger(__name__)
POOL_NAME: Final = "tasks.threads:ThreadPool"


class ThreadPool(TaskPool):
    """A Celery pool of threads. At a warm shutdown the pool waits for running tasks. At a cold shutdown the pool does
    not wait, because the soft shutdown, which precedes it, has already waited.
    """

    executor: ThreadPoolExecutor

    def on_apply(self, target: Any, *arguments: Any, **options: Any) -> Any:
        """Start a task in a thread. Raises WorkerTerminate if a cold shutdown has stopped this pool; the message then
        stays unacknowledged and is delivered again.
        """
        if state.should_terminate:
            # Celery stops the pool in the handler of a signal. The signal may come while the main process reads a
            # message, and the code that was interrupted then still wants to start that message's task.
            raise WorkerTerminate(EX_FAILURE)
        return super().on_apply(target, *arguments, **options)

    def on_stop(self) -> None:
        """Accept no more tasks when the worker stops; wait for running tasks at a warm shutdown, and drop tasks that
        have not begun at a cold one.
        """
        is_cold = bool(state.should_terminate)
        self.executor.shutdown(wait=not is_cold, cancel_futures=is_cold)


def leave(status: int | None, pool: Any) -> NoReturn:
    """End this worker process with this status, without waiting for threads that wait for EC2."""
    busy = sum(thread.is_alive() for thread in pool.executor._threads) if isinstance(pool, ThreadPool) else 0  # noqa: SLF001
    if busy:
        log.warning(
            "The process ends before its tasks; their work will be sent again.", action="worker.left", tasks=busy
        )
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status or 0)
    sys.exit(status)
