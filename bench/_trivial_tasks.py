"""Trivial tasks through Dask or Ray: `python -P bench/_trivial_tasks.py dask|ray ROUNDS COUNT...`. It prints JSON.

Each system is first tried with several settings that its users recommend for many short tasks. It is then measured with
those that gave the best rate, which are part of the answer.

This file is run by the Python of an environment that has Dask and Ray and nothing of Leasehold, so it imports neither
Leasehold nor another module of the benches.
"""

import importlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from time import perf_counter
from typing import Any

Submit = Callable[[int], None]
"""Runs this number of trivial tasks and waits for all their results."""
Close = Callable[[], None]
Open = Callable[[], tuple[str, Submit, Close]]
"""Starts a system, and returns its version, how tasks are run, and how it is ended."""
TRIED = 2_000
"""Tasks with which settings are compared."""


def do_nothing(number: int) -> int:
    """Return the argument: the trivial task."""
    return number


def open_dask(workers: int, threads: int, saturation: float, *, processes: bool = True) -> tuple[str, Submit, Close]:
    """Start a cluster. `saturation`: how many tasks the scheduler sends to a worker at once for each of its threads."""
    dask: Any = importlib.import_module("dask")
    dask.config.set({"distributed.scheduler.worker-saturation": saturation})
    distributed: Any = importlib.import_module("distributed")
    cluster = distributed.LocalCluster(
        n_workers=workers, threads_per_worker=threads, processes=processes, dashboard_address=None
    )
    client = distributed.Client(cluster)

    def submit(count: int) -> None:
        assert len(client.gather(client.map(do_nothing, range(count), pure=False))) == count

    def close() -> None:
        client.close()
        cluster.close()

    return str(distributed.__version__), submit, close


def open_ray(cpus: int, **options: Any) -> tuple[str, Submit, Close]:
    """Start Ray, whose tasks have these options."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray: Any = importlib.import_module("ray")
    # Paths of sockets must be short.
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    ray.init(
        num_cpus=cpus,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=200_000_000,
        _temp_dir=folder,
    )
    remote = ray.remote(**options)(do_nothing) if options else ray.remote(do_nothing)

    def submit(count: int) -> None:
        assert len(ray.get([remote.remote(number) for number in range(count)])) == count

    def close() -> None:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)

    return str(ray.__version__), submit, close


CORES = os.cpu_count() or 1
SETTINGS: dict[str, dict[str, Open]] = {
    "dask": {
        "a worker a core, default queueing": partial(open_dask, CORES, 1, 1.1),
        "a worker a core, worker-saturation inf": partial(open_dask, CORES, 1, inf),
        "a worker a core of 4 threads, worker-saturation inf": partial(open_dask, CORES, 4, inf),
        "2 workers a core of 4 threads, worker-saturation inf": partial(open_dask, 2 * CORES, 4, inf),
        "a worker in the client's process, worker-saturation inf": partial(
            open_dask, 1, 2 * CORES, inf, processes=False
        ),
    },
    "ray": {
        "a cpu a core": partial(open_ray, CORES),
        "a cpu a core, no retries, no task events": partial(open_ray, CORES, max_retries=0, enable_task_events=False),
        "2 cpus a core, no retries, no task events": partial(
            open_ray, 2 * CORES, max_retries=0, enable_task_events=False
        ),
    },
}


def find_best(settings: dict[str, Open]) -> str:
    """Return the settings with the best of two rates of TRIED tasks. Each is started and ended once."""
    rates = dict[str, float]()
    for name, start in settings.items():
        _, submit, close = start()
        try:
            submit(200)
            rates[name] = TRIED / min(_time(submit, TRIED) for _ in range(2))
        finally:
            close()
        print(f"- {name}: {rates[name]:,.0f}/s", file=sys.stderr, flush=True)
    return max(rates, key=lambda name: rates[name])


def measure(submit: Submit, rounds: int, counts: Sequence[int]) -> dict[str, Any]:
    """Return tasks a second for each count, and the milliseconds of single tasks, each waited for."""
    for _ in range(20):
        submit(1)
    submit(200)
    delays = sorted(_time(submit, 1) for _ in range(rounds))
    rates = {str(count): count / _time(submit, count) for count in counts}
    return {"rates": rates, "p50": 1000 * _pick(delays, 0.5), "p99": 1000 * _pick(delays, 0.99)}


def _time(submit: Submit, count: int) -> float:
    began = perf_counter()
    submit(count)
    return perf_counter() - began


def _pick(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def main() -> None:
    """Measure one system with its best settings, and print its figures."""
    settings = SETTINGS[sys.argv[1]]
    best = find_best(settings)
    version, submit, close = settings[best]()
    try:
        found = measure(submit, int(sys.argv[2]), [int(word) for word in sys.argv[3:]])
    finally:
        close()
    print(json.dumps({"version": version, "settings": best, **found}))


if __name__ == "__main__":
    main()
