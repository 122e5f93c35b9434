"""What `bench.commands` measures of Dask: workers on leases, and workers that are started by hand."""

import subprocess
import sys
from time import perf_counter
from typing import Any, Final

from distributed import Client as DaskClient
from distributed import LocalCluster

from bench._command_hosts import await_all_ended, open_hosts
from bench._stack import SYSTEM
from leasehold.work.dask import LeaseholdCluster

PROGRAM: Final = (sys.executable, "-m", "distributed.cli.dask_worker")
LONGEST_SECONDS: Final = 600


def measure_workers(hosts: int, count: int, rounds: int) -> str:
    """Return the seconds until all workers are connected, on leases and by hand, in turns."""
    ours, by_hand = [], []
    # Fifty interpreters start on the cores that answer renewals, too.
    with open_hosts(hosts, -(-count // hosts), lease_ttl=900, offline_timeout=600) as (stack, _, _):
        for _ in range(rounds):
            by_hand.append(start_by_hand(count))
            ours.append(start_on_leases(stack.url, count))
            await_all_ended(stack)
    pairs = ", ".join(
        f"{each:.1f} s, by hand {other:.1f} s: {each / other:.2f} x" for each, other in zip(ours, by_hand, strict=True)
    )
    return f"{count} workers on {hosts} hosts: {pairs}"


def start_on_leases(url: str, count: int) -> float:
    """Return the seconds from the call of `scale` until all workers are connected."""
    options: dict[str, Any] = {"system": SYSTEM, "resources": {"cpus": 0.1}, "host": "127.0.0.1"}
    with LeaseholdCluster(url=url, python=sys.executable, **options) as cluster, DaskClient(cluster) as client:
        begin = perf_counter()
        cluster.scale(count)
        client.wait_for_workers(count, timeout=LONGEST_SECONDS)
        return perf_counter() - begin


def start_by_hand(count: int) -> float:
    """Return the seconds from the start of the first process until all workers are connected."""
    with (
        LocalCluster(n_workers=0, dashboard_address=None, host="127.0.0.1") as cluster,
        DaskClient(cluster) as client,
    ):
        address = cluster.scheduler_address
        options = [address, "--no-nanny", "--no-dashboard", "--nthreads", "1", "--memory-limit", "auto"]
        begin, started = perf_counter(), []
        try:
            for number in range(count):
                command = [*PROGRAM, *options, "--name", str(number)]
                started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            client.wait_for_workers(count, timeout=LONGEST_SECONDS)
            return perf_counter() - begin
        finally:
            for each in started:
                each.terminate()
            for each in started:
                each.wait()
