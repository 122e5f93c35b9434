"""Single leases on ready slots: `with client.lease()` by threads, the same by one asyncio client, and `reserve`, wait,
`release` by threads. Rates, the CPU time of each process for a lease, and the work for a lease in counts.

`python -m bench.leases [WAY...] [--count N] [--at-once N] [--rounds N] [--postgresql] [--json]`. The counts hold on a
machine with other work: requests and ticks by the metrics of the stack, commands by Redis.

Must reach: 900 leases/s by 50 threads at 2 ms of CPU, 1,200/s by an asyncio client, 1,200/s by calls.
"""

import argparse
import asyncio
import json
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from statistics import median
from time import perf_counter, process_time, sleep
from typing import Any, Final, NamedTuple, cast

import redis

from bench._stack import SYSTEM, open_stack
from bench.throughput import read_cpu_by_group
from leasehold.client.async_client import AsyncClient
from leasehold.stack import Stack
from scheduler.protocol.names import RESERVATIONS, TASK_PREFIX
from scheduler.view.redis_meter import RedisMeter
from testbed.postgresql_server import open_postgresql

SLOTS: Final = 20
LEASES_PER_SLOT: Final = 20
WARM_UP: Final = 200
SETTLING_SECONDS: Final = 0.5
"""Pause after each round, in which the ticks after the last releases end."""

Act = Callable[[], None]
Run = Callable[[Stack, int, int], float]
"""Takes a number of leases, a number of them at the same time, and returns the seconds."""


class Work(NamedTuple):
    """What a stack has done so far: CPU seconds of each process, and numbers of requests, ticks and Redis commands."""

    cpu: dict[str, float]
    requests: float
    ticks: float
    commands: int


def read_work(stack: Stack, server: redis.Redis) -> Work:
    """Return what the stack and the clients of this process have done so far."""
    tally = RedisMeter(server, stack.configuration.settings.view.prefix).read()
    tasks = tally.histograms["leasehold_task_seconds"]
    asked = sum(sum(spread.counts) for (task, *_), spread in tasks.items() if _is_request(task))
    stats = cast("Mapping[str, Mapping[str, int]]", server.info("commandstats"))
    return Work(
        {"clients": process_time(), **read_cpu_by_group(stack)},
        asked,
        sum(tally.counters["leasehold_ticks_total"].values()),
        sum(each["calls"] for each in stats.values()),
    )


def _is_request(task: str) -> bool:
    return task.startswith(f"{TASK_PREFIX}.{RESERVATIONS}.") and not task.endswith(".canary")


def run_threads(act: Act, count: int, threads: int) -> float:
    """Call `act` `count` times by this many threads. Return the seconds."""
    left = iter(range(count))

    def work() -> None:
        while next(left, None) is not None:
            act()

    running = [threading.Thread(target=work) for _ in range(threads)]
    began = perf_counter()
    for each in running:
        each.start()
    for each in running:
        each.join()
    return perf_counter() - began


def lease_by_threads(stack: Stack, count: int, at_once: int) -> float:
    """Enter and leave leases by threads that share one client."""
    with stack.client() as client:

        def act() -> None:
            with client.lease(system=SYSTEM, wait=60) as lease:
                assert lease.token

        return run_threads(act, count, at_once)


def call_by_threads(stack: Stack, count: int, at_once: int) -> float:
    """Reserve, wait and release by threads that share one client."""
    with stack.client() as client:

        def act() -> None:
            row = client.wait(client.reserve(system=SYSTEM).id, timeout=60)
            client.release(row.id, row.token)

        return run_threads(act, count, at_once)


def lease_by_loop(stack: Stack, count: int, at_once: int) -> float:
    """Enter and leave leases by tasks of one asyncio client."""
    settings = stack.configuration.settings

    async def run() -> float:
        left = iter(range(count))
        async with AsyncClient(stack.url, view_url=settings.view_url, prefix=settings.view.prefix) as client:

            async def work() -> None:
                while next(left, None) is not None:
                    async with client.lease(system=SYSTEM, wait=60) as lease:
                        assert lease.token

            began = perf_counter()
            await asyncio.gather(*(work() for _ in range(at_once)))
            return perf_counter() - began

    return asyncio.run(run())


