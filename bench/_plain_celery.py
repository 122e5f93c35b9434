"""Raw Celery: an app with one trivial task, a worker of it, and the rate of its tasks.

The task answers with one push to a Redis list, because Celery's own results cost more than that.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any, Final

import celery
import redis

from bench._trivial_tasks import CORES, TRIED, measure
from testbed.guarding import Guarded

VARIABLE = "LEASEHOLD_BENCH_REDIS"
"""Environment variable with the URL of the Redis."""
ANSWERS = "bench:answers"
START_SECONDS = 60

_url = os.environ.get(VARIABLE, "redis://localhost:1/0")
app = celery.Celery("bench-plain", broker=_url)
app.conf.update(task_ignore_result=True, broker_connection_retry_on_startup=True)
_redis = redis.Redis.from_url(_url)


@app.task
def answer() -> None:
    """Push one answer: the trivial task."""
    _redis.rpush(ANSWERS, "1")


def submit(count: int) -> None:
    """Send this number of tasks, and return when all have answered."""
    for _ in range(count):
        answer.delay()
    for _ in range(count):
        assert _redis.blpop([ANSWERS], timeout=60), "a task of raw Celery does not answer"


SETTINGS: Final = {
    "a process a core": ["--pool", "prefork", "--concurrency", str(CORES)],
    "a process a core, prefetch of 32, -O fair": [
        *("--pool", "prefork", "--concurrency", str(CORES)),
        *("--prefetch-multiplier", "32", "-O", "fair"),
    ],
    "a thread a core, prefetch of 32": [
        "--pool",
        "threads",
        "--concurrency",
        str(CORES),
        "--prefetch-multiplier",
        "32",
    ],
    "one process without a pool": ["--pool", "solo"],
}


def measure_celery(rounds: int, counts: list[int], folder: Path) -> dict[str, Any]:
    """Return the figures of raw Celery with the settings that give the best of two rates. VARIABLE must be set."""
    rates = dict[str, float]()
    for name, words in SETTINGS.items():
        with running(words, folder):
            rates[name] = max(measure(submit, 1, [TRIED])["rates"][str(TRIED)] for _ in range(2))
        print(f"- {name}: {rates[name]:,.0f}/s", file=sys.stderr, flush=True)
    best = max(rates, key=lambda name: rates[name])
    with running(SETTINGS[best], folder):
        return {"version": celery.__version__, "settings": best, **measure(submit, rounds, counts)}


@contextmanager
def running(options: list[str], folder: Path) -> Iterator[None]:
    """Run a worker with these options for the block."""
    words = [sys.executable, "-m", "celery", "-A", "bench._plain_celery", "worker", "--without-gossip"]
    words += ["--without-mingle", *options]
    with (folder / "celery.log").open("ab") as log, Guarded(words, stdout=log, stderr=log) as worker:
        answer.delay()
        until = monotonic() + START_SECONDS
        while not _redis.blpop([ANSWERS], timeout=1):
            assert monotonic() < until, "the worker of raw Celery does not start"
            assert worker.poll() is None, "the worker of raw Celery ended"
        yield
        worker.terminate()
