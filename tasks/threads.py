"""The pool of threads for workers that wait for EC2: a cold shutdown does not wait for a call that hangs.

A thread cannot be ended from outside. Celery's own pool joins its threads when it stops, and Python joins them again
when the process ends. A stop would take as long as EC2 does.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NoReturn

from celery.concurrency.thread import TaskPool
from celery.worker import state

from workers.logs import get_logger

log = get_logger(__name__)
POOL_NAME: Final = "tasks.threads:ThreadPool"


class ThreadPool(TaskPool):
    """Waits for its tasks at a warm shutdown. At a cold one it waits for none: the soft shutdown did that before."""

    executor: ThreadPoolExecutor

    def on_stop(self) -> None:
        """Take no more tasks; drop those that have not begun when the shutdown is cold."""
        is_cold = bool(state.should_terminate)
        self.executor.shutdown(wait=not is_cold, cancel_futures=is_cold)

    def count_busy(self) -> int:
        """How many threads have not ended. All have at the end of a warm shutdown."""
        return sum(thread.is_alive() for thread in self.executor._threads)  # noqa: SLF001 - there is no other way


def leave(status: int | None, pool: Any) -> NoReturn:
    """End this process with this status, without waiting for threads that EC2 keeps."""
    busy = pool.count_busy() if isinstance(pool, ThreadPool) else 0
    if busy:
        log.warning("The process ends before its tasks: their work is sent again.", action="worker.left", tasks=busy)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status or 0)
    sys.exit(status)