WAYS: Final[Mapping[str, tuple[str, Run]]] = {
    "threads": ("`with client.lease()` by threads", lease_by_threads),
    "asyncio": ("the same by one asyncio client", lease_by_loop),
    "calls": ("reserve, wait, release by threads", call_by_threads),
}


def measure(stack: Stack, run: Run, count: int, at_once: int) -> dict[str, Any]:
    """Return the figures of one round: leases a second, and CPU milliseconds and work for a lease."""
    with redis.Redis.from_url(stack.url) as server:
        before = read_work(stack, server)
        seconds = run(stack, count, at_once)
        sleep(SETTLING_SECONDS)
        after = read_work(stack, server)
    cpu = {name: (used - before.cpu.get(name, 0.0)) / count * 1e3 for name, used in after.cpu.items()}
    return {
        "rate": count / seconds,
        "cpu_ms": sum(cpu.values()),
        "requests": (after.requests - before.requests) / count,
        "ticks": (after.ticks - before.ticks) / count,
        "commands": (after.commands - before.commands) / count,
        "cpu": {name: used for name, used in cpu.items() if used >= 0.005},
    }


def measure_ways(stack: Stack, ways: list[str], count: int, at_once: int, rounds: int) -> dict[str, dict[str, Any]]:
    """Return the medians of some rounds of each way. The ways take turns."""
    for way in ways:
        WAYS[way][1](stack, WARM_UP, at_once)
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way in ways:
            found[way].append(figures := measure(stack, WAYS[way][1], count, at_once))
            _show(f"{way}: {figures['rate']:,.0f}/s, {figures['cpu_ms']:.2f} ms of CPU for a lease")
    return {way: _find_medians(each) for way, each in found.items()}


def _find_medians(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    names = {name for each in rounds for name in each["cpu"]}
    cpu = {name: median(each["cpu"].get(name, 0.0) for each in rounds) for name in names}
    plain = {key: median(each[key] for each in rounds) for key in rounds[0] if key != "cpu"}
    return {**plain, "cpu": dict(sorted(cpu.items(), key=lambda pair: -pair[1]))}


def _show(text: str) -> None:
    print(f"- {text}", file=sys.stderr, flush=True)


def main() -> None:
    """Measure the ways and print their figures."""
    parser = argparse.ArgumentParser(description="Single leases on ready slots.")
    parser.add_argument("ways", nargs="*", metavar="WAY", help=f"{', '.join(WAYS)}; default: all")
    parser.add_argument("--count", type=int, default=2_000, help="leases in a round; default: %(default)s")
    parser.add_argument("--at-once", type=int, default=50, help="threads, or tasks; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--postgresql", action="store_true", help="on PostgreSQL; default: SQLite")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    if unknown := set(options.ways) - set(WAYS):
        parser.error(f"unknown ways: {', '.join(sorted(unknown))}")
    with (
        open_postgresql() if options.postgresql else nullcontext() as url,
        open_stack(SLOTS, LEASES_PER_SLOT, url) as (stack, _),
    ):
        found = measure_ways(stack, options.ways or list(WAYS), options.count, options.at_once, options.rounds)
    if options.json:
        json.dump(found, sys.stdout, indent=2)
        return
    for way, each in found.items():
        shown = ", ".join(f"{name} {used:.2f}" for name, used in each["cpu"].items())
        print(
            f"{WAYS[way][0]}: {each['rate']:,.0f}/s, {each['cpu_ms']:.2f} ms of CPU ({shown}); for a lease"
            f" {each['requests']:.2f} requests, {each['ticks']:.3f} ticks, {each['commands']:.1f} Redis commands"
        )


if __name__ == "__main__":
    main()
