"""The tick's plan under `queue: quota` compared with a simple planner: `python -m bench.quota`; `--help` lists the
options.

The workload is that of qscheduler's own figures: 10 accounts, 20 models, 50 images, three labels on each slot, two
required labels and a preferred one in each request. Figures of the Go original on a similar machine for 10,000 slots
× 100,000 pending: 16 s cold, 70 ms for an unchanged tick, 240 ms at 1 % churn, 457 MiB. Must reach: ten times faster
cold.

Each fleet is planned in its own process, whose peak memory is printed; the simple planner has another one. Its
assignments, slot and level, must be those of the plan in every tick. Seconds are the processes' own.
"""

import json
import resource
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from time import process_time
from typing import Any

from bench._carrying import carry_out, list_churn
from bench._quota_fleet import NOW, TICK, Fleet, make_fleet
from bench._quota_loops import place_by_loops
from scheduler.model.decisions import Assign, Decision, Placement, Plan, Preempt
from scheduler.model.view import View
from scheduler.model.waits import Waits
from scheduler.operations.paused_gc import PausedGC
from scheduler.policy.plan import plan
from scheduler.policy.plan_cache import PlanCache

SIZES = ((1_000, 10_000), (10_000, 100_000))
SIZE_OF_GO = (10_000, 100_000)
LARGEST = (100_000, 1_000_000)
WORKLOADS = {"idle": False, "busy": True}
"""All slots are idle at first, or all are held by free work that the paid ones preempt."""
PLAIN_MOST = 100_000_000
"""Most slots × pending for which the simple planner runs."""
CHURN = 0.01
TICKS = ("cold", "settled", "unchanged", "churned")
GO = {"cold": 16.0, "unchanged": 0.070, "churned": 0.240}
"""Seconds of the Go original at 10,000 × 100,000, as qscheduler's page has them; not measured here."""

Assignments = dict[str, tuple[str, int | None]]
Planner = Callable[[PlanCache, View, Fleet, float], Plan]


@dataclass(frozen=True)
class Ticks:
    """The ticks of one planner: their seconds, what they assigned, and the peak memory of the process."""

    seconds: dict[str, float]
    assigned: dict[str, Assignments]
    waiting: int
    peak_mib: float


@dataclass(frozen=True)
class Figures:
    """The figures of one fleet of one size.

    cold: the first plan on a new view, in a new process. settled: the next tick's plan, after the first was
    carried out. unchanged: the one after that; in between only the accounts were charged.
    churned: the plan after 1 % of the leased and pending reservations were replaced.
    """

    workload: str
    slots: int
    pending: int
    engine: Ticks
    plain: Ticks | None
    """None where it would take too long."""


