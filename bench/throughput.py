"""Submit to leased, in bulk: from the call of `reserve_many` until all reservations are leased, on ready slots.

`python -m bench.throughput [--count N] [--postgresql] [--json]` prints leases a second, and the CPU that all processes
of the stack and this client used for one lease.
"""

import argparse
import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from time import perf_counter, process_time, sleep

from bench._stack import SYSTEM, open_stack
from leasehold.client.client import Client
from leasehold.client.reservation_fields import ReservationFields
from leasehold.stack import Stack
from scheduler.ports import Store
from testbed.postgresql_server import open_postgresql

SLOTS = 100
ROUNDS = 3
LOOK_SECONDS = 0.02
"""Interval of the reads that find the end; the figures are as exact as this."""
LONGEST_SECONDS = 600.0
"""Time after which the reservations count as never leased."""


def read_cpu_seconds(stack: Stack) -> float:
    """Return the CPU time of the stack's processes, their children and this process so far, by /proc."""
    return sum(read_cpu_by_group(stack).values()) + process_time()


def read_cpu_by_group(stack: Stack) -> dict[str, float]:
    """Return the CPU time of each process of the stack with its children so far, by the name of the process."""
    ticks = os.sysconf("SC_CLK_TCK")
    groups = {os.getpgid(pid): name for name, pid in stack.pids().items()}
    found = dict.fromkeys(groups.values(), 0.0)
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if (name := groups.get(int(fields[2]))) is not None:
            found[name] += (int(fields[11]) + int(fields[12])) / ticks
    return found


def lease_many(client: Client, store: Store, count: int, number: int) -> dict[str, float]:
    """Return the seconds until `count` more reservations are accepted, and until they are leased."""
    items: list[ReservationFields] = [{"id": f"bench-{number}-{index}", "system": SYSTEM} for index in range(count)]
    wanted = store.count_phases()["leased"] + count
    began = perf_counter()
    answers = client.reserve_many(items, timeout=300)
    accepted = perf_counter() - began
    assert all(answer.ok for answer in answers)
    while store.count_phases()["leased"] < wanted:
        assert perf_counter() - began < LONGEST_SECONDS, f"not all of {count} reservations were leased"
        sleep(LOOK_SECONDS)
    return {"accepted": accepted, "leased": perf_counter() - began}


def main() -> None:
    """Measure some rounds and print the rates."""
    parser = argparse.ArgumentParser(description="Submit to leased, in bulk.")
    parser.add_argument("--count", type=int, default=10_000, help="reservations in one call")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--postgresql", action="store_true", help="on PostgreSQL; default: SQLite")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    most = -(-options.count * options.rounds // SLOTS)
    found = []
    with (
        open_postgresql() if options.postgresql else nullcontext() as url,
        open_stack(slots=SLOTS, leases_per_slot=most, database_url=url) as (stack, client),
    ):
        store = stack.open_store()
        for number in range(options.rounds):
            before = read_cpu_seconds(stack)
            figures = lease_many(client, store, options.count, number)
            figures["cpu_per_lease"] = (read_cpu_seconds(stack) - before) / options.count
            found.append(figures)
            if not options.json:
                print(
                    f"{options.count:,} reservations: accepted {options.count / figures['accepted']:>8,.0f}/s, "
                    f"leased {options.count / figures['leased']:>8,.0f}/s, "
                    f"{figures['cpu_per_lease'] * 1e6:>6,.0f} µs of CPU each",
                    flush=True,
                )
        store.close()
    if options.json:
        json.dump(found, sys.stdout, indent=2)


if __name__ == "__main__":
    main()
