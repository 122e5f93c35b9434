"""The tick's plan beside two straightforward loops: `python -m bench.plan [--json]`.

Must reach: 1,000 slots × 10,000 pending in under 50 ms, 10,000 × 100,000 in under 1.5 s cold, growth about linear in
slots + reservations, and the same assignments as the loops. Figures are seconds of this process' own time, the best
of a few rounds; each fleet is planned in a process of its own, whose peak memory is told beside them. A loop is tried
on the next larger fleet as long as it is not expected to take longer than LOOP_SECONDS there.
"""

import json
import resource
import sys
from collections.abc import Iterator, Mapping, Sequence
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
LOOP_SECONDS = 60.0
"""A loop is not tried where it would take longer, growing with slots × reservations from the next smaller fleet."""
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
    again: float
    """Seconds of the quickest second plan on the same view, as a tick has it when nothing changed."""
    assigned: int
    launched: int
    waiting: int
    peak_mib: float
    """Most memory that the process ever had, the view and its rows included."""
    loops: Mapping[str, float]


def measure(name: str, size: int, loops: Sequence[str]) -> Figures:
    """Plan this fleet a few times, and let these of the loops that are made for it place the same reservations."""
    timed = [_time_plans(FLEETS[name](size, size * PENDING_PER_SLOT)) for _ in range(ROUNDS)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    outcome, cold, _ = timed[0]
    assert all(each == outcome for each, *_ in timed), "the same view gave different plans"
    assignments = find_assignments(outcome)
    return Figures(
        fleet=name,
        slots=size,
        pending=size * PENDING_PER_SLOT,
        cold=cold,
        best=min(took for _, took, _ in timed),
        again=min(took for *_, took in timed),
        assigned=len(assignments),
        launched=sum(isinstance(each, Launch) for each in outcome.decisions),
        waiting=len(outcome.waiting),
        peak_mib=peak,
        loops=dict(_time_loops(name, size, loops, assignments)),
    )


def find_assignments(outcome: Plan) -> dict[str, str]:
    """Reservation → the slot that its one component gets."""
    return {each.reservation: each.leases[0].slot for each in outcome.decisions if isinstance(each, Assign)}


def _time_plans(fleet: Fleet) -> tuple[Plan, float, float]:
    """The plan on a new view, its seconds, and those of a second one on the same view."""
    view = View(fleet.rows)
    began = process_time()
    outcome = plan(view, fleet.rules, fleet.now)
    cold = process_time() - began
    began = process_time()
    second = plan(view, fleet.rules, fleet.now)
    again = process_time() - began
    assert second == outcome, "the same view gave different plans"
    return outcome, cold, again


def _time_loops(
    name: str, size: int, loops: Sequence[str], assignments: Mapping[str, str]
) -> Iterator[tuple[str, float]]:
    """Seconds of each loop; fails unless it assigns what the plan does."""
    fleet = FLEETS[name](size, size * PENDING_PER_SLOT)
    for loop in loops:
        began = process_time()
        found = LOOPS[loop](fleet)
        yield loop, process_time() - began
        assert found == assignments, f"{loop} assigns otherwise than the plan on {name}, {size} slots"


def measure_all() -> Iterator[Figures]:
    """Every fleet in every size, one process after the other."""
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn"), max_tasks_per_child=1) as processes:
        for name in FLEETS:
            smaller: Figures | None = None
            for size in SIZES:
                smaller = processes.submit(measure, name, size, _list_loops(name, size, smaller)).result()
                yield smaller


def _list_loops(name: str, size: int, smaller: Figures | None) -> list[str]:
    """The loops that are to be tried on a fleet of this size."""
    if smaller is None:
        return list(FLEETS[name](1, 1).loops)
    factor = (size / smaller.slots) ** 2
    return [loop for loop, took in smaller.loops.items() if took * factor <= LOOP_SECONDS]


def show(figures: Figures, smaller: Figures | None) -> None:
    """One line; growth is against the next smaller size: 1.0 = exactly linear."""
    ratio = figures.slots / smaller.slots if smaller else 0.0
    growth = f"growth {figures.best / smaller.best / ratio:4.2f}" if smaller else " " * 11
    loops = ""
    for name, took in figures.loops.items():
        grown = f", growth {took / smaller.loops[name] / ratio:.2f}" if smaller else ""
        loops += f"   {name} {took:7.3f} s (×{took / figures.best:.0f}{grown})"
    times = f"cold {figures.cold * 1000:7.1f}, best {figures.best * 1000:7.1f}, again {figures.again * 1000:7.1f} ms"
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