def run(planner: str, workload: str, slots: int, pending: int) -> Ticks:
    """TICKS of one of PLANNERS, each on the view as the one before leaves it.

    The time that a leader takes to prepare the next plan, after a commit, is not included.
    """
    make, cache = PLANNERS[planner], PlanCache()
    fleet = make_fleet(slots, pending, is_busy=WORKLOADS[workload])
    view, now = View(fleet.rows), NOW
    seconds, assigned = {}, {}
    waiting = 0
    for name in TICKS:
        if name == "churned":
            for row in list(list_churn(view, CHURN, now)):
                view.apply(row)
        began = process_time()
        outcome = make(cache, view, fleet, now)
        seconds[name] = process_time() - began
        assigned[name] = find_assignments(outcome)
        waiting = waiting or len(outcome.waiting)
        cache.prepare()
        carry_out(view, fleet.rules, outcome, now)
        now += TICK
    return Ticks(seconds, assigned, waiting, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def find_assignments(outcome: Plan) -> Assignments:
    """Reservation -> the slot and the level that its one component gets."""
    return {
        each.reservation: (each.leases[0].slot, each.level) for each in outcome.decisions if isinstance(each, Assign)
    }


def _plan_by_engine(cache: PlanCache, view: View, fleet: Fleet, now: float) -> Plan:
    with PausedGC():
        return plan(view, fleet.rules, now, cache)


def _plan_by_loops(_cache: PlanCache, view: View, _: Fleet, now: float) -> Plan:
    decisions: list[Decision] = []
    for name, (slot, level) in place_by_loops(view, now).items():
        leases = (Placement(component="main", slot=slot, epoch=view.slots[slot].epoch),)
        victims = tuple(owner for owner, _ in view.leases_of(slot))
        if victims:
            decisions.append(Preempt(reservation=name, slot=slot, victims=victims, level=level, leases=leases))
        decisions.append(Assign(reservation=name, leases=leases, level=level))
    return Plan(tuple(decisions), Waits(), None, tuple(view.accounts))


PLANNERS: dict[str, Planner] = {"engine": _plan_by_engine, "plain": _plan_by_loops}


def measure_all(chosen: Namespace) -> Iterator[Figures]:
    """These workloads in these sizes, one process after the other; fails where the two planners differ."""
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn"), max_tasks_per_child=1) as processes:
        for workload in chosen.workloads:
            for slots, pending in chosen.sizes:
                engine = processes.submit(run, "engine", workload, slots, pending).result()
                plain = None
                if chosen.plain and slots * pending <= chosen.plain_most:
                    plain = processes.submit(run, "plain", workload, slots, pending).result()
                    assert plain.assigned == engine.assigned, f"the plain planner differs: {workload}, {slots} slots"
                yield Figures(workload, slots, pending, engine, plain)


def show(figures: Figures) -> None:
    """Two lines: the engine with what it assigned, and the plain planner with how many times as long it took."""
    size = f"{figures.workload:<5}{figures.slots:>8,} × {figures.pending:>9,}"
    engine, plain = figures.engine, figures.plain
    times = ", ".join(f"{name} {took * 1000:9.1f}" for name, took in engine.seconds.items())
    counts = "/".join(f"{len(each)}" for each in engine.assigned.values())
    print(
        f"{size}  engine: {times} ms   {counts} assigned, {engine.waiting} wait   {engine.peak_mib:5.0f} MiB",
        flush=True,
    )
    if plain:
        ratios = ", ".join(f"{name} {took / engine.seconds[name]:8.1f}×" for name, took in plain.seconds.items())
        print(f"{'':{len(size)}}  plain:  {ratios}      the same assignments   {plain.peak_mib:5.0f} MiB", flush=True)
    if (figures.slots, figures.pending) == SIZE_OF_GO:
        ratios = ", ".join(f"{name} {took / engine.seconds[name]:8.1f}×" for name, took in GO.items())
        print(f"{'':{len(size)}}  Go:     {ratios}      (its page's figures)", flush=True)


def main() -> None:
    """Measure and show what the command line asks for."""
    chosen = _read_command_line()
    found = []
    for figures in measure_all(chosen):
        if chosen.json:
            found.append(_describe(figures))
        else:
            show(figures)
    if chosen.json:
        print(json.dumps(found))


def _describe(figures: Figures) -> dict[str, Any]:
    """As a document; of the assignments their numbers."""
    document = asdict(figures)
    for planner in filter(None, (document["engine"], document["plain"])):
        planner["assigned"] = {name: len(each) for name, each in planner["assigned"].items()}
    return document


def _read_command_line() -> Namespace:
    parser = ArgumentParser(prog="python -m bench.quota", description="Time the plan of quota beside a plain planner.")
    parser.add_argument(
        "--sizes", nargs="+", type=_read_size, default=SIZES, help="SLOTSxPENDING …; default 1000x10000 10000x100000"
    )
    parser.add_argument("--large", action="store_true", help="100000x1000000 too: takes a few GiB")
    parser.add_argument(
        "--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), help="which; default both"
    )
    parser.add_argument("--no-plain", dest="plain", action="store_false", help="leave the plain planner out")
    parser.add_argument(
        "--plain-most",
        type=int,
        default=PLAIN_MOST,
        help="slots × pending up to which it is tried; default %(default)s",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of lines")
    chosen = parser.parse_args()
    chosen.sizes = [*chosen.sizes, *([LARGEST] if chosen.large else [])]
    return chosen


def _read_size(word: str) -> tuple[int, int]:
    slots, _, pending = word.partition("x")
    if not (slots.isdecimal() and pending.isdecimal() and int(slots) and int(pending)):
        raise ArgumentTypeError(f"expected SLOTSxPENDING, as 1000x10000, got {word!r}")
    return int(slots), int(pending)


if __name__ == "__main__":
    main()
