"""Single `reserve()` calls by many concurrent producers: accepted reservations a second, waits, and CPU time.

Each producer is a thread that submits one reservation after the other. The threads are spread over some processes, with
one client each. `python -m bench.producers [--producers N] [--seconds S] [--leased] [--postgresql] [--json]`.

Must reach: at least 1,000 reservations a second by 100 producers on the same two cores.
"""

import argparse
import json
import multiprocessing
import sys
import threading
from contextlib import nullcontext
from statistics import quantiles
from time import monotonic, perf_counter, process_time
from typing import Any

from bench._stack import SYSTEM, open_stack
from bench.throughput import read_cpu_by_group
from leasehold.client.client import Client
from leasehold.stack import Stack
from testbed.postgresql_server import open_postgresql

PROCESSES = 2
WARM_UP_SECONDS = 2.0
MOST_LEASES = 1_000_000


class Producers:
    """The threads of one process, which submit reservations through one client until their time is over."""

    def __init__(self, url: str, prefix: str) -> None:
        self._client = Client(url, prefix=prefix)
        self.seconds: list[float] = []
        self._guard = threading.Lock()

    def run(self, threads: int, seconds: float) -> None:
        """Submit reservations by this many threads for this many seconds."""
        until = monotonic() + seconds
        running = [threading.Thread(target=self._produce, args=(until,)) for _ in range(threads)]
        for each in running:
            each.start()
        for each in running:
            each.join()

    def _produce(self, until: float) -> None:
        found = []
        while monotonic() < until:
            began = perf_counter()
            self._client.reserve(system=SYSTEM)
            found.append(perf_counter() - began)
        with self._guard:
            self.seconds += found


def produce(url: str, prefix: str, threads: int, seconds: float, barrier: Any, results: Any) -> None:
    """Run the producers of one process: warm up, wait for the other processes, submit, and send the figures."""
    producers = Producers(url, prefix)
    producers.run(threads, WARM_UP_SECONDS)
    producers.seconds.clear()
    barrier.wait()
    began = process_time()
    producers.run(threads, seconds)
    results.put((producers.seconds, process_time() - began))


def measure(stack: Stack, threads: int, seconds: float) -> dict[str, Any]:
    """Return the figures of one run: rate, waits in milliseconds, and microseconds of CPU time of one reservation."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(PROCESSES + 1), context.Queue()
    shares = [threads // PROCESSES + (number < threads % PROCESSES) for number in range(PROCESSES)]
    prefix = stack.configuration.settings.view.prefix
    running = [
        context.Process(target=produce, args=(stack.url, prefix, share, seconds, barrier, results)) for share in shares
    ]
    for each in running:
        each.start()
    barrier.wait()
    before, began = read_cpu_by_group(stack), perf_counter()
    found = [results.get() for _ in running]
    took, after = perf_counter() - began, read_cpu_by_group(stack)
    for each in running:
        each.join()
    waits = [wait for part, _ in found for wait in part]
    cuts = quantiles(waits, n=100, method="inclusive")
    cpu = {"producers": sum(used for _, used in found)}
    cpu |= {name: used - before.get(name, 0.0) for name, used in after.items()}
    return {
        "rate": len(waits) / took,
        "p50_ms": cuts[49] * 1000,
        "p99_ms": cuts[98] * 1000,
        "cpu_us": {name: used / len(waits) * 1e6 for name, used in cpu.items() if used / len(waits) > 1e-6},
    }


def main() -> None:
    """Measure some rounds and print the figures."""
    parser = argparse.ArgumentParser(description="Single reservations by concurrent producers.")
    parser.add_argument("--producers", type=int, default=100, help="threads that submit reservations")
    parser.add_argument("--seconds", type=float, default=10.0, help="duration of a round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--leased", action="store_true", help="slots that hold all reservations; default: they wait")
    parser.add_argument("--postgresql", action="store_true", help="on PostgreSQL; default: SQLite")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    found = []
    with (
        open_postgresql() if options.postgresql else nullcontext() as url,
        open_stack(
            slots=100 if options.leased else 1,
            leases_per_slot=MOST_LEASES if options.leased else 1,
            database_url=url,
        ) as (stack, _),
    ):
        for _ in range(options.rounds):
            found.append(figures := measure(stack, options.producers, options.seconds))
            if not options.json:
                shown = ", ".join(f"{name} {used:,.0f}" for name, used in figures["cpu_us"].items())
                print(
                    f"{options.producers} producers: {figures['rate']:,.0f} accepted/s, p50 {figures['p50_ms']:.1f} ms,"
                    f" p99 {figures['p99_ms']:.1f} ms; µs of CPU each: {shown}",
                    flush=True,
                )
    if options.json:
        json.dump(found, sys.stdout, indent=2)


if __name__ == "__main__":
    main()
