"""The tick's plan beside two straightforward loops: `python -m bench.plan [--json]`.

Must reach: 1,000 slots × 10,000 pending in under 50 ms, 10,000 × 100,000 in under 1.5 s cold, growth about linear in
slots + reservations, and the same assignments as the loops. Figures are seconds of this process' own time, the best
of a few rounds; each fleet is planned in a process of its own, whose peak memory is told beside them.
"""

import json
import resource
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from time import process_time

from bench._fleets import FLEETS, Fleet
from bench._loops import LOOPS
from scheduler.model.decisions import Assign, Launch, Plan
from scheduler.model.view import View
from scheduler.policy.plan import plan

SIZES = (250, 500, 1_000, 2_000, 5_000, 10_000)
"""Slots; ten times as many reservations wait for them."""
PENDING_PER_SLOT = 10
LARGEST_LOOP = {"first_fit": 1_000, "sorting": 500}
"""Slots up to which a loop is measured: more would take it minutes."""
ROUNDS = 3


@dataclass(frozen=True)
class Figures:
    """What was measured on one fleet of one size; a loop that was not tried has no figure."""

    fleet: str
    slots: int
    pending: int
    cold: float
    """Seconds of the first plan on a new view under new rules, in a new process."""
    best: float
    """Seconds of the quickest of several such plans; all but the cold one find the process warm."""
    assigned: int
    launched: int
    waiting: int
    peak_mib: float
    """Most memory that the process ever had, the view and its rows included."""
    loops: Mapping[str, float]


def measure(name: str, size: int) -> Figures:
    """Plan this fleet a few times, and let the loops that are made for it place the same reservations."""
    timed = [_time_plan(FLEETS[name](size, size * PENDING_PER_SLOT)) for _ in range(ROUNDS)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    outcome, cold = timed[0]
    assert all(each == outcome for each, _ in timed), "the same view gave different plans"
    assignments = find_assignments(outcome)
    return Figures(
        fleet=name,
        slots=size,
        pending=size * PENDING_PER_SLOT,
        cold=cold,
        best=min(took for _, took in timed),
        assigned=len(assignments),
        launched=sum(isinstance(each, Launch) for each in outcome.decisions),
        waiting=len(outcome.waiting),
        peak_mib=peak,
        loops=dict(_time_loops(name, size, assignments)),
    )


def find_assignments(outcome: Plan) -> dict[str, str]:
    """Reservation → the slot that its one component gets."""
    return {each.reservation: each.leases[0].slot for each in outcome.decisions if isinstance(each, Assign)}


def _time_plan(fleet: Fleet) -> tuple[Plan, float]:
    view = View(fleet.rows)
    began = process_time()
    return plan(view, fleet.rules, fleet.now), process_time() - began


def _time_loops(name: str, size: int, assignments: Mapping[str, str]) -> Iterator[tuple[str, float]]:
    """Seconds of each loop; fails unless it assigns what the plan does."""
    fleet = FLEETS[name](size, size * PENDING_PER_SLOT)
    for loop in fleet.loops:
        if size <= LARGEST_LOOP[loop]:
            began = process_time()
            found = LOOPS[loop](fleet)
            yield loop, process_time() - began
            assert found == assignments, f"{loop} assigns otherwise than the plan on {name}, {size} slots"


def measure_all() -> Iterator[Figures]:
    """Every fleet in every size, one process after the other."""
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn"), max_tasks_per_child=1) as processes:
        for name in FLEETS:
            yield from processes.map(measure, [name] * len(SIZES), SIZES)


def show(figures: Figures, smaller: Figures | None) -> None:
    """One line; growth is against the next smaller size: 1.0 = exactly linear."""
    linear = smaller and figures.best / smaller.best / (figures.slots / smaller.slots)
    growth = f"growth {linear:4.2f}" if linear else " " * 11
    loops = "".join(f"   {name} {took:7.3f} s (×{took / figures.best:.0f})" for name, took in figures.loops.items())
    times = f"cold {figures.cold * 1000:7.1f} ms, best {figures.best * 1000:7.1f} ms"
    counts = f"{figures.assigned:>6} assigned {figures.launched:>6} launched {figures.waiting:>6} wait"
    print(
        f"{figures.fleet:<8}{figures.slots:>6} × {figures.pending:>7,}: {times}   {growth}   {counts}"
        f"   {figures.peak_mib:5.0f} MiB{loops}"
    )


def main() -> None:
    """Measure and show; with --json as one document."""
    found: list[Figures] = []
    for figures in measure_all():
        if "--json" not in sys.argv:
            show(figures, found[-1] if found and found[-1].fleet == figures.fleet else None)
        found.append(figures)
    if "--json" in sys.argv:
        print(json.dumps([asdict(each) for each in found]))


if __name__ == "__main__":
    main()
