"""Trivial tasks through Dask or Ray: `python -P bench/_trivial_tasks.py dask|ray ROUNDS COUNT...`. It prints JSON.

This file is run by the Python of an environment that has Dask and Ray and nothing of Leasehold, so it imports neither
Leasehold nor another module of the benches.
"""

import atexit
import importlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

Submit = Callable[[int], None]
"""Runs this number of trivial tasks and waits for all their results."""


def do_nothing(number: int) -> int:
    """Return the argument: the trivial task."""
    return number


def open_dask() -> tuple[str, Submit]:
    """Start a cluster with a process for each core, and return Dask's version and how tasks are run."""
    distributed: Any = importlib.import_module("distributed")
    cluster = distributed.LocalCluster(n_workers=os.cpu_count(), threads_per_worker=1, dashboard_address=None)
    client = distributed.Client(cluster)

    def submit(count: int) -> None:
        assert len(client.gather(client.map(do_nothing, range(count), pure=False))) == count

    return str(distributed.__version__), submit


def open_ray() -> tuple[str, Submit]:
    """Start Ray with a process for each core, and return its version and how tasks are run."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray: Any = importlib.import_module("ray")
    # Paths of sockets must be short.
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    # Called before the folder is removed.
    atexit.register(ray.shutdown)
    ray.init(
        num_cpus=os.cpu_count(),
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=200_000_000,
        _temp_dir=folder,
    )
    remote = ray.remote(do_nothing)

    def submit(count: int) -> None:
        assert len(ray.get([remote.remote(number) for number in range(count)])) == count

    return str(ray.__version__), submit


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
    """Measure one system and print its figures."""
    version, submit = {"dask": open_dask, "ray": open_ray}[sys.argv[1]]()
    found = measure(submit, int(sys.argv[2]), [int(word) for word in sys.argv[3:]])
    print(json.dumps({"version": version, **found}))


if __name__ == "__main__":
    main()
