"""The pool of threads of a worker during a shutdown."""

import threading
from collections.abc import Iterator

import pytest
from celery.exceptions import WorkerTerminate
from celery.worker import state

from tasks.threads import ThreadPool


@pytest.fixture
def pool() -> Iterator[ThreadPool]:
    pool = ThreadPool(1)
    pool.start()
    yield pool
    pool.executor.shutdown()


def test_a_task_runs_in_a_thread_of_the_pool(pool: ThreadPool) -> None:
    started = threading.Event()
    pool.apply_async(started.set)
    assert started.wait(10)


def test_a_message_read_while_a_signal_stops_the_pool_ends_the_worker_and_is_not_started(
    pool: ThreadPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Celery's handler of SIGQUIT stops the pool and returns to the code that was reading a message."""
    monkeypatch.setattr(state, "should_terminate", True)
    pool.stop()
    started = threading.Event()
    with pytest.raises(WorkerTerminate):
        pool.apply_async(started.set)
    assert not started.is_set()
