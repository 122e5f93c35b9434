"""The whole tick (lock, view, plan, commit, publish, report) on a real database and a real Redis, stage by stage.

`python -m bench.tick [--slots N] [--pending N] [--rounds N] [--postgresql] [--json]` prints for each stage the time,
the CPU time of the process, and what it costs: SQL statements, Redis round trips (a pipeline or a script is one),
Celery messages, commands that Redis carried out, and bytes to Redis. Each round is a process of its own with a new
fleet. With several rounds, a time is the median of all rounds.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from statistics import median
from time import perf_counter, process_time
from typing import Any

from scheduler.operations.tick.tick import Ticked
from testbed.tick_fleet import LEASES_A_SLOT, Fleet, Meters, open_fleet

CHURN = 0.01


Figures = dict[str, Any]


def run(fleet: Fleet, slots: int, pending: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the stages in order: (name, what is measured). The preparation of a stage runs before it is yielded."""
    fleet.prepare(slots)
    leased = slots * LEASES_A_SLOT
    fleet.client.flushall()
    yield "view lost, rebuilt from SQL: slots alone", fleet.tick
    few = min(1000, leased)
    fleet.submit(few)
    yield f"{few:,} leases", fleet.tick
    fleet.release(few)
    fleet.tick()
    fleet.submit(leased)
    yield f"{leased:,} leases", fleet.tick
    fleet.submit(pending)
    yield f"{pending:,} arrivals, nothing to decide", fleet.tick
    fleet.client.flushall()
    yield "view lost, rebuilt from SQL", fleet.tick
    yield "nothing changed, kicked", fleet.tick
    fleet.leader.looked_at = 0.0
    fleet.tick()
    fleet.leader.interval = 0.0
    yield "nothing changed, look-back", fleet.tick
    fleet.leader.interval = 1e6
    fleet.leader.audited_at = 0.0
    yield "nothing changed, audit", fleet.tick
    fleet.submit(1)
    yield "one arrival, nothing to decide", fleet.tick
    fleet.release(1)
    yield "one release, one decision", fleet.tick
    fleet.release(int(leased * CHURN))
    fleet.submit(int(pending * CHURN))
    yield "1 % churn", fleet.tick
    fleet.be_new_leader()
    fleet.leader.looked_at = fleet.leader.audited_at = fleet.store.now()
    yield "new leader", fleet.tick


def measure(fleet: Fleet, slots: int, pending: int) -> Iterator[tuple[str, Figures]]:
    """Yield the figures of each stage."""
    meters = Meters(fleet.client)
    for name, act in run(fleet, slots, pending):
        before, messages = meters.read(), fleet.dispatcher.messages
        began, began_cpu = perf_counter(), process_time()
        result = act()
        seconds, cpu = perf_counter() - began, process_time() - began_cpu
        after = meters.read()
        counted = {key: after[key] - before[key] for key in after}
        counted["messages"] = fleet.dispatcher.messages - messages
        decisions = len(result.plan.decisions) if isinstance(result, Ticked) else 0
        yield name, {"seconds": seconds, "cpu": cpu, "decisions": decisions, **counted}


def measure_round(arguments: argparse.Namespace) -> dict[str, Figures]:
    """Return the figures of each stage on a new fleet. Print them as they come, unless JSON is wanted."""
    found = {}
    with open_fleet(on_postgresql=arguments.postgresql) as fleet:
        for name, figures in measure(fleet, arguments.slots, arguments.pending):
            found[name] = figures
            if not arguments.json:
                show(name, figures)
    return found


def join_rounds(rounds: Sequence[dict[str, Figures]]) -> dict[str, Figures]:
    """Return the figures of each stage: the median of the times, and the counts of the first round."""
    found = {name: dict(figures) for name, figures in rounds[0].items()}
    for name, figures in found.items():
        figures |= {key: median(each[name][key] for each in rounds) for key in ("seconds", "cpu")}
    return found


def show(name: str, figures: Figures) -> None:
    """Print the line of a stage."""
    print(
        f"{name:<45}{figures['seconds']:>9.3f} s{figures['cpu']:>9.3f} s of CPU"
        f"{figures['decisions']:>8,} decisions"
        f"{figures['statements']:>8,} statements{figures['round_trips']:>7,} round trips"
        f"{figures['messages']:>5,} messages"
        f"{figures['commands']:>9,} commands{figures['bytes'] / 1e3:>11,.0f} kB",
        flush=True,
    )


def main() -> None:
    """Measure each stage and print a table."""
    parser = argparse.ArgumentParser(description="The whole tick, stage by stage.")
    parser.add_argument("--slots", type=int, default=10_000, help="ready slots with four leases each")
    parser.add_argument("--pending", type=int, default=100_000, help="reservations that wait")
    parser.add_argument("--rounds", type=int, default=1, help="new fleets that are measured; default 1")
    parser.add_argument("--postgresql", action="store_true", help="on PostgreSQL; default: SQLite")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error(f"--rounds: expected a whole number from 1 on, got {arguments.rounds}")
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn"), max_tasks_per_child=1) as processes:
        rounds = [processes.submit(measure_round, arguments).result() for _ in range(arguments.rounds)]
    found = join_rounds(rounds)
    if arguments.json:
        json.dump(found, sys.stdout, indent=2)
    elif len(rounds) > 1:
        print(f"\nmedian of {len(rounds)} rounds:")
        for name, figures in found.items():
            show(name, figures)


if __name__ == "__main__":
    main()
